//! Sums and products of vectors. They are accumulated in `f64`, `i64` or `u64` and rounded once at the end.
//!
//! Only the shape and the strides decide the order of additions: a long row is halved until its parts are short, each part is added
//! in lanes, and the halves are added on the way back. A result is therefore the same in every run, for any number of threads and
//! on every processor, and errors grow with the logarithm of the length.

use super::Tensor;
use super::arithmetic::Output;
use super::cast::{TILE, store};
use super::elementwise::{output, refuse};
use super::error::TensorError;
use super::kernel::{self, Kernel};
use super::layout::Layout;
use super::number::{Number, Wide, with_number};
use super::operand::{Operand, ResultOrigin, beside};
use super::scalar::Scalar;
use super::threads;
use super::view::{TensorMut, TensorRef};
use super::walk::Walk;
use millpond_pool::dtype::DType;

/// The number of independent partial sums, so that no addition waits for another.
const LANES: usize = 16;
/// The length up to which a row is not halved: short enough for a part of the cache, and long enough that the cost of halving is
/// negligible.
const SHORT: usize = if cfg!(test) { 1 << 6 } else { 1 << 14 };

/// Returns the index at which a row is halved. The first half is a multiple of `SHORT`.
fn half(len: usize) -> usize {
    (len / 2).next_multiple_of(SHORT).min(len)
}

/// The sum of a function of the elements of one row.
struct SumRow<'a, T, F> {
    row: &'a [T],
    widen: F,
}

impl<T: Copy, W: Wide, F: Fn(T) -> W> Kernel for SumRow<'_, T, F> {
    type Output = W;

    #[inline(always)]
    fn run(self) -> W {
        let mut lanes = [W::default(); LANES];
        let (whole, rest) = self.row.as_chunks::<LANES>();
        for some in whole {
            for (lane, element) in lanes.iter_mut().zip(some) {
                *lane = lane.plus((self.widen)(*element));
            }
        }
        let mut sum = W::default();
        for lane in lanes {
            sum = sum.plus(lane);
        }
        for element in rest {
            sum = sum.plus((self.widen)(*element));
        }
        sum
    }
}

fn sum_row<T: Copy + Sync, W: Wide>(
    row: &[T],
    widen: impl Fn(T) -> W + Copy + Send + Sync,
    parts: usize,
) -> W {
    if row.len() <= SHORT {
        return kernel::run(SumRow { row, widen });
    }
    let (first, second) = row.split_at(half(row.len()));
    let (few, more) = (parts / 2, parts - parts / 2);
    if parts < 2 {
        return sum_row(first, widen, 1).plus(sum_row(second, widen, 1));
    }
    let (one, other) = threads::both(|| sum_row(first, widen, few), || sum_row(second, widen, more));
    one.plus(other)
}

fn sum_all<T: Copy + Sync, W: Wide>(
    from: &[T],
    layout: &Layout,
    widen: impl Fn(T) -> W + Copy + Send + Sync,
) -> W {
    let walk = Walk::in_any_order([layout]);
    let ([step], len) = (walk.strides, walk.len);
    let parts = threads::parts(len * size_of::<T>());
    let mut sum = W::default();
    walk.rows(|[start]| {
        sum = sum.plus(if step == 1 {
            sum_row(&from[start..start + len], widen, parts)
        } else {
            let elements = (0..len).map(|at| widen(from[start + at * step]));
            elements.fold(W::default(), W::plus)
        });
    });
    sum
}

/// Sums along a dimension of `many` elements that are `apart`. The other dimensions are those of `layout` and of the output.
fn sum_along<T: Copy + Sync, W: Wide>(
    from: &[T],
    (layout, many, apart): (&Layout, usize, usize),
    out: &mut TensorMut<'_>,
    widen: impl Fn(T) -> W + Copy + Send + Sync,
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
            // The sum of no elements is 0, and there is no memory to read.
            if apart == 1 && many > 0 {
                // The elements of each sum are contiguous.
                for (at, sum) in tile.iter_mut().enumerate() {
                    *sum = sum_row(&from[start + at * from_step..][..many], widen, 1);
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

/// The sum of products of two rows of the same length.
struct DotRow<'a, T> {
    left: &'a [T],
    right: &'a [T],
}

impl<T: Number> Kernel for DotRow<'_, T> {
    type Output = T::Wide;

    #[inline(always)]
    fn run(self) -> T::Wide {
        let (left, left_rest) = self.left.as_chunks::<LANES>();
        let (right, right_rest) = self.right.as_chunks::<LANES>();
        let mut lanes = [T::Wide::default(); LANES];
        for (left, right) in left.iter().zip(right) {
            for ((lane, left), right) in lanes.iter_mut().zip(left).zip(right) {
                *lane = lane.plus(left.widen().times(right.widen()));
            }
        }
        let mut sum = T::Wide::default();
        for lane in lanes {
            sum = sum.plus(lane);
        }
        for (left, right) in left_rest.iter().zip(right_rest) {
            sum = sum.plus(left.widen().times(right.widen()));
        }
        sum
    }
}

fn dot_row<T: Number>(left: &[T], right: &[T], parts: usize) -> T::Wide {
    if left.len() <= SHORT {
        return kernel::run(DotRow { left, right });
    }
    let at = half(left.len());
    let ((left, left_rest), (right, right_rest)) = (left.split_at(at), right.split_at(at));
    let (few, more) = (parts / 2, parts - parts / 2);
    if parts < 2 {
        return dot_row(left, right, 1).plus(dot_row(left_rest, right_rest, 1));
    }
    let (one, other) = threads::both(
        || dot_row(left, right, few),
        || dot_row(left_rest, right_rest, more),
    );
    one.plus(other)
}

/// Returns the sum of products of elements. Both views have one dimension and the same length.
fn dot_all<T: Number>(left: TensorRef<'_>, right: TensorRef<'_>) -> T::Wide {
    if left.is_contiguous() && right.is_contiguous() {
        let parts = threads::parts(left.len() * size_of::<T>());
        return dot_row(left.flat::<T>(), right.flat::<T>(), parts);
    }
    let walk = Walk::in_any_order([left.layout(), right.layout()]);
    let (left, right, [a_step, b_step]) = (left.plain::<T>(), right.plain::<T>(), walk.strides);
    let mut sum = T::Wide::default();
    walk.rows(|[a, b]| {
        for at in 0..walk.len {
            let product = left[a + at * a_step]
                .widen()
                .times(right[b + at * b_step].widen());
            sum = sum.plus(product);
        }
    });
    sum
}

/// Returns the type of sums along a dimension. Sums of integers and of booleans have 64 bits.
pub(super) fn sum_dtype(dtype: DType) -> DType {
    match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => DType::I64,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => DType::U64,
        other => other,
    }
}

fn truth(byte: u8) -> u64 {
    u64::from(byte != 0)
}

fn sum(of: TensorRef<'_>) -> Result<Scalar, TensorError> {
    with_number!(
        of.dtype(),
        T => Ok(sum_all(of.plain::<T>(), of.layout(), T::widen).into()),
        else match of.dtype() {
            DType::Bool => Ok(sum_all(of.plain::<u8>(), of.layout(), truth).into()),
            dtype => refuse("sum", dtype),
        }
    )
}

fn sum_into(of: TensorRef<'_>, mut out: TensorMut<'_>) -> Result<(), TensorError> {
    output("sum_into", out.typed_shape(), sum_dtype(of.dtype()), &[])?;
    out.fill(sum(of)?)
}

fn sum_dim(of: TensorRef<'_>, dim: usize, mut out: TensorMut<'_>) -> Result<(), TensorError> {
    let out = &mut out;
    let layout = of.layout().gone(dim)?;
    output(
        "sum_dim_into",
        out.typed_shape(),
        sum_dtype(of.dtype()),
        layout.shape(),
    )?;
    let along = (&layout, of.shape()[dim], of.strides()[dim]);
    with_number!(
        of.dtype(),
        T => sum_along(of.plain::<T>(), along, out, T::widen),
        else match of.dtype() {
            DType::Bool => sum_along(of.plain::<u8>(), along, out, truth),
            dtype => refuse("sum_dim_into", dtype),
        }
    )
}

/// Returns an error unless the operands are two vectors of the same length.
pub(super) fn vectors_only(
    operation: &'static str,
    left: &[usize],
    right: &[usize],
    is_tensor: bool,
) -> Result<(), TensorError> {
    if is_tensor && left.len() == 1 && left == right {
        return Ok(());
    }
    Err(TensorError::Shapes {
        operation,
        left: left.into(),
        right: right.into(),
        rule: "both must have one dimension and the same size",
    })
}

fn product(operation: &'static str, left: TensorRef<'_>, other: &Operand<'_>) -> Result<Scalar, TensorError> {
    other.expect(operation, left.dtype(), left.shape())?;
    let right = other.tensor()?;
    vectors_only(operation, left.shape(), other.shape(), right.is_some())?;
    // `vectors_only` has refused operands that are not tensors.
    let right = right.unwrap_or(left);
    with_number!(
        left.dtype(),
        T => Ok(dot_all::<T>(left, right).into()),
        else refuse(operation, left.dtype())
    )
}

fn dot(left: TensorRef<'_>, other: &Operand<'_>) -> Result<Scalar, TensorError> {
    product("dot", left, other)
}

fn dot_into(left: TensorRef<'_>, other: &Operand<'_>, mut out: TensorMut<'_>) -> Result<(), TensorError> {
    output("dot_into", out.typed_shape(), sum_dtype(left.dtype()), &[])?;
    out.fill(product("dot_into", left, other)?)
}

/// Defines the sums and products of vectors, except those that return a new tensor.
macro_rules! sums {
    ($self:ident, $view:expr, $operand:ident, $output:ident) => {
        /// Returns the sum of all elements, or the number of true elements of a `bool` tensor. Integers wrap around at 64 bits. On
        /// a device, waits for the result.
        ///
        /// # Errors
        /// Returns an error for half precision without the feature `half`. On a device, also returns an error for complex numbers,
        /// and errors of the driver.
        pub fn sum(&$self) -> Result<Scalar, TensorError> {
            sum($view)
        }

        /// Writes the sum of all elements to an output without dimensions, of the type that `sum_dim` returns. Allocates nothing.
        ///
        /// # Errors
        /// Returns an error if the output has another type, has dimensions, or cannot be written, and the errors of
        /// [`sum`](Self::sum).
        pub fn sum_into(&$self, out: &mut impl $output) -> Result<(), TensorError> {
            sum_into($view, out.output()?)
        }

        /// Writes the sums along a dimension to an output. Allocates nothing.
        ///
        /// # Errors
        /// Returns an error if the dimension does not exist, if the output has another type or shape than the result of `sum_dim`,
        /// or if it cannot be written.
        pub fn sum_dim_into(&$self, dim: usize, out: &mut impl $output) -> Result<(), TensorError> {
            sum_dim($view, dim, out.output()?)
        }

        /// Returns the sum of the products of elements of two tensors of one dimension. Complex elements are not conjugated. On a
        /// device, waits for the result.
        ///
        /// # Errors
        /// Returns an error if they do not both have one dimension, if their lengths or types differ, and for `bool`.
        /// On a device, also returns an error for complex numbers, and errors of the driver.
        pub fn dot<'b>(&$self, other: impl Into<$operand<'b>>) -> Result<Scalar, TensorError> {
            dot($view, &other.into())
        }

        /// Writes the result of [`dot`](Self::dot) to an output without dimensions, of the type that `sum_dim` returns. Allocates
        /// nothing.
        ///
        /// # Errors
        /// Returns the errors of [`dot`](Self::dot), and an error if the output has another type, has dimensions, or cannot be
        /// written.
        pub fn dot_into<'b>(
            &$self,
            other: impl Into<$operand<'b>>,
            out: &mut impl $output,
        ) -> Result<(), TensorError> {
            dot_into($view, &other.into(), out.output()?)
        }
    };
}

#[cfg(feature = "cuda")]
pub(super) use sums;

macro_rules! sum_to_new {
    ($self:ident, $view:expr) => {
        /// Sums along a dimension. Returns a new tensor of the same [pool](Tensor) without the dimension. Sums of integers and
        /// of booleans have 64 bits.
        ///
        /// # Errors
        /// Returns an error if the dimension does not exist, if memory cannot be allocated, and for half precision without the
        /// feature `half`.
        pub fn sum_dim(&$self, dim: usize) -> Result<Tensor, TensorError> {
            let view = $view;
            let gone = view.layout().gone(dim)?;
            let make = |from: &ResultOrigin| Tensor::zeros_in(from, gone.shape(), sum_dtype(view.dtype()));
            let mut out = beside(view.home(), make)?;
            sum_dim(view, dim, out.view_mut()?)?;
            Ok(out)
        }
    };
}

/// Sums and products of vectors.
///
/// ```
/// use millpond::{DType, Tensor, tensor::Scalar};
///
/// let table = Tensor::from_slice(&[200u8, 100, 30, 4], [2, 2])?;
/// assert_eq!(table.sum()?, Scalar::UInt(334));
/// assert_eq!(table.sum_dim(1)?.to_vec::<u64>()?, [300, 34]);
/// let (row, column) = (table.select(0, 1)?, table.select(1, 0)?);
/// let mut product = Tensor::zeros([], DType::U64)?;
/// row.dot_into(&column, &mut product)?;
/// assert_eq!(product.item()?, Scalar::UInt(30 * 200 + 4 * 30));
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl Tensor {
    sums!(self, self.view()?, Operand, Output);
    sum_to_new!(self, self.view()?);
}

/// Sums and products of vectors, as for a [`Tensor`].
impl TensorRef<'_> {
    sums!(self, *self, Operand, Output);
    sum_to_new!(self, *self);
}
