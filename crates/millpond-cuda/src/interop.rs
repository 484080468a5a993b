//! Interoperation with cudarc: using its streams, lending buffers to it, and taking over its slices.
//!
//! Both libraries work in the primary context of a device, so nothing has to be copied between them.

use super::buffer::{DeviceBuffer, Loan};
use super::device::CudaDevice;
use super::error::CudaError;
use super::stream::CudaStream;
use cudarc::driver::{self as theirs, CudaSlice, CudaView, CudaViewMut, DevicePtrMut, DeviceRepr};
use millpond_pool::dtype::Element;
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl CudaDevice {
    /// Returns the device of a context of cudarc.
    ///
    /// # Errors
    /// Returns [`CudaError::OtherContext`] if the context is not the device's primary one, and the errors of the driver.
    pub fn of_cudarc(context: &theirs::CudaContext) -> Result<Self, CudaError> {
        let number = u32::try_from(context.ordinal()).unwrap_or(u32::MAX);
        let device = Self::get(number)?;
        match device.raw_context() == context.cu_ctx().cast() {
            true => Ok(device),
            false => Err(CudaError::OtherContext { device: number }),
        }
    }
}

impl CudaStream {
    /// Returns a handle of a stream of cudarc. The stream lives as long as either library has a handle of it.
    ///
    /// ```
    /// use cudarc::driver::CudaContext;
    /// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = match CudaDevice::get(0) {
    ///     Err(CudaError::NoDriver) => return Ok(()),
    ///     device => device?,
    /// };
    /// let theirs = CudaContext::new(0)?.new_stream()?;
    /// let pool = DevicePool::new(&device)?;
    /// let mut buffer = pool.alloc::<f32>(1000, &CudaStream::of_cudarc(&theirs)?)?;
    /// {
    ///     let mut lent = buffer.lend(&theirs)?;
    ///     theirs.memcpy_htod(&vec![1.5f32; 1000], &mut lent.view_mut())?;
    /// }
    /// assert_eq!(buffer.to_vec()?[999], 1.5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`CudaDevice::of_cudarc`], and [`CudaError::PerThread`] for the per-thread default stream.
    pub fn of_cudarc(stream: &Arc<theirs::CudaStream>) -> Result<Self, CudaError> {
        // The header's `CU_STREAM_PER_THREAD`.
        if stream.cu_stream().addr() == 2 {
            return Err(CudaError::PerThread);
        }
        let device = CudaDevice::of_cudarc(stream.context())?;
        let keeper = Arc::new(Arc::clone(stream));
        // SAFETY: the stream belongs to the device's primary context and lives as long as the keeper.
        Ok(unsafe { Self::kept_by(&device, stream.cu_stream().cast(), keeper) })
    }
}

/// Elements of a [`DeviceBuffer`] that are lent to cudarc, for one of its streams. Work of cudarc on them comes before work that is queued
/// on the buffer's stream after this value is dropped.
///
/// If other streams of cudarc use the views, cudarc orders them as long as it tracks events, which is its default. A program that disables
/// the tracking must order these streams itself.
///
/// The [`CudaSlice`] itself is not accessible, because it could be kept, and would then free memory of a pool through the driver.
pub struct Lent<'a, T: Element + DeviceRepr> {
    stream: CudaStream,
    /// Invariant: the buffer has a loan of these elements, and the loan is a [`Slice`].
    buffer: &'a mut DeviceBuffer<T>,
}

/// A slice of elements that cudarc must not free.
struct Slice<T: Element + DeviceRepr>(ManuallyDrop<CudaSlice<T>>);

impl<T: Element + DeviceRepr> Loan for Slice<T> {}

impl<T: Element + DeviceRepr> Drop for Slice<T> {
    fn drop(&mut self) {
        // SAFETY: the slice is taken only here, once, and is not used again.
        let slice = unsafe { ManuallyDrop::take(&mut self.0) };
        // This makes the stream of the slice wait for all other streams of cudarc that use it. It frees nothing.
        slice.leak();
    }
}

impl<T: Element + DeviceRepr> DeviceBuffer<T> {
    /// Lends the elements to cudarc, for use on one of its streams. That stream waits, on the device, for the work that is queued on the
    /// buffer's stream now.
    ///
    /// # Errors
    /// Returns an error if the stream belongs to another device or context or is captured, and the errors of the driver.
    pub fn lend(&mut self, stream: &Arc<theirs::CudaStream>) -> Result<Lent<'_, T>, CudaError> {
        let ours = CudaStream::of_cudarc(stream)?;
        ours.expect_on(self.on())?;
        // Captured work runs later, when the elements may belong to another buffer.
        if ours.is_capturing()? {
            return Err(CudaError::Capturing);
        }
        ours.wait_for(self.stream())?;
        self.record_use(&ours)?;
        let (address, len) = (self.address(), self.len());
        // cudarc creates events here, and panics if the driver refuses.
        let upgraded = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the elements exist for as long as the buffer has the slice. The slice is never dropped as a `CudaSlice`,
            // so cudarc never frees them.
            Slice(ManuallyDrop::new(unsafe {
                stream.upgrade_device_ptr::<T>(address, len)
            }))
        }));
        let slice = upgraded.map_err(|_| CudaError::Cudarc)?;
        *self.loan() = Some(Box::new(slice));
        Ok(Lent {
            stream: ours,
            buffer: self,
        })
    }

    /// Converts a slice of cudarc into a buffer, without a copy. The buffer's stream is the slice's. The memory is returned to cudarc when
    /// the buffer is dropped and its work is complete.
    ///
    /// # Errors
    /// Returns the slice with an error if its context is not the device's primary one, and with the errors of the driver.
    pub fn from_cudarc(slice: CudaSlice<T>) -> Result<Self, (CudaError, CudaSlice<T>)> {
        let stream = match CudaStream::of_cudarc(slice.stream()) {
            Ok(stream) => stream,
            Err(error) => return Err((error, slice)),
        };
        let len = slice.len();
        let mut slice = slice;
        let theirs = Arc::clone(slice.stream());
        let address = {
            // The work of cudarc's other streams on the slice comes first.
            let (address, _used) = slice.device_ptr_mut(&theirs);
            address
        };
        // SAFETY: the slice has these elements, and is kept until the buffer has been dropped.
        Ok(unsafe { Self::foreign(address, len, &stream, Box::new(slice)) })
    }
}

impl<T: Element + DeviceRepr> Lent<'_, T> {
    /// Returns a view for reading.
    #[must_use]
    pub fn view(&self) -> CudaView<'_, T> {
        let loan = self.buffer.lent().map(|loan| loan as &dyn Any);
        match loan.and_then(|loan| loan.downcast_ref::<Slice<T>>()) {
            Some(slice) => slice.0.as_view(),
            None => unreachable!("by the invariant"),
        }
    }

    /// Returns a view for reading and writing.
    #[must_use]
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        let loan = self.buffer.loan().as_deref_mut().map(|loan| loan as &mut dyn Any);
        match loan.and_then(|loan| loan.downcast_mut::<Slice<T>>()) {
            Some(slice) => slice.0.as_view_mut(),
            None => unreachable!("by the invariant"),
        }
    }

    /// Returns the buffer that contains the elements.
    #[must_use]
    pub fn buffer(&self) -> &DeviceBuffer<T> {
        self.buffer
    }
}

impl<T: Element + DeviceRepr> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        drop(self.buffer.loan().take());
        // If the buffer's stream cannot wait, this thread waits.
        let ordered = self.buffer.stream().clone().wait_for(&self.stream);
        let _ = ordered.or_else(|_| self.stream.synchronize());
    }
}

impl<T: Element + DeviceRepr> fmt::Debug for Lent<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("buffer", &self.buffer)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
