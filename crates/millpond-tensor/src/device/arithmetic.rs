//! Elementwise operations with a new tensor, with an output, and in place, like those of host tensors.

use super::launch::Summand;
use super::operand::{DeviceOperand, DeviceOutput};
use super::storage::Side;
use super::{DeviceTensor, DeviceTensorMut};
use crate::elementwise::{Binary, output, refuse};
use crate::error::TensorError;
use crate::layout::broadcast;
use crate::number::{Number, with_number};
use crate::operand::bytes_of;
use crate::scalar::Scalar;
pub(crate) use millpond_cuda::kernels::Wide;
use millpond_pool::dtype::DType;

/// Returns the type in which kernels compute with a type. Returns an error if there are no kernels for it.
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
        left: Side<'_>,
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
        left: Side<'_>,
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
        left: Side<'_>,
        right: &DeviceOperand<'_>,
        mut out: DeviceTensorMut<'_>,
    ) -> Result<(), TensorError> {
        let dtype = left.dtype();
        right.expect(operation, dtype, left.shape())?;
        let shape = broadcast(operation, left.shape(), right.shape())?;
        output(operation, &out, dtype, &shape)?;
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

macro_rules! operations {
    ($each:ident) => {
        $each! {
            add add_into Add "The sum of each two elements";
            sub sub_into Sub "The difference of each two elements";
            mul mul_into Mul "The product of each two elements";
            div div_into Div "The quotient of each two elements; of integers without the rest, and never by 0";
            rsub rsub_into SubFrom "The difference the other way round, `other - self`";
            rdiv rdiv_into DivInto "The quotient the other way round, `other / self`; of integers without the rest, and never by 0";
        }
    };
}

macro_rules! news {
    ($($name:ident $into:ident $binary:ident $what:literal;)*) => {
        $(
            #[doc = concat!($what, ", as a new tensor of this one's pool and stream.")]
            ///
            /// # Errors
            /// Returns an error if types differ, if shapes cannot be broadcast, or if memory cannot be allocated, and
            /// errors of the driver.
            pub fn $name<'b>(&self, other: impl Into<DeviceOperand<'b>>) -> Result<Self, TensorError> {
                Binary::$binary.make_there(stringify!($name), self.side(), &other.into())
            }
        )*
    };
}

macro_rules! intos {
    ($($name:ident $into:ident $binary:ident $what:literal;)*) => {
        $(
            #[doc = concat!($what, ", into an output, on its stream. No memory is allocated.")]
            ///
            /// # Errors
            /// Returns an error if types differ, if shapes cannot be broadcast or the output has another shape, or if
            /// the output cannot be written, and errors of the driver.
            pub fn $into<'b>(
                &self,
                other: impl Into<DeviceOperand<'b>>,
                out: &mut impl DeviceOutput,
            ) -> Result<(), TensorError> {
                Binary::$binary.write_there(stringify!($into), self.side(), &other.into(), out.output()?)
            }
        )*

        /// Writes `self + factor * other` to an output, on its stream. Allocates nothing.
        ///
        /// # Errors
        /// Returns an error if types differ, if the factor cannot be represented in the type, if shapes cannot be
        /// broadcast or the output has another shape, or if the output cannot be written, and errors of the driver.
        pub fn add_scaled_into<'b>(
            &self,
            factor: impl Into<Scalar>,
            other: impl Into<DeviceOperand<'b>>,
            out: &mut impl DeviceOutput,
        ) -> Result<(), TensorError> {
            let scaled = Binary::scaled(factor.into(), self.dtype())?;
            scaled.write_there("add_scaled_into", self.side(), &other.into(), out.output()?)
        }
    };
}

/// Elementwise operations, as with a [`Tensor`](crate::Tensor): numbers and smaller shapes are broadcast, and types are
/// never mixed.
///
/// A division of integers by a tensor waits for the device, which first checks that no divisor is 0.
impl DeviceTensor {
    operations!(news);
    operations!(intos);

    /// Returns `self + factor * other` as a new tensor with this tensor's pool and stream.
    ///
    /// # Errors
    /// Returns an error if types differ, if the factor cannot be represented in the type, if shapes cannot be
    /// broadcast, or if memory cannot be allocated, and errors of the driver.
    pub fn add_scaled<'b>(
        &self,
        factor: impl Into<Scalar>,
        other: impl Into<DeviceOperand<'b>>,
    ) -> Result<Self, TensorError> {
        let scaled = Binary::scaled(factor.into(), self.dtype())?;
        scaled.make_there("add_scaled", self.side(), &other.into())
    }
}

/// Elementwise operations, as for a [`DeviceTensor`].
impl DeviceTensorMut<'_> {
    operations!(intos);
}

macro_rules! writes {
    ($self:ident, $view:expr; $($name:ident $binary:ident $what:literal;)*) => {
        $(
            #[doc = concat!($what, " No memory is allocated.")]
            ///
            /// # Errors
            /// Returns an error if types differ, if the other tensor cannot be broadcast to this shape, or if this
            /// tensor cannot be written, and errors of the driver.
            pub fn $name<'b>(&mut $self, other: impl Into<DeviceOperand<'b>>) -> Result<(), TensorError> {
                Binary::$binary.assign_there(stringify!($name), $view, &other.into())
            }
        )*
    };
}

macro_rules! all_writes {
    ($self:ident, $view:expr) => {
        writes! {
            $self, $view;
            add_assign Add "Adds to each element another.";
            sub_assign Sub "Takes from each element another.";
            mul_assign Mul "Multiplies each element with another.";
            div_assign Div "Divides each element by another; integers without the rest, and never by 0.";
            rsub_assign SubFrom "Puts in the place of each element another less it: `self = other - self`.";
            rdiv_assign DivInto "Puts in the place of each element another divided by it, `self = other / self`; integers without the rest, and never by 0.";
        }

        /// Multiplies each element by a number.
        ///
        /// # Errors
        /// Returns an error if the number cannot be represented in the elements' type or if the tensor cannot be
        /// written, and errors of the driver.
        pub fn scal(&mut $self, factor: impl Into<Scalar>) -> Result<(), TensorError> {
            Binary::Mul.assign_there("scal", $view, &factor.into().into())
        }

        /// Adds a multiple of another tensor: `self += factor * other`. Allocates nothing. Both may have strides.
        ///
        /// # Errors
        /// Returns an error if types differ, if the factor cannot be represented in the type, if the other tensor
        /// cannot be broadcast to this shape, or if this tensor cannot be written, and errors of the driver.
        pub fn axpy<'b>(
            &mut $self,
            factor: impl Into<Scalar>,
            other: impl Into<DeviceOperand<'b>>,
        ) -> Result<(), TensorError> {
            let view = $view;
            let scaled = Binary::scaled(factor.into(), view.dtype())?;
            scaled.assign_there("axpy", view, &other.into())
        }
    };
}

/// Operations in place. They require exclusive access: `&mut`, and a storage that no other tensor shares.
impl DeviceTensor {
    all_writes!(self, self.view_mut()?);
}

/// Operations in place.
impl DeviceTensorMut<'_> {
    all_writes!(self, self.reborrow());
}
