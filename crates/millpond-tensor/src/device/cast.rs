//! Conversion of elements to another type.

use super::arithmetic::wide_of;
use super::operand::DeviceOutput;
use super::storage::DeviceView;
use super::{DeviceTensor, DeviceTensorMut, DeviceTensorRef};
use crate::cast::cast_into;
use crate::copy::SharedOrCopied;
use crate::elementwise::output;
use crate::error::TensorError;
use millpond_pool::dtype::DType;

fn castable(dtype: DType) -> Result<(), TensorError> {
    if dtype == DType::Bool {
        return Ok(());
    }
    wide_of("cast", dtype).map(|_| ())
}

fn cast(from: DeviceView<'_>, mut out: DeviceTensorMut<'_>) -> Result<(), TensorError> {
    output("cast_into", out.typed_shape(), out.dtype(), from.shape())?;
    if from.dtype() == out.dtype() {
        return out.target().copy(from);
    }
    castable(from.dtype())?;
    castable(out.dtype())?;
    out.target().cast(from)
}

impl DeviceTensor {
    /// Converts the elements to another type, rounded or truncated as on the host. Returns this tensor if the elements already
    /// have the type, otherwise a new tensor with this tensor's pool and stream.
    ///
    /// # Errors
    /// Returns an error if the types cannot be converted or if memory cannot be allocated, and errors of the driver.
    pub fn cast(&self, dtype: DType) -> Result<SharedOrCopied<Self>, TensorError> {
        if dtype == self.dtype() {
            return Ok(SharedOrCopied::Shared(self.clone()));
        }
        castable(self.dtype())?;
        castable(dtype)?;
        let mut out = Self::unwritten(self.queue(), self.shape(), dtype)?;
        cast(self.side(), out.view_mut()?)?;
        Ok(SharedOrCopied::Copied(out))
    }

    cast_into!(self, self.side(), DeviceOutput);
}

impl DeviceTensorRef<'_> {
    cast_into!(self, self.side(), DeviceOutput);
}

impl DeviceTensorMut<'_> {
    cast_into!(self, self.side(), DeviceOutput);
}
