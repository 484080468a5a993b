//! Constructors of tensors on a device.

use super::DeviceTensor;
use super::storage::DeviceStorage;
use crate::error::TensorError;
use crate::layout::Layout;
use crate::scalar::Scalar;
use millpond_cuda::CudaQueue;
use millpond_pool::dtype::{DType, Element};

impl DeviceTensor {
    /// Creates a tensor of uninitialised elements. The caller writes all of them.
    pub(super) fn unwritten(queue: &CudaQueue, shape: &[usize], dtype: DType) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape)?;
        let storage = DeviceStorage::new(queue, dtype, layout.len())?;
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
        let mut storage = DeviceStorage::new(queue, dtype, layout.len())?;
        storage.write(elements)?;
        Ok(Self::of(storage, layout))
    }

    /// Creates a tensor of zeros, which are written in the order of the stream.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and errors of the driver.
    pub fn zeros(queue: &CudaQueue, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape.as_ref())?;
        let mut storage = DeviceStorage::new(queue, dtype, layout.len())?;
        storage.fill_zero()?;
        Ok(Self::of(storage, layout))
    }

    /// Creates a tensor of ones, or of true, which are written in the order of the stream.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and errors of the driver.
    pub fn ones(queue: &CudaQueue, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        let one = match dtype {
            DType::Bool => Scalar::Bool(true),
            _ => Scalar::UInt(1),
        };
        Self::full_of(queue, shape, one, dtype)
    }

    /// Creates a tensor of one number, of a type that is chosen at run time.
    ///
    /// # Errors
    /// Returns an error if the type cannot represent it, or if memory cannot be allocated, and errors of the driver.
    pub fn full_of(
        queue: &CudaQueue,
        shape: impl AsRef<[usize]>,
        value: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Self, TensorError> {
        let mut tensor = Self::unwritten(queue, shape.as_ref(), dtype)?;
        tensor.fill(value)?;
        Ok(tensor)
    }

    /// Creates a tensor of one number, which is written in the order of the stream.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, and errors of the driver.
    pub fn full<T: Element>(
        queue: &CudaQueue,
        shape: impl AsRef<[usize]>,
        value: T,
    ) -> Result<Self, TensorError> {
        let mut tensor = Self::unwritten(queue, shape.as_ref(), T::DTYPE)?;
        let mut element = [0; 16];
        element[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        tensor.view_mut()?.target().fill(&element)?;
        Ok(tensor)
    }

    /// Copies elements of the host to a new tensor. The copy is complete when this returns.
    ///
    /// # Errors
    /// Returns an error if the shape has another number of elements, or if memory cannot be allocated, and errors of the driver.
    pub fn from_slice<T: Element>(
        queue: &CudaQueue,
        values: &[T],
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        let shape = shape.as_ref();
        Layout::of_elements(shape, values.len())?;
        Self::uploaded(queue, shape, T::DTYPE, bytemuck::cast_slice(values))
    }
}
