//! Elements on a device that somebody else keeps.

use super::buffer::DeviceBuffer;
use super::error::CudaError;
use super::launch::{KernelArg, KernelArgMut, Launch, sealed};
use super::span::{Span, expect_elements};
use super::stream::CudaStream;
use crate::device::Device;
use crate::dtype::{DType, Element};
use std::fmt;
use std::marker::PhantomData;

/// Elements on a device that are borrowed, alone: what a [`DeviceBuffer`] is, but for whom they go back to. All work on them is put
/// on their stream.
///
/// Made by [`DeviceScratch::alloc`](super::DeviceScratch::alloc).
pub struct DeviceSlice<'a, T: Element> {
    address: u64,
    len: usize,
    stream: &'a CudaStream,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// # Safety
    /// So many elements are there, on the stream's device, and are nobody else's in the order of the stream for `'a`.
    pub(crate) unsafe fn new(address: u64, len: usize, stream: &'a CudaStream) -> Self {
        Self {
            address,
            len,
            stream,
            elements: PhantomData,
        }
    }

    /// Its address on the device; 0 where there are no elements. To read or write there by other means takes what every use of a raw
    /// pointer takes, and that the stream is kept to.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the elements.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Their type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// Where they are.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::Cuda(self.stream.device().number())
    }

    /// The stream that work on them is put on.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        self.stream
    }

    fn span(&self) -> Span<'_> {
        // SAFETY: the contract of `new`.
        unsafe { Span::new(self.address, self.bytes(), self.stream) }
    }

    /// As [`DeviceBuffer::fill_zero`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn fill_zero(&mut self) -> Result<(), CudaError> {
        self.span().fill_zero()
    }

    /// As [`DeviceBuffer::copy_from`].
    ///
    /// # Errors
    /// Where there are not as many, or on another device, and what the driver says.
    pub fn copy_from(&mut self, other: &DeviceBuffer<T>) -> Result<(), CudaError> {
        expect_elements(self.len, other.len())?;
        self.span().copy_from(other.span())
    }

    /// Copies the elements to a buffer of the same device, in order with both streams.
    ///
    /// # Errors
    /// Where there are not as many, or on another device, and what the driver says.
    pub fn copy_to(&self, other: &mut DeviceBuffer<T>) -> Result<(), CudaError> {
        expect_elements(other.len(), self.len)?;
        other.span().copy_from(self.span())
    }

    /// As [`DeviceBuffer::copy_from_host`].
    ///
    /// # Errors
    /// Where there are not as many, and what the driver says.
    pub fn copy_from_host(&mut self, elements: &[T]) -> Result<(), CudaError> {
        expect_elements(self.len, elements.len())?;
        self.span().write(bytemuck::cast_slice(elements))
    }

    /// As [`DeviceBuffer::copy_to_host`].
    ///
    /// # Errors
    /// Where there is not as much room, and what the driver says.
    pub fn copy_to_host(&self, elements: &mut [T]) -> Result<(), CudaError> {
        expect_elements(self.len, elements.len())?;
        self.span().read(bytemuck::cast_slice_mut(elements))
    }

    /// The elements, copied to the host.
    ///
    /// # Errors
    /// What the driver says.
    pub fn to_vec(&self) -> Result<Vec<T>, CudaError> {
        let mut elements = vec![T::zeroed(); self.len];
        self.copy_to_host(&mut elements)?;
        Ok(elements)
    }
}

impl<T: Element> fmt::Debug for DeviceSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSlice")
            .field("dtype", &self.dtype())
            .field("len", &self.len)
            .field("device", &self.device())
            .finish_non_exhaustive()
    }
}

impl<'a, T: Element> KernelArg<'a> for &'a DeviceSlice<'_, T> {}

impl<'a, T: Element> sealed::Arg<'a> for &'a DeviceSlice<'_, T> {
    fn put(self, launch: &mut Launch<'a>) {
        launch.memory(self.address, self.stream);
    }
}

impl<'a, T: Element> KernelArgMut<'a> for &'a mut DeviceSlice<'_, T> {}

impl<'a, T: Element> sealed::ArgMut<'a> for &'a mut DeviceSlice<'_, T> {
    fn put(self, launch: &mut Launch<'a>) {
        launch.memory(self.address, self.stream);
    }
}
