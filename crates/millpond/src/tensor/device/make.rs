//! How tensors on a device come to be.

use super::DeviceTensor;
use super::storage::DeviceStorage;
use crate::dtype::{DType, Element};
use crate::gpu::CudaQueue;
use crate::tensor::error::TensorError;
use crate::tensor::layout::Layout;
use crate::tensor::scalar::Scalar;

impl DeviceTensor {
    /// Elements of which nothing is known: whoever has it writes them all.
    pub(super) fn unwritten(queue: &CudaQueue, shape: &[usize], dtype: DType) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape)?;
        let storage = DeviceStorage::new(queue, dtype, layout.len())?;
        Ok(Self::of(storage, layout))
    }

    /// Elements from the host, which follow one another.
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

    /// A tensor of zeros, once the stream has come so far.
    ///
    /// # Errors
    /// When there is no memory for it, and what the driver says.
    pub fn zeros(queue: &CudaQueue, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        let layout = Layout::contiguous(shape.as_ref())?;
        let mut storage = DeviceStorage::new(queue, dtype, layout.len())?;
        storage.fill_zero()?;
        Ok(Self::of(storage, layout))
    }

    /// A tensor of ones, or of true, once the stream has come so far.
    ///
    /// # Errors
    /// When there is no memory for it, and what the driver says.
    pub fn ones(queue: &CudaQueue, shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self, TensorError> {
        let one = match dtype {
            DType::Bool => Scalar::Bool(true),
            _ => Scalar::UInt(1),
        };
        Self::full_of(queue, shape, one, dtype)
    }

    /// A tensor of one number, of a type that is known when the program runs.
    ///
    /// # Errors
    /// Where it is none of the type, when there is no memory for it, and what the driver says.
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

    /// A tensor of one number, once the stream has come so far.
    ///
    /// # Errors
    /// When there is no memory for it, and what the driver says.
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

    /// A tensor of elements copied from the host, which are there when this returns.
    ///
    /// # Errors
    /// Where the shape has another number of elements, when there is no memory for it, and what the driver says.
    pub fn from_slice<T: Element>(
        queue: &CudaQueue,
        values: &[T],
        shape: impl AsRef<[usize]>,
    ) -> Result<Self, TensorError> {
        let shape = shape.as_ref();
        let expected = crate::tensor::count(shape)?;
        if expected != values.len() {
            return Err(TensorError::Elements {
                shape: shape.into(),
                expected,
                found: values.len(),
            });
        }
        Self::uploaded(queue, shape, T::DTYPE, bytemuck::cast_slice(values))
    }
}
