//! Products of matrices, and of many at once.

use super::arithmetic::wide_of;
use super::operand::{DeviceOperand, DeviceOutput};
use super::storage::Side;
use super::{DeviceTensor, DeviceTensorMut};
use crate::tensor::elementwise::output;
use crate::tensor::error::TensorError;
use crate::tensor::matmul::{batched, shape_of};

fn multiply(
    operation: &'static str,
    left: Side<'_>,
    other: &DeviceOperand<'_>,
    mut out: DeviceTensorMut<'_>,
) -> Result<(), TensorError> {
    let shape = shape_of(operation, left.shape(), other.shape())?;
    other.expect(operation, left.dtype(), left.shape())?;
    output(operation, &out, left.dtype(), &shape)?;
    wide_of(operation, left.dtype())?;
    // `shape_of` has refused numbers.
    let Ok(right) = other.side() else {
        return Ok(());
    };
    let repeated = |side: Side<'_>| batched(operation, side.layout(), &shape);
    let (left, right) = (left.with(repeated(left)?), right.with(repeated(right)?));
    out.target().matmul(left, right)
}

macro_rules! into {
    () => {
        /// The product of two matrices, into an output, on its stream. No memory is allocated, but once for a queue what
        /// [cuBLAS](crate::cuda::CudaQueue::matmul_backend) works in.
        ///
        /// # Errors
        /// Where they are none, their sizes do not go together, the output has another or cannot be written, where types differ, and what
        /// the driver says.
        pub fn matmul_into<'b>(
            &self,
            other: impl Into<DeviceOperand<'b>>,
            out: &mut impl DeviceOutput,
        ) -> Result<(), TensorError> {
            multiply("matmul_into", self.side(), &other.into(), out.output()?)
        }
    };
}

/// Products of matrices, by [cuBLAS](crate::cuda::CudaQueue::matmul_backend) where it is there, else by tiles in the device's shared
/// memory. Singles and doubles are added up in their own type, halves in single precision.
impl DeviceTensor {
    /// Returns the product of two matrices as a new tensor with this tensor's pool and stream. If tensors have more than two
    /// dimensions, the last two are those of the matrices. The dimensions before them go together as in [`add`](Self::add), and
    /// each pair of matrices is multiplied.
    ///
    /// # Errors
    /// Where they are none, their sizes do not go together or types differ, when there is no memory for it, and what the driver says.
    pub fn matmul<'b>(&self, other: impl Into<DeviceOperand<'b>>) -> Result<Self, TensorError> {
        let other = other.into();
        let shape = shape_of("matmul", self.shape(), other.shape())?;
        other.expect("matmul", self.dtype(), self.shape())?;
        wide_of("matmul", self.dtype())?;
        let mut out = Self::unwritten(self.queue(), &shape, self.dtype())?;
        multiply("matmul", self.side(), &other, out.view_mut()?)?;
        Ok(out)
    }

    into!();
}

/// Products of matrices, as of a [`DeviceTensor`].
impl DeviceTensorMut<'_> {
    into!();
}
