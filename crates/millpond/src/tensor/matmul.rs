//! Products of matrices.

#[cfg(feature = "matrixmultiply")]
mod gemm;

use super::Tensor;
use super::arithmetic::{Output, TILE, output, store};
use super::error::TensorError;
use super::number::{Number, with_number};
use super::operand::Operand;
use super::view::{TensorMut, TensorRef};

/// The shape of the product, and how many elements are added up for each of its own.
fn shapes(
    operation: &'static str,
    left: &[usize],
    right: &[usize],
) -> Result<([usize; 2], usize), TensorError> {
    match (left, right) {
        ([rows, inner], [same, columns]) if inner == same => Ok(([*rows, *columns], *inner)),
        _ => Err(TensorError::Shapes {
            operation,
            left: left.into(),
            right: right.into(),
            rule: "both have to be of two dimensions, the first one's columns as many as the second one's rows",
        }),
    }
}

/// Row by row, some columns at a time, so that elements of both are read in order and sums stay in registers.
fn plain<T: Number>(
    left: TensorRef<'_>,
    right: TensorRef<'_>,
    inner: usize,
    out: &mut TensorMut<'_>,
) -> Result<(), TensorError> {
    let (a, b) = (left.plain::<T>(), right.plain::<T>());
    let (a_place, b_place, to) = (*left.layout(), *right.layout(), *out.layout());
    let ([rows, columns], step) = ([to.shape()[0], to.shape()[1]], b_place.strides()[1]);
    for row in 0..rows {
        for first in (0..columns).step_by(TILE) {
            let mut tile = [T::Wide::default(); TILE];
            let tile = &mut tile[..TILE.min(columns - first)];
            for at in 0..inner {
                let factor = a[a_place.place(&[row, at])?].widen();
                let b = &b[b_place.place(&[at, first])?..];
                for (column, sum) in tile.iter_mut().enumerate() {
                    *sum = sum.plus(factor.times(b[column * step].widen()));
                }
            }
            store("matmul", tile, out, to.place(&[row, first])?, to.strides()[1])?;
        }
    }
    Ok(())
}

fn multiply(
    left: TensorRef<'_>,
    right: TensorRef<'_>,
    inner: usize,
    out: &mut TensorMut<'_>,
) -> Result<(), TensorError> {
    #[cfg(feature = "matrixmultiply")]
    if gemm::multiply(left, right, out) {
        return Ok(());
    }
    with_number!(
        left.dtype(),
        T => plain::<T>(left, right, inner, out),
        else Err(TensorError::Unsupported { operation: "matmul", dtype: left.dtype() })
    )
}

impl TensorRef<'_> {
    /// The product of two matrices, as a new tensor.
    ///
    /// # Errors
    /// Where they are none, their sizes do not go together or types differ, and when there is no memory for it.
    pub fn matmul<'b>(&self, other: impl Into<Operand<'b>>) -> Result<Tensor, TensorError> {
        let other = other.into();
        let (shape, _) = shapes("matmul", self.shape(), other.shape())?;
        other.expect("matmul", self.dtype())?;
        let mut out = Tensor::zeros(shape, self.dtype())?;
        self.matmul_into(other, &mut out)?;
        Ok(out)
    }

    /// The product of two matrices, into an output. No memory of a pool is allocated; with the feature `matrixmultiply`
    /// that library takes room for parts of `f32` and `f64` matrices from the program's allocator.
    ///
    /// # Errors
    /// Where they are none, their sizes do not go together, the output has another or cannot be written, and where types
    /// differ.
    pub fn matmul_into<'b>(
        &self,
        other: impl Into<Operand<'b>>,
        out: &mut impl Output,
    ) -> Result<(), TensorError> {
        let (operation, other) = ("matmul_into", other.into());
        let (shape, inner) = shapes(operation, self.shape(), other.shape())?;
        other.expect(operation, self.dtype())?;
        let mut out = out.output()?;
        output(operation, &out, self.dtype(), &shape)?;
        match other.tensor()? {
            Some(other) => multiply(*self, other, inner, &mut out),
            // A number has no two dimensions.
            None => Ok(()),
        }
    }
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
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl Tensor {
    /// The product of two matrices, as a new tensor.
    ///
    /// # Errors
    /// Where they are none, their sizes do not go together or types differ, and when there is no memory for it.
    pub fn matmul<'b>(&self, other: impl Into<Operand<'b>>) -> Result<Self, TensorError> {
        self.view()?.matmul(other)
    }

    /// The product of two matrices, into an output. No memory of a pool is allocated; with the feature `matrixmultiply`
    /// that library takes room for parts of `f32` and `f64` matrices from the program's allocator.
    ///
    /// # Errors
    /// Where they are none, their sizes do not go together, the output has another or cannot be written, and where types
    /// differ.
    pub fn matmul_into<'b>(
        &self,
        other: impl Into<Operand<'b>>,
        out: &mut impl Output,
    ) -> Result<(), TensorError> {
        self.view()?.matmul_into(other, out)
    }
}
