//! Sums and products of vectors. What is added up is counted in `f64`, `i64` or `u64` and rounded once, in the end.

use super::Tensor;
use super::arithmetic::{Output, TILE, output, store};
use super::error::TensorError;
use super::layout::Layout;
use super::number::{Number, Wide, with_number};
use super::operand::Operand;
use super::scalar::Scalar;
use super::view::{TensorMut, TensorRef};
use super::walk::Walk;
use crate::dtype::DType;

/// Sums that are formed beside each other, so that none waits for another: as many as fill half of the vector registers
/// that every x86-64 has.
const LANES: usize = 16;

/// The sum of what is made of elements of one row.
#[inline]
fn sum_row<T: Copy, W: Wide>(row: &[T], widen: impl Fn(T) -> W + Copy) -> W {
    let mut lanes = [W::default(); LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for some in whole {
        for (lane, element) in lanes.iter_mut().zip(some) {
            *lane = lane.plus(widen(*element));
        }
    }
    let rest = rest.iter().map(|element| widen(*element));
    lanes.into_iter().chain(rest).fold(W::default(), W::plus)
}

fn sum_all<T: Copy, W: Wide>(from: &[T], layout: &Layout, widen: impl Fn(T) -> W + Copy) -> W {
    let walk = Walk::in_any_order([layout]);
    let ([step], len) = (walk.strides, walk.len);
    let mut sum = W::default();
    walk.rows(|[start]| {
        sum = sum.plus(if step == 1 {
            sum_row(&from[start..start + len], widen)
        } else {
            let elements = (0..len).map(|at| widen(from[start + at * step]));
            elements.fold(W::default(), W::plus)
        });
    });
    sum
}

/// Sums along a dimension of `many` elements that are `apart`; the other dimensions are those of `layout` and of the output.
fn sum_along<T: Copy, W: Wide>(
    from: &[T],
    (layout, many, apart): (&Layout, usize, usize),
    out: &mut TensorMut<'_>,
    widen: impl Fn(T) -> W + Copy,
) -> Result<(), TensorError> {
    let whole = *out.layout();
    let walk = Walk::in_any_order([&whole, layout]);
    let [to_step, from_step] = walk.strides;
    let mut result = Ok(());
    walk.rows(|[to, start]| {
        for first in (0..walk.len).step_by(TILE) {
            let mut tile = [W::default(); TILE];
            let tile = &mut tile[..TILE.min(walk.len - first)];
            let start = start + first * from_step;
            // Of none the sum is 0, and there is no memory to look at.
            if apart == 1 && many > 0 {
                // Each sum's own elements follow one another.
                for (at, sum) in tile.iter_mut().enumerate() {
                    *sum = sum_row(&from[start + at * from_step..][..many], widen);
                }
            } else {
                for step in 0..many {
                    let row = &from[start + step * apart..];
                    for (at, sum) in tile.iter_mut().enumerate() {
                        *sum = sum.plus(widen(row[at * from_step]));
                    }
                }
            }
            let stored = store("sum_dim", tile, out, to + first * to_step, to_step);
            if stored.is_err() {
                result = stored;
            }
        }
    });
    result
}

/// The sum of products of elements, of one dimension and as many both.
fn dot<T: Number>(left: TensorRef<'_>, right: TensorRef<'_>) -> T::Wide {
    let walk = Walk::in_any_order([left.layout(), right.layout()]);
    let (left, right, len) = (left.plain::<T>(), right.plain::<T>(), walk.len);
    let mut sum = T::Wide::default();
    walk.rows(|[a, b]| {
        if walk.strides == [1, 1] {
            let (left, left_rest) = left[a..a + len].as_chunks::<LANES>();
            let (right, right_rest) = right[b..b + len].as_chunks::<LANES>();
            let mut lanes = [T::Wide::default(); LANES];
            for (left, right) in left.iter().zip(right) {
                for ((lane, left), right) in lanes.iter_mut().zip(left).zip(right) {
                    *lane = lane.plus(left.widen().times(right.widen()));
                }
            }
            let rest = left_rest.iter().zip(right_rest);
            let rest = rest.map(|(left, right)| left.widen().times(right.widen()));
            sum = lanes.into_iter().chain(rest).fold(sum, Number::plus);
        } else {
            let [a_step, b_step] = walk.strides;
            for at in 0..len {
                let product = left[a + at * a_step]
                    .widen()
                    .times(right[b + at * b_step].widen());
                sum = sum.plus(product);
            }
        }
    });
    sum
}

/// The type of sums along a dimension: integers are counted in 64 bits, truth values too.
fn sum_dtype(dtype: DType) -> DType {
    match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => DType::I64,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => DType::U64,
        other => other,
    }
}

fn truth(byte: u8) -> u64 {
    u64::from(byte != 0)
}

impl TensorRef<'_> {
    fn unsupported<R>(&self, operation: &'static str) -> Result<R, TensorError> {
        Err(TensorError::Unsupported {
            operation,
            dtype: self.dtype(),
        })
    }

    /// The sum of all elements; of truth values, how many are true. Integers wrap around at 64 bits.
    ///
    /// # Errors
    /// For half precision without the feature `half`.
    pub fn sum(&self) -> Result<Scalar, TensorError> {
        with_number!(
            self.dtype(),
            T => Ok(sum_all(self.plain::<T>(), self.layout(), T::widen).into()),
            else match self.dtype() {
                DType::Bool => Ok(sum_all(self.plain::<u8>(), self.layout(), truth).into()),
                _ => self.unsupported("sum"),
            }
        )
    }

    /// The sums along a dimension, which is then gone. Of integers, and of truth values, they are of 64 bits.
    ///
    /// # Errors
    /// Where there is no such dimension, when there is no memory for it, and for half precision without the feature `half`.
    pub fn sum_dim(&self, dim: usize) -> Result<Tensor, TensorError> {
        let mut out = Tensor::zeros(self.layout().gone(dim)?.shape(), sum_dtype(self.dtype()))?;
        self.sum_dim_into(dim, &mut out)?;
        Ok(out)
    }

    /// The sums along a dimension, into an output. No memory is allocated.
    ///
    /// # Errors
    /// Where there is no such dimension, the output has another type or shape than [`sum_dim`](Self::sum_dim) gives, or it
    /// cannot be written.
    pub fn sum_dim_into(&self, dim: usize, out: &mut impl Output) -> Result<(), TensorError> {
        let layout = self.layout().gone(dim)?;
        let mut out = out.output()?;
        output("sum_dim_into", &out, sum_dtype(self.dtype()), layout.shape())?;
        let along = (&layout, self.shape()[dim], self.strides()[dim]);
        with_number!(
            self.dtype(),
            T => sum_along(self.plain::<T>(), along, &mut out, T::widen),
            else match self.dtype() {
                DType::Bool => sum_along(self.plain::<u8>(), along, &mut out, truth),
                _ => self.unsupported("sum_dim_into"),
            }
        )
    }

    /// The sum of the products of elements of two tensors of one dimension. Complex ones are taken as they are.
    ///
    /// # Errors
    /// Where they have more dimensions than one, another number of elements or another type, and for `bool`.
    pub fn dot<'b>(&self, other: impl Into<Operand<'b>>) -> Result<Scalar, TensorError> {
        let other = other.into();
        other.expect("dot", self.dtype())?;
        let refuse = || TensorError::Shapes {
            operation: "dot",
            left: self.shape().into(),
            right: other.shape().into(),
            rule: "both have to be of one dimension and of the same size",
        };
        let right = other.tensor()?.ok_or_else(refuse)?;
        if self.rank() != 1 || self.shape() != right.shape() {
            return Err(refuse());
        }
        with_number!(
            self.dtype(),
            T => Ok(dot::<T>(*self, right).into()),
            else self.unsupported("dot")
        )
    }
}

/// Sums and products of vectors.
///
/// ```
/// use millpond::{Scalar, Tensor};
///
/// let table = Tensor::from_slice(&[200u8, 100, 30, 4], [2, 2])?;
/// assert_eq!(table.sum()?, Scalar::UInt(334));
/// assert_eq!(table.sum_dim(1)?.to_vec::<u64>()?, [300, 34]);
/// let (row, column) = (table.select(0, 1)?, table.select(1, 0)?);
/// assert_eq!(row.dot(&column)?.to_u64(), Some(30 * 200 + 4 * 30));
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl Tensor {
    /// The sum of all elements; of truth values, how many are true. Integers wrap around at 64 bits.
    ///
    /// # Errors
    /// For half precision without the feature `half`.
    pub fn sum(&self) -> Result<Scalar, TensorError> {
        self.view()?.sum()
    }

    /// The sums along a dimension, which is then gone. Of integers, and of truth values, they are of 64 bits.
    ///
    /// # Errors
    /// Where there is no such dimension, when there is no memory for it, and for half precision without the feature `half`.
    pub fn sum_dim(&self, dim: usize) -> Result<Self, TensorError> {
        self.view()?.sum_dim(dim)
    }

    /// The sums along a dimension, into an output. No memory is allocated.
    ///
    /// # Errors
    /// Where there is no such dimension, the output has another type or shape than [`sum_dim`](Self::sum_dim) gives, or it
    /// cannot be written.
    pub fn sum_dim_into(&self, dim: usize, out: &mut impl Output) -> Result<(), TensorError> {
        self.view()?.sum_dim_into(dim, out)
    }

    /// The sum of the products of elements of two tensors of one dimension. Complex ones are taken as they are.
    ///
    /// # Errors
    /// Where they have more dimensions than one, another number of elements or another type, and for `bool`.
    pub fn dot<'b>(&self, other: impl Into<Operand<'b>>) -> Result<Scalar, TensorError> {
        self.view()?.dot(other)
    }
}
