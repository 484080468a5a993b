//! Compares gradients with finite differences. A parameter is moved a little in both directions along a line, and the
//! loss must change as the gradient predicts.

use crate::data::{Batch, Random};
use crate::model::Network;
use millpond::{TensorError, TensorRef, tensor::Operand, workspace::Scratch};

/// The length by which a parameter is moved, over all of its elements.
const STEP: f64 = 2e-4;
/// The allowed difference as a share of the gradient's length, which covers the errors of `f32` and the kinks of ReLU.
const TOLERANCE: f64 = 5e-3;

/// Returns the sum of products of all elements.
fn inner<'a>(one: TensorRef<'_>, other: impl Into<Operand<'a>>) -> Result<f64, TensorError> {
    let product = one.reshape([one.len()])?.dot(other)?;
    Ok(product.to_f64().unwrap_or(f64::NAN))
}

/// Returns the difference between gradient and finite differences along a direction, as a share of the gradient's
/// length.
fn apart(
    network: &mut Network,
    (batch, at): (Batch<'_>, usize),
    scratch: &mut Scratch<'_>,
    random: Option<&mut Random>,
) -> Result<f64, TensorError> {
    let parameter = network.parameter(at);
    let (shape, len) = (parameter.value.shape(), [parameter.value.len()]);
    let (mut kept, mut direction) = (scratch.tensor::<f32>(shape)?, scratch.tensor::<f32>(shape)?);
    kept.copy_from(&parameter.value)?;
    match random {
        None => direction.copy_from(&parameter.gradient)?,
        Some(random) => direction.as_mut_slice::<f32>()?.fill_with(|| random.around(1.0)),
    }
    let long = inner(direction.as_ref(), direction.as_ref().reshape(len)?)?.sqrt();
    direction.scal((1.0 / long) as f32)?;
    let gradient = parameter.gradient.reshape(len)?;
    let length = inner(gradient.view()?, &gradient)?.sqrt();
    let said = inner(direction.as_ref(), &gradient)?;
    drop(gradient);

    let mut loss = |by: f64| {
        let value = &mut network.parameter(at).value;
        value.copy_from(kept.as_ref())?;
        value.axpy(by as f32, direction.as_ref())?;
        let score = scratch.scope(|scratch| network.score(batch, scratch))?;
        Ok::<_, TensorError>(score.mean_loss())
    };
    let found = (loss(STEP)? - loss(-STEP)?) / (2.0 * STEP);
    network.parameter(at).value.copy_from(kept.as_ref())?;
    Ok((found - said).abs() / length)
}

/// Compares along each parameter's gradient, which also checks the gradient's length, and along other directions.
/// Returns the largest difference, and whether it is small enough. The parameters are unchanged afterwards.
pub(crate) fn check(
    network: &mut Network,
    batch: Batch<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(f64, bool), TensorError> {
    scratch.scope(|scratch| network.learn(batch, scratch))?;
    let mut random = Random(3);
    let (mut most, mut near) = (0f64, true);
    for at in 0..Network::PARAMETERS {
        for along_others in [false, true, true] {
            let random = along_others.then_some(&mut random);
            let apart = scratch.scope(|scratch| apart(network, (batch, at), scratch, random))?;
            // For a gradient of zeros `apart` is NaN, which fails this comparison.
            near &= apart < TOLERANCE;
            most = most.max(apart);
        }
    }
    Ok((most, near))
}
