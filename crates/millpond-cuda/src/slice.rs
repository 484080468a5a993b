//! Borrowed elements on a device.

use super::buffer::DeviceBuffer;
use super::error::CudaError;
use super::host_function::{self, HostFunctions};
use super::launch::{DeviceElements, KernelArg, KernelArgMut, Launch, sealed};
use super::span::{Span, elements_on_stream, expect_elements};
use super::stream::CudaStream;
use millpond_pool::dtype::{DType, Element};
use std::marker::PhantomData;
use std::sync::Arc;

/// An exclusive borrow of elements on a device. It is like a [`DeviceBuffer`], but does not own the memory. All work on the elements is
/// queued on their stream.
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
    /// There must be `len` elements at the address, on the stream's device. For `'a`, it must be valid to use them in the order of the
    /// stream, and no other code may use them in this order.
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

    /// Allows functions to run on the host.
    ///
    /// # Safety
    /// The elements must be managed memory, whose address was exposed, and no other code may use them until these functions have ended.
    pub(super) unsafe fn on_host_too(mut self, functions: Arc<HostFunctions>) -> Self {
        self.host_functions = Some(functions);
        self
    }

    /// Runs a function on the host with the elements of a [lent](super::CudaStream::lend) managed buffer, in the order of the stream: after
    /// the work that is queued now, and before work that is queued later.
    ///
    /// The function runs on a thread of the driver, and the stream waits for it. It must not use CUDA. If it panics, [`CudaStream::lend`]
    /// returns [`CudaError::HostPanicked`]. If the device has failed, the function does not run.
    ///
    /// ```
    /// use millpond::cuda::{CudaDevice, CudaError, CudaManaged, CudaStream, DevicePool, DeviceTensorMut};
    /// use millpond::Unpooled;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let device = match CudaDevice::get(0) {
    /// #     Err(CudaError::NoDriver) => return Ok(()),
    /// #     device => device?,
    /// # };
    /// let stream = CudaStream::new(&device)?;
    /// let queue = DevicePool::new(&device)?.on(&stream)?;
    /// let managed = Unpooled::over(Box::new(CudaManaged::new(&device)?));
    /// let mut table = managed.alloc_from(&[1.0f32, 2.0, 3.0])?;
    /// stream.lend(&mut table, |table| {
    ///     DeviceTensorMut::from_buffer(&queue, &mut *table, [3])?.scal(2.0)?;
    ///     table.run_on_host(|table| table.reverse())?;
    ///     DeviceTensorMut::from_buffer(&queue, table, [3])?.scal(0.5)?;
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })??;
    /// assert_eq!(table[..], [3.0, 2.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`CudaError::NotManaged`] if the elements are not those of a managed buffer, [`CudaError::Captured`] if the stream is
    /// captured, and the errors of the driver.
    pub fn run_on_host<F>(&mut self, work: F) -> Result<(), CudaError>
    where
        F: FnOnce(&mut [T]) + Send + 'static,
    {
        let functions = self.host_functions.as_ref().ok_or(CudaError::NotManaged)?;
        // SAFETY: the contract of `on_host_too`.
        unsafe { host_function::queue(functions, self.stream, (self.address, self.len), work) }
    }

    /// Returns the address on the device, or 0 if there are no elements. Other code that accesses this address must follow the rules for
    /// raw pointers and the order of the stream.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    fn span(&self) -> Span<'_> {
        // SAFETY: the contract of `new`.
        unsafe { Span::new(self.address, self.bytes(), self.stream) }
    }

    /// Copies the elements to a buffer of the same device, in the order of both streams.
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
