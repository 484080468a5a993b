//! Borrowed elements on a device.

use super::buffer::DeviceBuffer;
use super::error::CudaError;
use super::host_function::HostFunctions;
use super::launch::{DeviceElements, KernelArg, KernelArgMut, Launch, sealed};
use super::span::{Span, elements_on_stream, expect_elements};
use super::stream::CudaStream;
use millpond_pool::dtype::{DType, Element};
use std::marker::PhantomData;
use std::sync::Arc;

/// Elements on a device that are borrowed exclusively. It is like a [`DeviceBuffer`], but does not own the memory. All work on the elements
/// is queued on their stream.
///
/// It is made by `DeviceScratch::alloc` and by [`CudaStream::lend`].
pub struct DeviceSlice<'a, T: Element> {
    address: u64,
    len: usize,
    stream: &'a CudaStream,
    /// The functions that run on the host, if the elements are managed memory.
    host_functions: Option<Arc<HostFunctions>>,
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
            host_functions: None,
            elements: PhantomData,
        }
    }

    /// Lets functions run on the host.
    ///
    /// # Safety
    /// The elements must be managed memory, whose address was exposed, and nobody else may use them until these functions have ended.
    pub(super) unsafe fn on_host_too(mut self, functions: Arc<HostFunctions>) -> Self {
        self.host_functions = Some(functions);
        self
    }

    pub(super) fn host_functions(&self) -> Option<&Arc<HostFunctions>> {
        self.host_functions.as_ref()
    }

    /// Returns the address on the device, or 0 if there are no elements. Access to it by other means has the requirements of every use of a
    /// raw pointer, and must follow the order of the stream.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    fn span(&self) -> Span<'_> {
        // SAFETY: the contract of `new`.
        unsafe { Span::new(self.address, self.bytes(), self.stream) }
    }

    /// Copies the elements to a buffer of the same device, in order with both streams.
    ///
    /// # Errors
    /// Returns an error if the lengths or the devices differ, and the errors of the driver.
    pub fn copy_to(&self, other: &mut DeviceBuffer<T>) -> Result<(), CudaError> {
        expect_elements(other.len(), self.len)?;
        other.span().copy_from(self.span())
    }
}

elements_on_stream!(DeviceSlice<'_, T>, "DeviceSlice");

impl<T: Element> DeviceElements for DeviceSlice<'_, T> {}

impl<T: Element> sealed::Elements for DeviceSlice<'_, T> {
    fn elements(&self) -> (Span<'_>, DType) {
        (self.span(), T::DTYPE)
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
