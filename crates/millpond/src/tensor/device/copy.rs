//! Copies: to the host and back, on the device, and what is shared instead where it can be.

use super::operand::DeviceOperand;
use super::{DeviceTensor, DeviceTensorMut};
use crate::device::Device;
use crate::dtype::Element;
use crate::gpu::CudaQueue;
use crate::tensor::Tensor;
use crate::tensor::copy::{Destination, SharedOrCopied};
use crate::tensor::error::TensorError;
use crate::tensor::operand::bytes_of;
use crate::tensor::scalar::Scalar;

/// A tensor of the host's goes to a device by a copy, once which it is there. The host's waits for that.
impl Destination<Tensor> for &CudaQueue {
    type Tensor = DeviceTensor;

    fn bring(self, tensor: &Tensor) -> Result<SharedOrCopied<DeviceTensor>, TensorError> {
        let whole = tensor.to_contiguous()?;
        let bytes = whole.view()?.flat_bytes();
        let copy = DeviceTensor::uploaded(self, tensor.shape(), tensor.dtype(), bytes)?;
        Ok(SharedOrCopied::Copied(copy))
    }
}

/// Back to the host by a copy, which is waited for.
impl Destination<DeviceTensor> for Device {
    type Tensor = Tensor;

    fn bring(self, tensor: &DeviceTensor) -> Result<SharedOrCopied<Tensor>, TensorError> {
        let mut copy = Tensor::zeros_on(self, tensor.shape(), tensor.dtype())?;
        let whole = tensor.to_contiguous()?;
        whole.side().read(copy.view_mut()?.as_mut_bytes()?)?;
        Ok(SharedOrCopied::Copied(copy))
    }
}

/// To another pool or stream: shared on the same device, by way of the host to another.
impl Destination<DeviceTensor> for &CudaQueue {
    type Tensor = DeviceTensor;

    fn bring(self, tensor: &DeviceTensor) -> Result<SharedOrCopied<DeviceTensor>, TensorError> {
        if tensor.queue().device().number() == self.device().number() {
            return Ok(SharedOrCopied::Shared(tensor.clone()));
        }
        let host = tensor.to(Device::Host)?;
        host.to(self)
    }
}

impl DeviceTensor {
    /// The tensor somewhere else, of the kind that is there: a [`Tensor`] for [`Device::Host`]; for a [`CudaQueue`] this one where
    /// it is on that device, with its own pool and stream as before, else a copy.
    ///
    /// # Errors
    /// When there is no memory for a copy, and what the driver says.
    pub fn to<D: Destination<Self>>(&self, destination: D) -> Result<SharedOrCopied<D::Tensor>, TensorError> {
        destination.bring(self)
    }

    /// The elements in order, copied to the host, for which the stream is waited for.
    ///
    /// # Errors
    /// Where they are of another type, and what the driver says.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        crate::tensor::expect(T::DTYPE, self.dtype())?;
        let whole = self.to_contiguous()?;
        let mut elements = vec![T::zeroed(); self.len()];
        whole.side().read(bytemuck::cast_slice_mut(&mut elements))?;
        Ok(elements)
    }

    /// A copy with a storage of its own, of the same pool and stream.
    ///
    /// # Errors
    /// When there is no memory for it, and what the driver says.
    pub fn deep_copy(&self) -> Result<Self, TensorError> {
        let mut copy = Self::unwritten(self.queue(), self.shape(), self.dtype())?;
        copy.view_mut()?.target().copy(self.side())?;
        Ok(copy)
    }

    /// The tensor with elements that follow one another: this one where they do, else a copy.
    ///
    /// # Errors
    /// When there is no memory for a copy, and what the driver says.
    pub fn to_contiguous(&self) -> Result<SharedOrCopied<Self>, TensorError> {
        if self.is_contiguous() {
            return Ok(SharedOrCopied::Shared(self.clone()));
        }
        self.deep_copy().map(SharedOrCopied::Copied)
    }

    /// The same elements in another shape: as a view where there is one, else as a copy.
    ///
    /// # Errors
    /// Where the shape has another number of elements, when there is no memory for a copy, and what the driver says.
    pub fn reshaped(&self, shape: impl AsRef<[usize]>) -> Result<SharedOrCopied<Self>, TensorError> {
        let shape = shape.as_ref();
        match self.reshape(shape) {
            Ok(view) => Ok(SharedOrCopied::Shared(view)),
            Err(TensorError::NotAView { .. }) => {
                let copy = self.deep_copy()?.reshape(shape)?;
                Ok(SharedOrCopied::Copied(copy))
            }
            Err(error) => Err(error),
        }
    }

    /// Overwrites the elements with those of another tensor on the device, repeated where they are fewer, or with a number.
    ///
    /// # Errors
    /// Where types differ or shapes do not go together, where this tensor cannot be [written](Self::view_mut), and what the driver
    /// says.
    pub fn copy_from<'b>(&mut self, source: impl Into<DeviceOperand<'b>>) -> Result<(), TensorError> {
        self.view_mut()?.copy_from(source)
    }

    /// Overwrites the elements with a number, or a truth value.
    ///
    /// # Errors
    /// Where it is none of the elements' type, where the tensor cannot be [written](Self::view_mut), and what the driver says.
    pub fn fill(&mut self, value: impl Into<Scalar>) -> Result<(), TensorError> {
        self.view_mut()?.fill(value)
    }
}

impl DeviceTensorMut<'_> {
    /// The elements in order, copied to the host, for which the stream is waited for.
    ///
    /// # Errors
    /// Where they are of another type, when there is no memory to bring them in order, and what the driver says.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        let side = self.side();
        if !side.layout().is_contiguous() {
            let mut copy = DeviceTensor::unwritten(side.queue(), self.shape(), self.dtype())?;
            copy.view_mut()?.target().copy(side)?;
            return copy.to_vec();
        }
        crate::tensor::expect(T::DTYPE, self.dtype())?;
        let mut elements = vec![T::zeroed(); self.len()];
        side.read(bytemuck::cast_slice_mut(&mut elements))?;
        Ok(elements)
    }

    /// Overwrites the elements with those of another tensor on the device, repeated where they are fewer, or with a number.
    ///
    /// # Errors
    /// Where types differ or shapes do not go together, and what the driver says.
    pub fn copy_from<'b>(&mut self, source: impl Into<DeviceOperand<'b>>) -> Result<(), TensorError> {
        let source = source.into();
        source.expect("copy_from", self.dtype(), self.shape())?;
        match source.repeated("copy_from", self.dtype(), self.shape())? {
            Ok(side) => self.target().copy(side),
            Err(element) => self.target().fill(&element),
        }
    }

    /// Overwrites the elements with a number, or a truth value.
    ///
    /// # Errors
    /// Where it is none of the elements' type, and what the driver says.
    pub fn fill(&mut self, value: impl Into<Scalar>) -> Result<(), TensorError> {
        let element = bytes_of(value.into(), self.dtype())?;
        self.target().fill(&element)
    }
}
