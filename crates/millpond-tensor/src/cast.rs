//! Conversions of elements to another type. Some elements at a time are converted to a wide type, and from there to the type of the
//! output.
//!
//! This takes a loop that loads for each type, and a loop that stores for each pair of a type and a wide type, instead of a loop for
//! each pair of types. The wide type can represent every element, so nothing is rounded twice, except large integers that are converted
//! to half precision.

use super::Tensor;
use super::arithmetic::Output;
use super::copy::SharedOrCopied;
use super::elementwise::{output, refuse};
use super::error::TensorError;
use super::layout::Layout;
use super::number::{Number, Wide, with_number};
use super::operand::beside;
use super::threads;
use super::view::{TensorMut, TensorRef};
use super::walk::Walk;
use millpond_pool::dtype::DType;

macro_rules! cast_into {
    ($self:ident, $view:expr, $output:ident) => {
        /// Converts the elements to the type of the output, as Rust's `as` does: integers wrap around, floating-point numbers are
        /// rounded, or truncated and saturated, and complex numbers lose their imaginary part. In a conversion to `bool`, every value
        /// except 0 is true. Allocates nothing.
        ///
        /// # Errors
        /// Returns an error if the output has another shape or cannot be written, for half precision without the feature `half`,
        /// and errors of the device. A device does not convert complex numbers.
        pub fn cast_into(&$self, out: &mut impl $output) -> Result<(), TensorError> {
            cast($view, out.output()?)
        }
    };
}

#[cfg(feature = "cuda")]
pub(super) use cast_into;

/// Conversions to another type.
impl Tensor {
    cast_into!(self, self.view()?, Output);

    /// Converts the elements to another type, in a new tensor of the same [pool](Tensor); see [`cast_into`](Self::cast_into).
    /// If the elements already have the type, the result shares them.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and for half precision without the feature `half`.
    pub fn cast(&self, dtype: DType) -> Result<SharedOrCopied, TensorError> {
        if dtype == self.dtype() {
            return Ok(SharedOrCopied::Shared(self.clone()));
        }
        self.view()?.cast(dtype).map(SharedOrCopied::Copied)
    }
}

/// Conversions to another type, as for a [`Tensor`].
impl TensorRef<'_> {
    cast_into!(self, *self, Output);

    /// Converts the elements to another type, in a new tensor of the same [pool](Tensor); see [`cast_into`](Self::cast_into).
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and for half precision without the feature `half`.
    pub fn cast(&self, dtype: DType) -> Result<Tensor, TensorError> {
        if dtype == self.dtype() {
            return self.to_tensor();
        }
        let mut out = beside(self.home(), |from| Tensor::zeros_in(from, self.shape(), dtype))?;
        self.cast_into(&mut out)?;
        Ok(out)
    }
}

/// The number of elements that are converted together.
pub(super) const TILE: usize = 64;

/// Writes accumulated values as elements of the output's type.
pub(super) fn store<W: Wide>(
    operation: &'static str,
    values: &[W],
    out: &mut TensorMut<'_>,
    place: usize,
    step: usize,
) -> Result<(), TensorError> {
    let dtype = out.dtype();
    with_number!(
        dtype,
        T => {
            let out = &mut out.plain_mut::<T>()[place..];
            if step == 1 {
                for (out, value) in out.iter_mut().zip(values) {
                    *out = value.cast();
                }
            } else {
                for (at, value) in values.iter().enumerate() {
                    out[at * step] = value.cast();
                }
            }
        },
        else {
            if dtype != DType::Bool {
                return refuse(operation, dtype);
            }
            let out = out.plain_mut::<u8>();
            for (at, value) in values.iter().enumerate() {
                out[place + at * step] = u8::from(*value != W::default());
            }
        }
    );
    Ok(())
}

fn cast(from: TensorRef<'_>, mut out: TensorMut<'_>) -> Result<(), TensorError> {
    output("cast_into", out.typed_shape(), out.dtype(), from.shape())?;
    if from.dtype() == out.dtype() {
        return out.copy_from(from);
    }
    let parts = threads::parts(out.len() * out.dtype().size());
    threads::share(out, [from], parts, &|mut out, [from]| {
        with_number!(
            from.dtype(),
            T => cast_by(from.plain::<T>(), from.layout(), &mut out, T::widen),
            else match from.dtype() {
                DType::Bool => {
                    cast_by(from.plain::<u8>(), from.layout(), &mut out, |byte| u64::from(byte != 0))
                }
                dtype => refuse("cast", dtype),
            }
        )
    })
}

fn cast_by<T: Copy, W: Wide>(
    from: &[T],
    layout: &Layout,
    out: &mut TensorMut<'_>,
    widen: impl Fn(T) -> W + Copy,
) -> Result<(), TensorError> {
    let whole = *out.layout();
    let walk = Walk::in_any_order([&whole, layout]);
    let [to_step, from_step] = walk.strides;
    let mut result = Ok(());
    walk.rows(|[to, start]| {
        let mut tile = [W::default(); TILE];
        for first in (0..walk.len).step_by(TILE) {
            let tile = &mut tile[..TILE.min(walk.len - first)];
            for (at, value) in tile.iter_mut().enumerate() {
                *value = widen(from[start + (first + at) * from_step]);
            }
            let stored = store("cast", tile, out, to + first * to_step, to_step);
            if stored.is_err() {
                result = stored;
            }
        }
    });
    result
}
