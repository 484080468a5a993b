//! A multilayer perceptron with two hidden layers, its gradients, and stochastic gradient descent with momentum.
//! Parameters are permanent. The results of a step are allocated in a scope of a workspace and freed with it.

use crate::data::{Batch, CLASSES, PIXELS, Random};
use millpond::{DType, Pool, Tensor, TensorError, TensorMut, TensorRef, workspace::Scratch};

const HIDDEN: [usize; 2] = [64, 32];
const LAYERS: usize = HIDDEN.len() + 1;
const MOMENTUM: f32 = 0.9;

/// A learnt value, the gradient of the loss, and the velocity.
pub(crate) struct Parameter {
    pub(crate) value: Tensor,
    pub(crate) gradient: Tensor,
    velocity: Tensor,
}

impl Parameter {
    fn new(pool: &Pool, value: Tensor) -> Result<Self, TensorError> {
        Ok(Self {
            gradient: Tensor::zeros_in(pool, value.shape(), DType::F32)?,
            velocity: Tensor::zeros_in(pool, value.shape(), DType::F32)?,
            value,
        })
    }

    fn update(&mut self, rate: f32) -> Result<(), TensorError> {
        self.velocity.scal(MOMENTUM)?;
        self.velocity.axpy(-rate, &self.gradient)?;
        self.value.add_assign(&self.velocity)
    }
}

struct Layer {
    weights: Parameter,
    biases: Parameter,
}

impl Layer {
    /// Initialises the weights by the method of He and others ("Delving deep into rectifiers", 2015).
    fn new(pool: &Pool, from: usize, to: usize, random: &mut Random) -> Result<Self, TensorError> {
        let most = (6.0 / from as f32).sqrt();
        let weights = Tensor::from_fn_in(pool, [from, to], |_| random.around(most))?;
        Ok(Self {
            weights: Parameter::new(pool, weights)?,
            biases: Parameter::new(pool, Tensor::zeros_in(pool, [to], DType::F32)?)?,
        })
    }

    fn forward<'s>(&self, input: TensorRef<'_>, scratch: &Scratch<'s>) -> Result<TensorMut<'s>, TensorError> {
        let mut out = scratch.tensor::<f32>([input.size(0)?, self.biases.value.len()])?;
        input.matmul_into(&self.weights.value, &mut out)?;
        out.add_assign(&self.biases.value)?;
        Ok(out)
    }

    /// Computes the gradients of the parameters from the layer's input and the gradient of its output.
    fn learn(&mut self, input: TensorRef<'_>, output: TensorRef<'_>) -> Result<(), TensorError> {
        input
            .transpose(0, 1)?
            .matmul_into(output, &mut self.weights.gradient)?;
        output.sum_dim_into(0, &mut self.biases.gradient)
    }

    /// Returns the gradient of the layer's input. It is 0 for each element at which the ReLU was 0.
    fn backward<'s>(
        &self,
        input: TensorRef<'_>,
        output: TensorRef<'_>,
        scratch: &Scratch<'s>,
    ) -> Result<TensorMut<'s>, TensorError> {
        let mut gradient = scratch.tensor::<f32>(input.shape())?;
        output.matmul_into(self.weights.value.view()?.transpose(0, 1)?, &mut gradient)?;
        let through = |gradient: f32, passed| if passed > 0.0 { gradient } else { 0.0 };
        gradient.par_zip_in_place(input, through)?;
        Ok(gradient)
    }
}

fn relu(values: &mut TensorMut<'_>) -> Result<(), TensorError> {
    values.map_in_place(|value: f32| value.max(0.0))
}

/// The result of a batch: sums over its rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score {
    pub(crate) loss: f64,
    pub(crate) right: usize,
    pub(crate) rows: usize,
}

impl Score {
    pub(crate) fn add(&mut self, other: Self) {
        self.loss += other.loss;
        self.right += other.right;
        self.rows += other.rows;
    }

    pub(crate) fn mean_loss(&self) -> f64 {
        self.loss / self.rows as f64
    }

    pub(crate) fn accuracy(&self) -> f64 {
        self.right as f64 / self.rows as f64
    }
}

/// Computes softmax and cross-entropy of each row, and overwrites the rows with the gradient of the mean.
fn cross_entropy(rows: &mut TensorMut<'_>, digits: TensorRef<'_>) -> Result<Score, TensorError> {
    let mut score = Score {
        rows: digits.len(),
        ..Score::default()
    };
    let share = 1.0 / score.rows as f32;
    for (at, row) in rows.as_mut_slice::<f32>()?.chunks_exact_mut(CLASSES).enumerate() {
        let digit = digits.get(&[at])?.to_f64();
        let greatest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = row.iter().map(|value| (value - greatest).exp()).sum();
        for (class, value) in row.iter_mut().enumerate() {
            let is = digit == Some(class as f64);
            if is {
                score.loss += f64::from(greatest - *value) + f64::from(sum).ln();
                score.right += usize::from(*value == greatest);
            }
            *value = share * ((*value - greatest).exp() / sum - f32::from(u8::from(is)));
        }
    }
    Ok(score)
}

pub(crate) struct Network {
    layers: [Layer; LAYERS],
}

impl Network {
    /// The number of parameters: weights and biases.
    pub(crate) const PARAMETERS: usize = 2 * LAYERS;
    /// The matrix products in a step: output and weight gradient of each layer, and input gradient of each layer but
    /// the first.
    pub(crate) const PRODUCTS: u64 = 3 * LAYERS as u64 - 1;

    pub(crate) fn new(pool: &Pool) -> Result<Self, TensorError> {
        let (mut random, [first, second]) = (Random(2), HIDDEN);
        let mut layer = |from, to| Layer::new(pool, from, to, &mut random);
        Ok(Self {
            layers: [
                layer(PIXELS, first)?,
                layer(first, second)?,
                layer(second, CLASSES)?,
            ],
        })
    }

    /// Returns one of the parameters, counted from the input on.
    pub(crate) fn parameter(&mut self, at: usize) -> &mut Parameter {
        let layer = &mut self.layers[at / 2];
        if at.is_multiple_of(2) {
            &mut layer.weights
        } else {
            &mut layer.biases
        }
    }

    /// Returns the outputs of both hidden layers and of the last one.
    fn forward<'s>(
        &self,
        batch: Batch<'_>,
        scratch: &Scratch<'s>,
    ) -> Result<[TensorMut<'s>; LAYERS], TensorError> {
        let [first, second, last] = &self.layers;
        let mut one = first.forward(batch.pixels, scratch)?;
        relu(&mut one)?;
        let mut two = second.forward(one.as_ref(), scratch)?;
        relu(&mut two)?;
        let out = last.forward(two.as_ref(), scratch)?;
        Ok([one, two, out])
    }

    /// Returns the score for a batch.
    pub(crate) fn score(&self, batch: Batch<'_>, scratch: &Scratch<'_>) -> Result<Score, TensorError> {
        let [.., mut out] = self.forward(batch, scratch)?;
        cross_entropy(&mut out, batch.digits)
    }

    /// Returns the score for a batch, and computes the gradients.
    pub(crate) fn learn(&mut self, batch: Batch<'_>, scratch: &Scratch<'_>) -> Result<Score, TensorError> {
        let [one, two, mut out] = self.forward(batch, scratch)?;
        let score = cross_entropy(&mut out, batch.digits)?;
        let [first, second, last] = &mut self.layers;
        last.learn(two.as_ref(), out.as_ref())?;
        let two_by = last.backward(two.as_ref(), out.as_ref(), scratch)?;
        second.learn(one.as_ref(), two_by.as_ref())?;
        let one_by = second.backward(one.as_ref(), two_by.as_ref(), scratch)?;
        first.learn(batch.pixels, one_by.as_ref())?;
        Ok(score)
    }

    pub(crate) fn update(&mut self, rate: f32) -> Result<(), TensorError> {
        (0..Self::PARAMETERS).try_for_each(|at| self.parameter(at).update(rate))
    }
}
