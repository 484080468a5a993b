//! Next to cudarc: its streams as ours, our buffers lent to it, its slices taken over.
//!
//! Both work in the primary context of a device, so that neither copies anything for the other.

use super::buffer::{DeviceBuffer, Loan};
use super::device::CudaDevice;
use super::error::CudaError;
use super::stream::CudaStream;
use crate::dtype::Element;
use cudarc::driver::{self as theirs, CudaSlice, CudaView, CudaViewMut, DevicePtrMut, DeviceRepr};
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl CudaDevice {
    /// The device of a context of cudarc's.
    ///
    /// # Errors
    /// [`CudaError::OtherContext`] where it is not the device's primary one, and what the driver says.
    pub fn of_cudarc(context: &theirs::CudaContext) -> Result<Self, CudaError> {
        let number = u32::try_from(context.ordinal()).unwrap_or(u32::MAX);
        let device = Self::get(number)?;
        device.expect_context(context.cu_ctx().cast())?;
        Ok(device)
    }
}

impl CudaStream {
    /// A stream of cudarc's as one of ours: the same stream, which lives for as long as either has it.
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
    /// As [`CudaDevice::of_cudarc`], and [`CudaError::PerThread`].
    pub fn of_cudarc(stream: &Arc<theirs::CudaStream>) -> Result<Self, CudaError> {
        // The header's `CU_STREAM_PER_THREAD`.
        if stream.cu_stream().addr() == 2 {
            return Err(CudaError::PerThread);
        }
        let device = CudaDevice::of_cudarc(stream.context())?;
        let keeper = Arc::new(Arc::clone(stream));
        Ok(Self::kept_by(&device, stream.cu_stream().cast(), keeper))
    }
}

/// Elements of a [`DeviceBuffer`] that are lent to cudarc, for a stream of its own. What is done with them there comes before what is
/// put on the buffer's stream once this has been dropped.
///
/// Of its other streams that use the views cudarc knows while it tracks events, as it does by itself; whoever switches that off
/// orders them.
///
/// A [`CudaSlice`] itself is never had: it could be kept, and would give memory to the driver that is a pool's.
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
    /// Lends the elements to cudarc, to be used on a stream of its own. That waits, on the device, for what the buffer's stream has
    /// to do by now.
    ///
    /// # Errors
    /// Where the stream is of another device or context, or captured, and what the driver says.
    pub fn lend(&mut self, stream: &Arc<theirs::CudaStream>) -> Result<Lent<'_, T>, CudaError> {
        let ours = CudaStream::of_cudarc(stream)?;
        ours.expect_on(self.on())?;
        // Work that is written down is done later, when the elements may be somebody else's.
        if ours.is_capturing()? {
            return Err(CudaError::Capturing);
        }
        ours.wait_for(self.stream())?;
        self.record_use(&ours)?;
        let (address, len) = (self.address(), self.len());
        // It makes events, and panics where the driver refuses.
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

    /// Takes over a slice of cudarc's: the same memory, which goes back to cudarc when the buffer is dropped and its work is done.
    /// Its stream is the slice's.
    ///
    /// # Errors
    /// The slice itself with what is wrong: its context is not the device's primary one, or what the driver says.
    pub fn from_cudarc(slice: CudaSlice<T>) -> Result<Self, (CudaError, CudaSlice<T>)> {
        let stream = match CudaStream::of_cudarc(slice.stream()) {
            Ok(stream) => stream,
            Err(error) => return Err((error, slice)),
        };
        let len = slice.len();
        let mut slice = slice;
        let theirs = Arc::clone(slice.stream());
        let address = {
            // What other streams of cudarc's still do with it comes first.
            let (address, _used) = slice.device_ptr_mut(&theirs);
            address
        };
        // SAFETY: the slice has these elements, and is kept until the buffer has gone.
        Ok(unsafe { Self::foreign(address, len, &stream, Box::new(slice)) })
    }
}

impl<T: Element + DeviceRepr> Lent<'_, T> {
    /// To be read.
    #[must_use]
    pub fn view(&self) -> CudaView<'_, T> {
        let loan = self.buffer.lent().map(|loan| loan as &dyn Any);
        match loan.and_then(|loan| loan.downcast_ref::<Slice<T>>()) {
            Some(slice) => slice.0.as_view(),
            None => unreachable!("by the invariant"),
        }
    }

    /// To be read and written.
    #[must_use]
    pub fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        let loan = self.buffer.loan().as_deref_mut().map(|loan| loan as &mut dyn Any);
        match loan.and_then(|loan| loan.downcast_mut::<Slice<T>>()) {
            Some(slice) => slice.0.as_view_mut(),
            None => unreachable!("by the invariant"),
        }
    }

    /// The buffer they are of.
    #[must_use]
    pub fn buffer(&self) -> &DeviceBuffer<T> {
        self.buffer
    }
}

impl<T: Element + DeviceRepr> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        drop(self.buffer.loan().take());
        // Where the buffer's stream cannot wait, this thread does.
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
