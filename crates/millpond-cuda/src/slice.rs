//! Borrowed elements on a device.

use super::buffer::DeviceBuffer;
use super::error::CudaError;
use super::launch::{KernelArg, KernelArgMut, Launch, sealed};
use super::span::{Span, expect_elements};
use super::stream::CudaStream;
use millpond_os::device::Device;
use millpond_pool::dtype::{DType, Element};
use std::fmt;
use std::marker::PhantomData;

/// Elements on a device that are borrowed exclusively. It is like a [`DeviceBuffer`], but does not own the memory. All work on the elements
/// is queued on their stream.
///
/// Made by `DeviceScratch::alloc`.
pub struct DeviceSlice<'a, T: Element> {
    address: u64,
    len: usize,
    stream: &'a CudaStream,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// # Safety
    /// There must be `len` elements at the address, on the stream's device, which nobody else uses in the order of the stream for `'a`.
    #[doc(hidden)]
    pub unsafe fn new(address: u64, len: usize, stream: &'a CudaStream) -> Self {
        Self {
            address,
            len,
            stream,
            elements: PhantomData,
        }
    }

    /// Returns the address on the device, or 0 if there are no elements. Access to it by other means has the requirements of every use of a
    /// raw pointer, and must follow the order of the stream.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the size of the elements in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::Cuda(self.stream.device().number())
    }

    /// Returns the stream on which work on the elements is queued.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        self.stream
    }

    fn span(&self) -> Span<'_> {
        // SAFETY: the contract of `new`.
        unsafe { Span::new(self.address, self.bytes(), self.stream) }
    }

    /// Like [`DeviceBuffer::fill_zero`].
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn fill_zero(&mut self) -> Result<(), CudaError> {
        self.span().fill_zero()
    }

    /// Like [`DeviceBuffer::copy_from`].
    ///
    /// # Errors
    /// Returns an error if the lengths or the devices differ, and the errors of the driver.
    pub fn copy_from(&mut self, other: &DeviceBuffer<T>) -> Result<(), CudaError> {
        expect_elements(self.len, other.len())?;
        self.span().copy_from(other.span())
    }

    /// Copies the elements to a buffer of the same device, in order with both streams.
    ///
    /// # Errors
    /// Returns an error if the lengths or the devices differ, and the errors of the driver.
    pub fn copy_to(&self, other: &mut DeviceBuffer<T>) -> Result<(), CudaError> {
        expect_elements(other.len(), self.len)?;
        other.span().copy_from(self.span())
    }

    /// Like [`DeviceBuffer::copy_from_host`].
    ///
    /// # Errors
    /// Returns an error if the lengths differ, and the errors of the driver.
    pub fn copy_from_host(&mut self, elements: &[T]) -> Result<(), CudaError> {
        expect_elements(self.len, elements.len())?;
        self.span().write(bytemuck::cast_slice(elements))
    }

    /// Like [`DeviceBuffer::copy_to_host`].
    ///
    /// # Errors
    /// Returns an error if the lengths differ, and the errors of the driver.
    pub fn copy_to_host(&self, elements: &mut [T]) -> Result<(), CudaError> {
        expect_elements(self.len, elements.len())?;
        self.span().read(bytemuck::cast_slice_mut(elements))
    }

    /// Returns a copy of the elements on the host.
    ///
    /// # Errors
    /// Returns the errors of the driver.
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
