//! Elementwise operations with a new tensor, with an output, and in place, like those of host tensors.

use super::launch::Summand;
use super::operand::{DeviceOperand, DeviceOutput};
use super::storage::DeviceView;
use super::{DeviceTensor, DeviceTensorMut, DeviceTensorRef};
use crate::arithmetic::{operations, operations_in_place, operations_to_new, operations_to_output};
use crate::elementwise::{Binary, output, refuse};
use crate::error::TensorError;
use crate::layout::broadcast;
use crate::number::{Number, with_number};
use crate::operand::bytes_of;
use crate::scalar::Scalar;
pub(crate) use millpond_cuda::kernels::Wide;
use millpond_pool::dtype::DType;

/// Returns the type in which kernels compute with elements of a type. Returns an error if there are no kernels for it.
pub(super) fn wide_of(operation: &'static str, dtype: DType) -> Result<Wide, TensorError> {
    with_number!(
        dtype,
        T => match dtype {
            DType::Complex64 | DType::Complex128 => refuse(operation, dtype),
            _ if !T::INTEGER => Ok(Wide::Float),
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => Ok(Wide::Int),
            _ => Ok(Wide::UInt),
        },
        else refuse(operation, dtype)
    )
}

impl Binary {
    /// Returns the number of the operation in the kernels and the bytes of its factor.
    fn code(self, dtype: DType) -> Result<(u32, [u8; 16]), TensorError> {
        let code = match self {
            Self::Add => 0,
            Self::Sub => 1,
            Self::Mul => 2,
            Self::Div => 3,
            Self::SubFrom => 4,
            Self::DivInto => 5,
            Self::AddScaled(factor) => return Ok((6, bytes_of(factor, dtype)?)),
        };
        Ok((code, [0; 16]))
    }

    /// Refuses to divide integers by 0. A tensor of divisors is searched on the device, and the host waits for the
    /// result.
    fn check_divisors(
        self,
        operation: &'static str,
        left: DeviceView<'_>,
        right: &DeviceOperand<'_>,
    ) -> Result<(), TensorError> {
        let wide = wide_of(operation, left.dtype())?;
        let zero = match self.divisor(Ok(left), right.side()) {
            Some(Ok(divisors)) if wide != Wide::Float => Summand::zeros(divisors).read(wide)? != [0; 8],
            Some(Err(divisor)) if wide != Wide::Float => divisor.to_i64() == Some(0),
            _ => false,
        };
        if zero {
            return Err(TensorError::DivisionByZero { operation });
        }
        Ok(())
    }

    fn make_there(
        self,
        operation: &'static str,
        left: DeviceView<'_>,
        right: &DeviceOperand<'_>,
    ) -> Result<DeviceTensor, TensorError> {
        right.expect(operation, left.dtype(), left.shape())?;
        wide_of(operation, left.dtype())?;
        let shape = broadcast(operation, left.shape(), right.shape())?;
        let mut out = DeviceTensor::unwritten(left.queue(), &shape, left.dtype())?;
        self.write_there(operation, left, right, out.view_mut()?)?;
        Ok(out)
    }

    fn write_there(
        self,
        operation: &'static str,
        left: DeviceView<'_>,
        right: &DeviceOperand<'_>,
        mut out: DeviceTensorMut<'_>,
    ) -> Result<(), TensorError> {
        let dtype = left.dtype();
        right.expect(operation, dtype, left.shape())?;
        let shape = broadcast(operation, left.shape(), right.shape())?;
        output(operation, out.typed_shape(), dtype, &shape)?;
        self.check_divisors(operation, left, right)?;
        let (code, factor) = self.code(dtype)?;
        let left = left.with(left.layout().repeat_to(operation, &shape)?);
        let right = right.repeated(operation, dtype, &shape)?;
        out.target().binary(code, Some(left), right, &factor)
    }

    fn assign_there(
        self,
        operation: &'static str,
        mut out: DeviceTensorMut<'_>,
        right: &DeviceOperand<'_>,
    ) -> Result<(), TensorError> {
        let dtype = out.dtype();
        right.expect(operation, dtype, out.shape())?;
        let repeated = right.repeated(operation, dtype, out.shape())?;
        self.check_divisors(operation, out.side(), right)?;
        let (code, factor) = self.code(dtype)?;
        out.target().binary(code, None, repeated, &factor)
    }
}

/// Elementwise operations, as with a [`Tensor`](crate::Tensor): numbers and smaller shapes are broadcast, and types are
/// never mixed.
///
/// A division of integers by a tensor waits for the device, which first checks that no divisor is 0. Operations with an output
/// run on its stream.
impl DeviceTensor {
    operations!(operations_to_new(
        self,
        self.side(),
        DeviceOperand,
        Self,
        make_there,
        "this one's pool and stream"
    ));
    operations!(operations_to_output(
        self,
        self.side(),
        DeviceOperand,
        DeviceOutput,
        write_there
    ));
}

/// Elementwise operations, as for a [`DeviceTensor`].
impl DeviceTensorRef<'_> {
    operations!(operations_to_new(
        self,
        self.side(),
        DeviceOperand,
        DeviceTensor,
        make_there,
        "the queue's pool and stream"
    ));
    operations!(operations_to_output(
        self,
        self.side(),
        DeviceOperand,
        DeviceOutput,
        write_there
    ));
}

/// Elementwise operations, as for a [`DeviceTensor`].
impl DeviceTensorMut<'_> {
    operations!(operations_to_output(
        self,
        self.side(),
        DeviceOperand,
        DeviceOutput,
        write_there
    ));
}

/// Operations in place. They require exclusive access: `&mut`, and a storage that no other tensor shares.
impl DeviceTensor {
    operations!(operations_in_place(
        self,
        self.view_mut()?,
        DeviceOperand,
        assign_there
    ));
}

/// Operations in place.
impl DeviceTensorMut<'_> {
    operations!(operations_in_place(
        self,
        self.reborrow(),
        DeviceOperand,
        assign_there
    ));
}
