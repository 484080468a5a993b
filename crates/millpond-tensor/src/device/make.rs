//! Constructors of tensors on a device.

use super::DeviceTensor;
use super::storage::DeviceStorage;
use crate::error::TensorError;
use crate::layout::Layout;
use crate::scalar::Scalar;
use millpond_cuda::{CudaDevice, CudaQueue, DeviceBuffer};
use millpond_os::device::Device;
use millpond_pool::dtype::{DType, Element};
use millpond_set::pools::pools;

/// A place where tensors on a device can be created: a [`CudaQueue`], or a [`Device`] or [`CudaDevice`], which stand for the
/// [default queue](millpond_set::pools::Pools::cuda_queue) of the device in the current set of pools.
pub trait IntoQueue {
    /// Returns the queue.
    ///
    /// # Errors
    /// Returns an error if the device does not exist or is the host, or if its pool cannot be created.
    fn into_queue(self) -> Result<CudaQueue, TensorError>;
}

impl IntoQueue for &CudaQueue {
    fn into_queue(self) -> Result<CudaQueue, TensorError> {
        Ok(self.clone())
    }
}

impl IntoQueue for &CudaDevice {
    fn into_queue(self) -> Result<CudaQueue, TensorError> {
        Ok(pools().cuda_queue(self.number())?)
    }
}

impl IntoQueue for Device {
    fn into_queue(self) -> Result<CudaQueue, TensorError> {
        let number = self.cuda_number().ok_or(TensorError::NotCuda)?;
        Ok(pools().cuda_queue(number)?)
    }
}

/// Constructors. Each takes the place of the tensor: a [`CudaQueue`], or a device, whose default pool and stream it uses.
impl DeviceTensor {
    /// Creates a tensor of uninitialised elements. The caller writes all of them.
    pub(super) fn unwritten(queue: &CudaQueue, shape: &[usize], dtype: DType) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape)?;
        let storage = DeviceStorage::new(queue, dtype, layout.len(), |_| Ok(()))?;
        Ok(Self::of(storage, layout))
    }

    /// Creates a tensor of contiguous elements of the host.
    pub(super) fn uploaded(
        queue: &CudaQueue,
        shape: &[usize],
        dtype: DType,
        elements: &[u8],
    ) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape)?;
        let storage = DeviceStorage::new(queue, dtype, layout.len(), |memory| queue.write(elements, memory))?;
        Ok(Self::of(storage, layout))
    }

    /// Creates a tensor whose elements have arbitrary values until they are written.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and errors of the driver.
    pub fn empty(at: impl IntoQueue, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        Self::unwritten(&at.into_queue()?, shape.as_ref(), dtype)
    }

    /// Creates a tensor in the memory of a buffer, row by row. Nothing is copied. Work is ordered as with
    /// [`DeviceTensorRef::from_buffer`](super::DeviceTensorRef::from_buffer).
    ///
    /// # Errors
    /// Returns an error if the number of elements does not match the shape, or if `at` belongs to another device. The memory is
    /// then freed.
    pub fn from_buffer<T: Element>(
        at: impl IntoQueue,
        buffer: DeviceBuffer<T>,
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        let queue = at.into_queue()?;
        queue.stream().expect_on(buffer.stream().device())?;
        let layout = Layout::of_elements(shape.as_ref(), buffer.len())?;
        Ok(Self::of(
            DeviceStorage::of(queue, buffer.into_bytes(), T::DTYPE),
            layout,
        ))
    }

    /// Creates a tensor of zeros, which are written in the order of the stream.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and errors of the driver.
    pub fn zeros(at: impl IntoQueue, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape.as_ref())?;
        let queue = at.into_queue()?;
        let storage = DeviceStorage::new(&queue, dtype, layout.len(), DeviceBuffer::fill_zero)?;
        Ok(Self::of(storage, layout))
    }

    /// Creates a tensor of ones, or of true, which are written in the order of the stream.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and errors of the driver.
    pub fn ones(at: impl IntoQueue, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        let one = match dtype {
            DType::Bool => Scalar::Bool(true),
            _ => Scalar::UInt(1),
        };
        Self::full_of(at, shape, one, dtype)
    }

    /// Creates a tensor whose elements all have one value, of a type that is chosen at run time.
    ///
    /// # Errors
    /// Returns an error if the type cannot represent it, or if memory cannot be allocated, and errors of the driver.
    pub fn full_of(
        at: impl IntoQueue,
        shape: impl AsRef<[usize]>,
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        let mut tensor = Self::unwritten(&at.into_queue()?, shape.as_ref(), dtype)?;
        tensor.fill(value)?;
        Ok(tensor)
    }

    /// Creates a tensor whose elements all have one value, which is written in the order of the stream.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and errors of the driver.
    pub fn full<T: Element>(
        at: impl IntoQueue,
        shape: impl AsRef<[usize]>,
        value: T,
    ) -> Result<Self, TensorError> {
        let mut tensor = Self::unwritten(&at.into_queue()?, shape.as_ref(), T::DTYPE)?;
        let mut element = [0; 16];
        element[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        tensor.view_mut()?.target().fill(&element)?;
        Ok(tensor)
    }

    /// Copies elements of the host to a new tensor. The copy is complete when this returns.
    ///
    /// # Errors
    /// Returns an error if the number of elements does not match the shape, or if memory cannot be allocated, and errors of the
    /// driver.
    pub fn from_slice<T: Element>(
        at: impl IntoQueue,
        values: &[T],
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        let shape = shape.as_ref();
        Layout::of_elements(shape, values.len())?;
        Self::uploaded(&at.into_queue()?, shape, T::DTYPE, bytemuck::cast_slice(values))
    }
}
