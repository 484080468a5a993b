//! Products of single matrices and of batches of matrices.

use super::arithmetic::wide_of;
use super::operand::{DeviceOperand, DeviceOutput};
use super::storage::DeviceView;
use super::{DeviceTensor, DeviceTensorMut, DeviceTensorRef};
use crate::elementwise::output;
use crate::error::TensorError;
use crate::matmul::{batched, matmul_into, shape_of};

fn multiply(
    operation: &'static str,
    left: DeviceView<'_>,
    other: &DeviceOperand<'_>,
    mut out: DeviceTensorMut<'_>,
) -> Result<(), TensorError> {
    let shape = shape_of(operation, left.shape(), other.shape())?;
    other.expect(operation, left.dtype(), left.shape())?;
    output(operation, out.typed_shape(), left.dtype(), &shape)?;
    wide_of(operation, left.dtype())?;
    // `shape_of` has refused numbers.
    let Ok(right) = other.side() else {
        return Ok(());
    };
    let repeated = |side: DeviceView<'_>| batched(operation, side.layout(), &shape);
    let (left, right) = (left.with(repeated(left)?), right.with(repeated(right)?));
    out.target().matmul(left, right)
}

/// Products of matrices, by [cuBLAS](millpond_cuda::CudaQueue::matmul_backend) if it is available, and otherwise by tiles
/// in the device's shared memory. Sums of singles and doubles are computed in their own type, and those of halves in
/// single precision.
impl DeviceTensor {
    /// Returns the product of two matrices as a new tensor with this tensor's pool and stream. If tensors have more
    /// than two dimensions, the last two are those of the matrices. The dimensions before them are broadcast as in
    /// [`add`](Self::add), and each pair of matrices is multiplied.
    ///
    /// # Errors
    /// Returns an error if an operand is not a matrix, if the sizes do not match, if types differ, or if memory cannot
    /// be allocated, and errors of the driver.
    pub fn matmul<'b>(&self, other: impl Into<DeviceOperand<'b>>) -> Result<Self, TensorError> {
        let other = other.into();
        let shape = shape_of("matmul", self.shape(), other.shape())?;
        other.expect("matmul", self.dtype(), self.shape())?;
        wide_of("matmul", self.dtype())?;
        let mut out = Self::unwritten(self.queue(), &shape, self.dtype())?;
        multiply("matmul", self.side(), &other, out.view_mut()?)?;
        Ok(out)
    }

    matmul_into!(self, self.side(), DeviceOperand, DeviceOutput);
}

/// Products of matrices, as for a [`DeviceTensor`].
impl DeviceTensorRef<'_> {
    matmul_into!(self, self.side(), DeviceOperand, DeviceOutput);
}

/// Products of matrices, as for a [`DeviceTensor`].
impl DeviceTensorMut<'_> {
    matmul_into!(self, self.side(), DeviceOperand, DeviceOutput);
}
