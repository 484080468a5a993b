//! Products of matrices and of batches of matrices.
//!
//! With the feature `matrixmultiply`, the library of this name computes products of `f32` and `f64`. All others are computed here,
//! some rows and columns at a time, so that their sums stay in registers and the nearest cache while both matrices are read in
//! order. Integers are accumulated in their own type, which gives the same result as truncation at the end. The other types are
//! accumulated in a wider one.

#[cfg(feature = "matrixmultiply")]
mod gemm;

use super::Tensor;
use super::arithmetic::Output;
use super::elementwise::{output, refuse};
use super::error::TensorError;
use super::kernel::{self, Kernel};
use super::layout::{Dims, Layout, broadcast};
use super::number::{Number, with_number};
use super::operand::{Operand, beside};
use super::threads;
use super::view::{TensorMut, TensorRef};

/// Returns the shape of the product: the broadcast leading dimensions, followed by the two dimensions of the product matrix.
pub(super) fn shape_of(
    operation: &'static str,
    left: &[usize],
    right: &[usize],
) -> Result<Dims, TensorError> {
    let refuse = |rule| TensorError::Shapes {
        operation,
        left: left.into(),
        right: right.into(),
        rule,
    };
    match (left, right) {
        ([many @ .., rows, inner], [others @ .., same, columns]) if inner == same => {
            let rule = "the dimensions before the last two must be equal, or one of them must be 1";
            let many = broadcast(operation, many, others).map_err(|_| refuse(rule))?;
            many.and([*rows, *columns])
        }
        _ => Err(refuse(
            "both must have at least two dimensions, and the first must have as many columns as the second has rows",
        )),
    }
}

/// The number of rows and columns of an output that are computed at a time.
const ROWS: usize = 4;
const COLUMNS: usize = 64;

/// One of two factors: its elements, the offset of the first, and the strides of rows and columns.
#[derive(Clone, Copy)]
struct Factor<'a, T> {
    elements: &'a [T],
    first: usize,
    apart: [usize; 2],
}

impl<'a, T: Number> Factor<'a, T> {
    fn of(view: &TensorRef<'a>) -> Self {
        Self {
            elements: view.plain(),
            first: view.layout().offset(),
            apart: pair(view.strides()),
        }
    }

    #[inline(always)]
    fn at(&self, row: usize, column: usize) -> T {
        self.elements[self.first + row * self.apart[0] + column * self.apart[1]]
    }
}

/// The sums of products for some rows and columns.
struct Tile<'a, T: Number> {
    left: Factor<'a, T>,
    right: Factor<'a, T>,
    inner: usize,
    /// The first row and column, and the numbers of rows and columns.
    from: [usize; 2],
    many: [usize; 2],
}

impl<T: Number> Kernel for Tile<'_, T> {
    type Output = [[T::Sum; COLUMNS]; ROWS];

    #[inline(always)]
    fn run(self) -> Self::Output {
        let mut sums = [[T::Sum::default(); COLUMNS]; ROWS];
        let mut row = [T::Sum::default(); COLUMNS];
        let [first, start] = self.from;
        let [rows, columns] = self.many;
        for at in 0..self.inner {
            if self.right.apart[1] == 1 {
                let place = self.right.first + at * self.right.apart[0] + start;
                let elements = &self.right.elements[place..place + columns];
                for (cell, element) in row.iter_mut().zip(elements) {
                    *cell = element.summand();
                }
            } else {
                for (column, cell) in row[..columns].iter_mut().enumerate() {
                    *cell = self.right.at(at, start + column).summand();
                }
            }
            for (sums, add) in sums[..rows].iter_mut().zip(0..) {
                let factor = self.left.at(first + add, at).summand();
                for (sum, cell) in sums.iter_mut().zip(&row) {
                    *sum = sum.plus(factor.times(*cell));
                }
            }
        }
        sums
    }
}

fn plain<T: Number>(left: &TensorRef<'_>, right: &TensorRef<'_>, out: &mut TensorMut<'_>) {
    let ([height, width], inner) = (pair(out.shape()), right.shape()[0]);
    let ([row_step, column_step], origin) = (pair(out.strides()), out.layout().offset());
    let (left, right) = (Factor::<T>::of(left), Factor::<T>::of(right));
    let out = out.plain_mut::<T>();
    // The rows are the inner loop, because these columns of the second matrix then stay in a cache.
    for start in (0..width).step_by(COLUMNS) {
        for first in (0..height).step_by(ROWS) {
            let many = [ROWS.min(height - first), COLUMNS.min(width - start)];
            let from = [first, start];
            let sums = kernel::run(Tile {
                left,
                right,
                inner,
                from,
                many,
            });
            for (row, sums) in sums[..many[0]].iter().enumerate() {
                let place = origin + (first + row) * row_step + start * column_step;
                for (column, sum) in sums[..many[1]].iter().enumerate() {
                    out[place + column * column_step] = T::of_sum(*sum);
                }
            }
        }
    }
}

/// Computes one product on one thread.
fn one(left: &TensorRef<'_>, right: &TensorRef<'_>, out: &mut TensorMut<'_>) -> Result<(), TensorError> {
    #[cfg(feature = "matrixmultiply")]
    if gemm::multiply(*left, *right, out) {
        return Ok(());
    }
    with_number!(
        left.dtype(),
        T => {
            plain::<T>(left, right, out);
            Ok(())
        },
        else refuse("matmul", left.dtype())
    )
}

/// The number of multiplications below which a product uses one thread.
const LEAST: usize = if cfg!(test) { 1 << 6 } else { 1 << 20 };

/// Computes one product, with its rows or columns in at most `parts` parallel parts.
fn product(
    left: TensorRef<'_>,
    right: TensorRef<'_>,
    mut out: TensorMut<'_>,
    parts: usize,
) -> Result<(), TensorError> {
    let [rows, columns] = pair(out.shape());
    let dim = usize::from(rows < columns);
    let at = out.shape()[dim] / 2;
    if parts < 2 || at == 0 || out.reborrow().split_at(dim, at).is_err() {
        return one(&left, &right, &mut out);
    }
    let (first, second) = out.split_at(dim, at)?;
    let [(left, left_rest), (right, right_rest)] = if dim == 0 {
        [(left.slice(0, ..at)?, left.slice(0, at..)?), (right, right)]
    } else {
        [(left, left), (right.slice(1, ..at)?, right.slice(1, at..)?)]
    };
    let (fewer, more) = (parts / 2, parts - parts / 2);
    let (one, other) = threads::both(
        || product(left, right, first, fewer),
        || product(left_rest, right_rest, second, more),
    );
    one.and(other)
}

/// Computes a product of matrices for each index of the dimensions before the last two.
fn products(
    left: TensorRef<'_>,
    right: TensorRef<'_>,
    out: TensorMut<'_>,
    parts: usize,
) -> Result<(), TensorError> {
    if out.rank() == 2 {
        return product(left, right, out, parts);
    }
    match out.shape()[0] {
        0 => Ok(()),
        1 => products(left.select(0, 0)?, right.select(0, 0)?, out.select(0, 0)?, parts),
        many => {
            let at = many / 2;
            let (left, left_rest) = (left.slice(0, ..at)?, left.slice(0, at..)?);
            let (right, right_rest) = (right.slice(0, ..at)?, right.slice(0, at..)?);
            let mut out = out;
            let few = parts / 2;
            if parts > 1 && out.reborrow().split_at(0, at).is_ok() {
                let (first, second) = out.split_at(0, at)?;
                let (one, other) = threads::both(
                    || products(left, right, first, few),
                    || products(left_rest, right_rest, second, parts - few),
                );
                return one.and(other);
            }
            products(left, right, out.reborrow().slice(0, ..at)?, parts)?;
            products(left_rest, right_rest, out.slice(0, at..)?, parts)
        }
    }
}

/// Returns a factor of two dimensions or more whose leading dimensions are broadcast to those of the product's shape.
pub(super) fn batched(
    operation: &'static str,
    layout: &Layout,
    shape: &[usize],
) -> Result<Layout, TensorError> {
    let last = &layout.shape()[layout.rank() - 2..];
    let whole = Dims::of(&shape[..shape.len() - 2])?.and(pair(last))?;
    layout.repeat_to(operation, &whole)
}

fn multiply(
    operation: &'static str,
    left: TensorRef<'_>,
    other: &Operand<'_>,
    mut out: TensorMut<'_>,
) -> Result<(), TensorError> {
    let shape = shape_of(operation, left.shape(), other.shape())?;
    other.expect(operation, left.dtype(), left.shape())?;
    output(operation, out.typed_shape(), left.dtype(), &shape)?;
    // `shape_of` has refused numbers.
    let Some(right) = other.tensor()? else {
        return Ok(());
    };
    let inner = left.shape()[left.rank() - 1];
    let parts = match out.len().saturating_mul(inner) / LEAST {
        0 | 1 => 1,
        pays => threads::threads().min(pays),
    };
    // The products of many matrices with a single one are computed as one product of a matrix with more rows.
    if left.rank() > 2 && right.rank() == 2 && !out.is_empty() {
        let rows = out.len() / right.shape()[1];
        let tall = (
            left.reshape([rows, inner]),
            out.reborrow().reshape([rows, right.shape()[1]]),
        );
        if let (Ok(left), Ok(out)) = tall {
            return product(left, right, out, parts);
        }
    }
    let like = |view: TensorRef<'_>| batched(operation, view.layout(), &shape);
    let (left, right) = (left.with(like(left)?), right.with(like(right)?));
    products(left, right, out, parts)
}

/// Returns the two numbers of a matrix's dimensions.
fn pair(numbers: &[usize]) -> [usize; 2] {
    [numbers[0], numbers[1]]
}

macro_rules! matmul_into {
    ($self:ident, $view:expr, $operand:ident, $output:ident) => {
        /// Writes the product to an output. Allocates nothing from a pool, except that on a device the workspace of cuBLAS is
        /// allocated one time for each queue. With the feature `matrixmultiply`, that library allocates memory for parts of `f32`
        /// and `f64` matrices from the program's allocator.
        ///
        /// # Errors
        /// Returns an error if the operands are not matrices, if their sizes or types do not match, or if the output has another
        /// shape or cannot be written, and errors of the device.
        pub fn matmul_into<'b>(
            &$self,
            other: impl Into<$operand<'b>>,
            out: &mut impl $output,
        ) -> Result<(), TensorError> {
            multiply("matmul_into", $view, &other.into(), out.output()?)
        }
    };
}

#[cfg(feature = "cuda")]
pub(super) use matmul_into;

macro_rules! matmul {
    ($self:ident, $view:expr) => {
        /// Returns the product of two matrices as a new tensor of the first operand's [pool](Tensor). If tensors have more than two
        /// dimensions, the last two are those of the matrices. The dimensions before them are broadcast as in [`add`](Self::add),
        /// and each pair of matrices is multiplied.
        ///
        /// # Errors
        /// Returns an error if the operands are not matrices, if their sizes or types do not match, or if memory cannot be
        /// allocated.
        pub fn matmul<'b>(&$self, other: impl Into<Operand<'b>>) -> Result<Tensor, TensorError> {
            let (view, other) = ($view, other.into());
            let shape = shape_of("matmul", view.shape(), other.shape())?;
            other.expect("matmul", view.dtype(), view.shape())?;
            let home = view.home().or(other.home());
            let mut out = beside(home, |from| Tensor::zeros_in(from, &*shape, view.dtype()))?;
            multiply("matmul", view, &other, out.view_mut()?)?;
            Ok(out)
        }
    };
}

/// Products of matrices.
///
/// ```
/// use millpond::{DType, Tensor};
///
/// let weights = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
/// let mut out = Tensor::zeros([2, 2], DType::F32)?;
/// weights.matmul_into(&weights.transpose(0, 1)?, &mut out)?;
/// assert_eq!(out.as_slice::<f32>()?, [14.0, 32.0, 32.0, 77.0]);
/// assert!(weights.matmul(&weights).unwrap_err().to_string().starts_with("matmul: shapes [2, 3] and [2, 3]"));
///
/// let many = Tensor::ones([10, 1, 4, 2], DType::F32)?;
/// assert_eq!(many.matmul(&Tensor::ones([7, 2, 3], DType::F32)?)?.shape(), [10, 7, 4, 3]);
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl Tensor {
    matmul!(self, self.view()?);
    matmul_into!(self, self.view()?, Operand, Output);
}

/// Products of matrices, as for a [`Tensor`].
impl TensorRef<'_> {
    matmul!(self, *self);
    matmul_into!(self, *self, Operand, Output);
}
