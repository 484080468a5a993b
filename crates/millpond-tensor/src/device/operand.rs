//! Operands (tensors and numbers) and outputs of operations on a device.

use super::storage::DeviceView;
use super::{DeviceTensor, DeviceTensorMut, DeviceTensorRef};
use crate::error::TensorError;
use crate::operand::{OperandKind, bytes_of, expect_type, numbers};
use crate::scalar::Scalar;
use millpond_pool::dtype::DType;

/// One operand of an operation on a device: a tensor, a view, or a number. Functions accept both `&tensor` and `0.5`.
#[derive(Debug)]
pub struct DeviceOperand<'a>(OperandKind<&'a DeviceTensor, DeviceTensorRef<'a>>);

impl<'a> From<&'a DeviceTensor> for DeviceOperand<'a> {
    fn from(tensor: &'a DeviceTensor) -> Self {
        Self(OperandKind::Tensor(tensor))
    }
}

impl<'a> From<DeviceTensorRef<'a>> for DeviceOperand<'a> {
    fn from(view: DeviceTensorRef<'a>) -> Self {
        Self(OperandKind::View(view))
    }
}

impl<'a> From<&DeviceTensorRef<'a>> for DeviceOperand<'a> {
    fn from(view: &DeviceTensorRef<'a>) -> Self {
        Self(OperandKind::View(*view))
    }
}

impl<'a> From<&'a DeviceTensorMut<'_>> for DeviceOperand<'a> {
    fn from(view: &'a DeviceTensorMut<'_>) -> Self {
        Self(OperandKind::View(view.as_ref()))
    }
}

numbers!(DeviceOperand);

impl<'a> DeviceOperand<'a> {
    /// Returns the tensor's view, or the number as an error.
    pub(super) fn side(&self) -> Result<DeviceView<'a>, Scalar> {
        match self.0 {
            OperandKind::Tensor(tensor) => Ok(tensor.side()),
            OperandKind::View(view) => Ok(view.side()),
            OperandKind::Scalar(scalar) => Err(scalar),
        }
    }

    /// Returns the sizes of its dimensions. A number has none.
    pub(super) fn shape(&self) -> &[usize] {
        match &self.0 {
            OperandKind::Tensor(tensor) => tensor.shape(),
            OperandKind::View(view) => view.shape(),
            OperandKind::Scalar(_) => &[],
        }
    }

    /// Refuses tensors of another type than the first operand's, and numbers that the type cannot represent.
    pub(super) fn expect(
        &self,
        operation: &'static str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<(), TensorError> {
        let found = self.side().map(|side| side.dtype());
        expect_type(operation, (dtype, shape), (found, self.shape()))
    }

    /// Returns a view broadcast to the shape, or the bytes of the number. The type must have been checked.
    pub(super) fn repeated(
        &self,
        operation: &'static str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Result<DeviceView<'a>, [u8; 16]>, TensorError> {
        match self.side() {
            Ok(side) => Ok(Ok(side.with(side.layout().repeat_to(operation, shape)?))),
            Err(value) => Ok(Err(bytes_of(value, dtype)?)),
        }
    }
}

/// An output of an operation: a tensor without other views, or a borrowed view.
pub trait DeviceOutput {
    /// Returns a view to write.
    ///
    /// # Errors
    /// Returns an error if other tensors share the storage, or if elements of this tensor overlap.
    fn output(&mut self) -> Result<DeviceTensorMut<'_>, TensorError>;
}

impl DeviceOutput for DeviceTensor {
    fn output(&mut self) -> Result<DeviceTensorMut<'_>, TensorError> {
        self.view_mut()
    }
}

impl DeviceOutput for DeviceTensorMut<'_> {
    fn output(&mut self) -> Result<DeviceTensorMut<'_>, TensorError> {
        Ok(self.reborrow())
    }
}
