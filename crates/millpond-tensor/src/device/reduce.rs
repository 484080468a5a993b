//! Sums and products of vectors. Shape and strides alone determine the order of additions, so every run returns the
//! same result.

use super::arithmetic::wide_of;
use super::launch::Summand;
use super::operand::{DeviceOperand, DeviceOutput};
use super::storage::Side;
use super::{DeviceTensor, DeviceTensorMut};
use crate::elementwise::output;
use crate::error::TensorError;
use crate::reduce::{sum_dtype, vectors_only};
use crate::scalar::Scalar;
pub(crate) use millpond_cuda::kernels::Wide;
use millpond_pool::dtype::DType;

/// Returns the type in which elements are summed. The sum of truth values is the number of true ones.
fn counted(operation: &'static str, dtype: DType) -> Result<Wide, TensorError> {
    match dtype {
        DType::Bool => Ok(Wide::UInt),
        dtype => wide_of(operation, dtype),
    }
}

fn read(of: Summand<'_>, wide: Wide) -> Result<Scalar, TensorError> {
    let bytes = of.read(wide)?;
    Ok(match wide {
        Wide::Float => f64::from_ne_bytes(bytes).into(),
        Wide::Int => i64::from_ne_bytes(bytes).into(),
        Wide::UInt => u64::from_ne_bytes(bytes).into(),
    })
}

fn sum_dim(of: Side<'_>, dim: usize, mut out: DeviceTensorMut<'_>) -> Result<(), TensorError> {
    let gone = of.layout().gone(dim)?;
    output("sum_dim_into", &out, sum_dtype(of.dtype()), gone.shape())?;
    let wide = counted("sum_dim_into", of.dtype())?;
    let along = (&gone, of.shape()[dim], of.layout().strides()[dim]);
    out.target().sum_dim(wide, of, along)
}

fn factors<'a>(
    operation: &'static str,
    left: Side<'a>,
    other: &DeviceOperand<'a>,
) -> Result<Summand<'a>, TensorError> {
    other.expect(operation, left.dtype(), left.shape())?;
    vectors_only(operation, left.shape(), other.shape(), other.side().is_ok())?;
    // `vectors_only` has refused operands that are not tensors.
    let right = other.side().unwrap_or(left);
    Ok(Summand::products(left, right))
}

macro_rules! sums {
    () => {
        /// Returns the sum of all elements. Waits for the device.
        ///
        /// # Errors
        /// Returns an error for complex numbers, and errors of the driver.
        pub fn sum(&self) -> Result<Scalar, TensorError> {
            let wide = counted("sum", self.dtype())?;
            read(Summand::elements(self.side()), wide)
        }

        /// Writes the sum of all elements to an output without dimensions, on its stream. Allocates nothing and does not wait.
        ///
        /// # Errors
        /// Returns an error if the output does not have the type of the sum (`i64` or `u64` for integers) or has dimensions, and
        /// errors of the driver.
        pub fn sum_into(&self, out: &mut impl DeviceOutput) -> Result<(), TensorError> {
            let mut out = out.output()?;
            output("sum_into", &out, sum_dtype(self.dtype()), &[])?;
            let wide = counted("sum_into", self.dtype())?;
            out.target().sum(wide, Summand::elements(self.side()))
        }

        /// Writes the sums along a dimension to an output, on its stream. Allocates nothing.
        ///
        /// # Errors
        /// Returns an error if there is no such dimension, or if the output has another shape or type, and errors of the driver.
        pub fn sum_dim_into(&self, dim: usize, out: &mut impl DeviceOutput) -> Result<(), TensorError> {
            sum_dim(self.side(), dim, out.output()?)
        }

        /// Returns the product of two vectors. Waits for the device.
        ///
        /// # Errors
        /// Returns an error if types or lengths differ or there are other dimensions, and errors of the driver.
        pub fn dot<'b>(&self, other: impl Into<DeviceOperand<'b>>) -> Result<Scalar, TensorError> {
            let other = other.into();
            let products = factors("dot", self.side(), &other)?;
            read(products, wide_of("dot", self.dtype())?)
        }

        /// Writes the product of two vectors to an output without dimensions, on its stream. Allocates nothing and does
        /// not wait.
        ///
        /// # Errors
        /// Returns an error if types or lengths differ, if there are other dimensions, or if the output does not have
        /// the type of the product, and errors of the driver.
        pub fn dot_into<'b>(
            &self,
            other: impl Into<DeviceOperand<'b>>,
            out: &mut impl DeviceOutput,
        ) -> Result<(), TensorError> {
            let (mut out, other) = (out.output()?, other.into());
            output("dot_into", &out, sum_dtype(self.dtype()), &[])?;
            let products = factors("dot_into", self.side(), &other)?;
            out.target()
                .sum(wide_of("dot_into", self.dtype())?, products)
        }
    };
}

/// Sums, which are computed in `f64`, `i64` or `u64` and converted at the end.
impl DeviceTensor {
    sums!();

    /// Sums along a dimension. Returns a new tensor without the dimension, with this tensor's pool and stream.
    ///
    /// # Errors
    /// Returns an error if there is no such dimension, or if memory cannot be allocated, and errors of the driver.
    pub fn sum_dim(&self, dim: usize) -> Result<Self, TensorError> {
        let gone = self.layout().gone(dim)?;
        counted("sum_dim", self.dtype())?;
        let mut out = Self::unwritten(self.queue(), gone.shape(), sum_dtype(self.dtype()))?;
        sum_dim(self.side(), dim, out.view_mut()?)?;
        Ok(out)
    }
}

/// Sums, as for a [`DeviceTensor`].
impl DeviceTensorMut<'_> {
    sums!();
}
