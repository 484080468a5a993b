//! Copies from and to the host, and on the device. If possible, tensors share memory instead.

use super::make::IntoQueue;
use super::operand::DeviceOperand;
use super::storage::DeviceStorage;
use super::{DeviceTensor, DeviceTensorMut};
use crate::Tensor;
use crate::copy::{Destination, SharedOrCopied, copies};
use crate::error::TensorError;
use crate::operand::bytes_of;
use crate::scalar::Scalar;
use millpond_cuda::{CudaDevice, CudaQueue};
use millpond_os::device::Device;
use millpond_pool::dtype::Element;

/// Brings a tensor to a device. [Managed memory](millpond_cuda::CudaManaged) is shared. Other memory is copied, and the host waits until
/// the memory has been read. From 16 MiB on, ordinary memory is copied through pinned slots by several threads, as by a
/// [`Staging`](millpond_cuda::Staging).
///
/// If the memory is shared, neither tensor can be written while both exist, and the host waits for the stream when the last tensor on the
/// device is dropped.
impl Destination<Tensor> for &CudaDevice {
    type Tensor = DeviceTensor;

    fn bring(self, tensor: &Tensor) -> Result<SharedOrCopied<DeviceTensor>, TensorError> {
        tensor.to(&self.into_queue()?)
    }
}

/// Brings a tensor to a device, as [`CudaDevice`] does.
impl Destination<Tensor> for &CudaQueue {
    type Tensor = DeviceTensor;

    fn bring(self, tensor: &Tensor) -> Result<SharedOrCopied<DeviceTensor>, TensorError> {
        if let Some(storage) = DeviceStorage::sharing(self, &tensor.storage)? {
            return Ok(SharedOrCopied::Shared(DeviceTensor::of(storage, tensor.layout)));
        }
        let whole = tensor.to_contiguous()?;
        let bytes = whole.view()?.flat_bytes();
        let copy = DeviceTensor::uploaded(self, tensor.shape(), tensor.dtype(), bytes)?;
        Ok(SharedOrCopied::Copied(copy))
    }
}

/// Brings a tensor to the host, and waits for the stream. [Managed memory](millpond_cuda::CudaManaged) is shared. Other memory is copied.
/// From 16 MiB on, several threads copy it through pinned slots.
impl Destination<DeviceTensor> for Device {
    type Tensor = Tensor;

    fn bring(self, tensor: &DeviceTensor) -> Result<SharedOrCopied<Tensor>, TensorError> {
        if self == Device::Host
            && let Some(storage) = tensor.storage.shared_with_host()?
        {
            let layout = tensor.layout;
            return Ok(SharedOrCopied::Shared(Tensor { storage, layout }));
        }
        let mut copy = Tensor::zeros_on(self, tensor.shape(), tensor.dtype())?;
        let whole = tensor.to_contiguous()?;
        whole.side().read(copy.view_mut()?.as_mut_bytes()?)?;
        Ok(SharedOrCopied::Copied(copy))
    }
}

/// Brings a tensor to a device. On the same device, the result shares the storage and keeps its pool and stream. To another device, the
/// elements are copied through the host.
impl Destination<DeviceTensor> for &CudaDevice {
    type Tensor = DeviceTensor;

    fn bring(self, tensor: &DeviceTensor) -> Result<SharedOrCopied<DeviceTensor>, TensorError> {
        tensor.to(&self.into_queue()?)
    }
}

/// Brings a tensor to a device. On the same device, the result shares the storage and keeps its pool and stream. To another device, the
/// elements are copied through the host.
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
    /// Copies the elements, in order, to the host, and waits for the stream.
    ///
    /// # Errors
    /// Returns an error if they are not of type `T`, and errors of the driver.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        crate::expect(T::DTYPE, self.dtype())?;
        let whole = self.to_contiguous()?;
        let mut elements = vec![T::zeroed(); self.len()];
        whole.side().read(bytemuck::cast_slice_mut(&mut elements))?;
        Ok(elements)
    }

    /// Copies the elements to a new tensor of the same pool and stream.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and errors of the driver.
    pub fn deep_copy(&self) -> Result<Self, TensorError> {
        let mut copy = Self::unwritten(self.queue(), self.shape(), self.dtype())?;
        copy.view_mut()?.target().copy(self.side())?;
        Ok(copy)
    }

    copies!(DeviceOperand);
}

impl DeviceTensorMut<'_> {
    /// Copies the elements, in order, to the host, and waits for the stream.
    ///
    /// # Errors
    /// Returns an error if they are not of type `T`, or if memory to reorder them cannot be allocated, and errors of the driver.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        let side = self.side();
        if !side.layout().is_contiguous() {
            let mut copy = DeviceTensor::unwritten(side.queue(), self.shape(), self.dtype())?;
            copy.view_mut()?.target().copy(side)?;
            return copy.to_vec();
        }
        crate::expect(T::DTYPE, self.dtype())?;
        let mut elements = vec![T::zeroed(); self.len()];
        side.read(bytemuck::cast_slice_mut(&mut elements))?;
        Ok(elements)
    }

    /// Overwrites the elements with a number or with the elements of another tensor on the device, broadcast to this shape.
    ///
    /// # Errors
    /// Returns an error if types differ, or if the other shape cannot be broadcast, and errors of the driver.
    pub fn copy_from<'b>(&mut self, source: impl Into<DeviceOperand<'b>>) -> Result<(), TensorError> {
        let source = source.into();
        source.expect("copy_from", self.dtype(), self.shape())?;
        match source.repeated("copy_from", self.dtype(), self.shape())? {
            Ok(side) => self.target().copy(side),
            Err(element) => self.target().fill(&element),
        }
    }

    /// Overwrites the elements with a number or a `bool`.
    ///
    /// # Errors
    /// Returns an error if the elements' type cannot represent it, and errors of the driver.
    pub fn fill(&mut self, value: impl Into<Scalar>) -> Result<(), TensorError> {
        let element = bytes_of(value.into(), self.dtype())?;
        self.target().fill(&element)
    }
}
