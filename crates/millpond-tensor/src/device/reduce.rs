//! Sums and products of vectors. Shape and strides alone determine the order of additions, so every run returns the
//! same result.

use super::arithmetic::wide_of;
use super::launch::Summand;
use super::operand::{DeviceOperand, DeviceOutput};
use super::storage::DeviceView;
use super::{DeviceTensor, DeviceTensorMut, DeviceTensorRef};
use crate::elementwise::output;
use crate::error::TensorError;
use crate::reduce::{sum_dtype, sums, vectors_only};
use crate::scalar::Scalar;
pub(crate) use millpond_cuda::kernels::Wide;
use millpond_pool::dtype::DType;

/// Returns the type in which elements are summed. The sum of booleans is the number of true ones.
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

fn sum_dim(of: DeviceView<'_>, dim: usize, mut out: DeviceTensorMut<'_>) -> Result<(), TensorError> {
    let gone = of.layout().gone(dim)?;
    output(
        "sum_dim_into",
        out.typed_shape(),
        sum_dtype(of.dtype()),
        gone.shape(),
    )?;
    let wide = counted("sum_dim_into", of.dtype())?;
    let along = (&gone, of.shape()[dim], of.layout().strides()[dim]);
    out.target().sum_dim(wide, of, along)
}

fn factors<'a>(
    operation: &'static str,
    left: DeviceView<'a>,
    other: &DeviceOperand<'a>,
) -> Result<Summand<'a>, TensorError> {
    other.expect(operation, left.dtype(), left.shape())?;
    vectors_only(operation, left.shape(), other.shape(), other.side().is_ok())?;
    // `vectors_only` has refused operands that are not tensors.
    let right = other.side().unwrap_or(left);
    Ok(Summand::products(left, right))
}

fn sum(of: DeviceView<'_>) -> Result<Scalar, TensorError> {
    let wide = counted("sum", of.dtype())?;
    read(Summand::elements(of), wide)
}

fn sum_into(of: DeviceView<'_>, mut out: DeviceTensorMut<'_>) -> Result<(), TensorError> {
    output("sum_into", out.typed_shape(), sum_dtype(of.dtype()), &[])?;
    let wide = counted("sum_into", of.dtype())?;
    out.target().sum(wide, Summand::elements(of))
}

fn dot(left: DeviceView<'_>, other: &DeviceOperand<'_>) -> Result<Scalar, TensorError> {
    let products = factors("dot", left, other)?;
    read(products, wide_of("dot", left.dtype())?)
}

fn dot_into(
    left: DeviceView<'_>,
    other: &DeviceOperand<'_>,
    mut out: DeviceTensorMut<'_>,
) -> Result<(), TensorError> {
    output("dot_into", out.typed_shape(), sum_dtype(left.dtype()), &[])?;
    let products = factors("dot_into", left, other)?;
    out.target().sum(wide_of("dot_into", left.dtype())?, products)
}

/// Sums, which are computed in `f64`, `i64` or `u64` and converted at the end.
impl DeviceTensor {
    sums!(self, self.side(), DeviceOperand, DeviceOutput);

    /// Sums along a dimension. Returns a new tensor without the dimension, with this tensor's pool and stream.
    ///
    /// # Errors
    /// Returns an error if the dimension does not exist, or if memory cannot be allocated, and errors of the
    /// driver.
    pub fn sum_dim(&self, dim: usize) -> Result<Self, TensorError> {
        let gone = self.layout().gone(dim)?;
        counted("sum_dim", self.dtype())?;
        let mut out = Self::unwritten(self.queue(), gone.shape(), sum_dtype(self.dtype()))?;
        sum_dim(self.side(), dim, out.view_mut()?)?;
        Ok(out)
    }
}

/// Sums, as for a [`DeviceTensor`].
impl DeviceTensorRef<'_> {
    sums!(self, self.side(), DeviceOperand, DeviceOutput);
}

/// Sums, as for a [`DeviceTensor`].
impl DeviceTensorMut<'_> {
    sums!(self, self.side(), DeviceOperand, DeviceOutput);
}
