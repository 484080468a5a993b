//! Asynchronous copies that own both ends.

use super::abi::ContextHandle;
use super::buffer::DeviceBuffer;
use super::device::CudaDevice;
use super::error::CudaError;
use super::pinned::is_known;
use super::registered::Registered;
use super::stream::CudaStream;
use super::stream::mark::{Mark, Unsettled, expect_uncaptured, nothing_goes_on, settle_on};
use super::transfer_error::TransferError;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::Element;
use std::fmt;

/// An asynchronous copy, and the memory that it copies from and to. Nobody else has that memory until the copy is complete.
///
/// It is made by [`CudaStream::upload`], [`download`](CudaStream::download), [`copy`](CudaStream::copy) and
/// [`prefetch`](CudaStream::prefetch). Dropping it waits for the copy. If it is forgotten (`std::mem::forget`), its memory is never freed,
/// so that no copy uses memory of another owner.
#[must_use = "dropping it waits for the copy"]
pub struct Transfer<E> {
    /// `None` after the ends were handed out. Invariant: until `mark` is past the device uses them.
    ends: Option<E>,
    /// `None` if the copy is known to be complete.
    mark: Option<Mark>,
    stream: CudaStream,
}

impl<E> Transfer<E> {
    /// Returns the stream of the copy.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Returns whether the copy is complete. It counts as complete on a lost device; [`wait`](Self::wait) returns the error.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let Some(mark) = &self.mark else { return true };
        mark.is_past().unwrap_or_else(nothing_goes_on)
    }

    /// Waits for the copy, and returns both ends.
    ///
    /// # Errors
    /// Returns the errors of the driver, with both ends.
    pub fn wait(mut self) -> Result<E, TransferError<E>> {
        let outcome = self.settle();
        // The ends are present until here, because taking them consumes this value.
        let ends = self.ends.take();
        match outcome {
            Ok(()) => ends.ok_or_else(|| TransferError::new(CudaError::NoDriver, None)),
            Err(why) => Err(TransferError::unsettled(why, ends)),
        }
    }

    /// Makes a stream wait for the copy, on the device.
    #[doc(hidden)]
    pub fn hold(&self, stream: &CudaStream) -> Result<(), CudaError> {
        self.mark.as_ref().map_or(Ok(()), |mark| mark.hold(stream))
    }

    fn settle(&mut self) -> Result<(), Unsettled> {
        match self.mark.take() {
            Some(mark) => settle_on(&self.stream, || mark.wait()),
            None => Ok(()),
        }
    }
}

impl<E> Drop for Transfer<E> {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        if self.settle().is_err_and(|why| !why.over) {
            std::mem::forget(ends);
        }
    }
}

impl<E> fmt::Debug for Transfer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("stream", &self.stream)
            .field("is_complete", &self.is_complete())
            .finish_non_exhaustive()
    }
}

/// Queues work on a stream that uses `ends`, and makes a transfer that owns them. `order` makes the stream wait for other users of the
/// ends, and returns whether there is anything to be done. `work` queues the work.
pub(super) fn begin<E>(
    stream: &CudaStream,
    mut ends: E,
    order: impl FnOnce(&E) -> Result<bool, CudaError>,
    work: impl FnOnce(&mut E) -> Result<(), CudaError>,
) -> Result<Transfer<E>, TransferError<E>> {
    let transfer = |ends, mark| Transfer {
        ends: Some(ends),
        mark,
        stream: stream.clone(),
    };
    // The mark of captured work would never pass.
    let prepared = expect_uncaptured(stream).and_then(|()| order(&ends));
    let prepared = prepared.and_then(|some| some.then(|| Mark::new(stream.device())).transpose());
    let mark = match prepared {
        Ok(Some(mark)) => mark,
        Ok(None) => return Ok(transfer(ends, None)),
        // Nothing has begun.
        Err(error) => return Err(TransferError::new(error, Some(ends))),
    };
    let waited = || settle_on(stream, || stream.synchronize());
    if let Err(error) = work(&mut ends) {
        // The work may have begun all the same.
        return Err(match waited() {
            Ok(()) => TransferError::new(error, Some(ends)),
            Err(why) => TransferError::unsettled(why, Some(ends)),
        });
    }
    // If the work cannot be marked, this thread waits for it.
    match mark.record(stream) {
        Ok(()) => Ok(transfer(ends, Some(mark))),
        Err(_) => match waited() {
            Ok(()) => Ok(transfer(ends, None)),
            Err(why) => Err(TransferError::unsettled(why, Some(ends))),
        },
    }
}

mod sealed {
    pub trait Sealed<T> {
        fn elements(&self) -> &[T];
        /// Returns the first element, for writing.
        fn start_mut(&mut self) -> *mut T;
    }
}

/// The host's end of an asynchronous copy: a [`Buffer`] of pinned memory, or a [`Registered`] one.
pub trait HostEnd<T: Element>: sealed::Sealed<T> {}

impl<T: Element> sealed::Sealed<T> for Buffer<T> {
    fn elements(&self) -> &[T] {
        self
    }

    fn start_mut(&mut self) -> *mut T {
        self.as_mut_ptr()
    }
}

impl<T: Element> HostEnd<T> for Buffer<T> {}

impl<T: Element> sealed::Sealed<T> for Registered<T> {
    fn elements(&self) -> &[T] {
        self
    }

    fn start_mut(&mut self) -> *mut T {
        Registered::start_mut(self)
    }
}

impl<T: Element> HostEnd<T> for Registered<T> {}

/// The host's end and the device's.
type Ends<H, T> = (H, DeviceBuffer<T>);

/// A transfer that owns the host's end, and the device's end.
type Apart<H, T> = (Transfer<H>, DeviceBuffer<T>);

/// A copy that has begun, or the error with both ends.
type Begun<E> = Result<Transfer<E>, TransferError<E>>;

impl CudaStream {
    /// Checks both ends and makes this stream wait for the users of the device's end. Returns whether there is anything to copy.
    fn order_ends<T: Element, H: HostEnd<T>>(
        &self,
        host: &H,
        device: &DeviceBuffer<T>,
    ) -> Result<bool, CudaError> {
        let elements = host.elements();
        if elements.len() != device.len() {
            return Err(CudaError::Length {
                expected: device.len(),
                found: elements.len(),
            });
        }
        self.expect_on(device.on())?;
        if elements.is_empty() {
            return Ok(false);
        }
        if !is_known(self.device(), elements.as_ptr().cast(), device.bytes())? {
            return Err(CudaError::Pageable);
        }
        device.order_before(self)?;
        Ok(true)
    }

    /// Copies elements from the host to the device on this stream, and does not wait for it. The copy comes after the present uses of the
    /// device's end: those on its own stream, and those [recorded](DeviceBuffer::record_use).
    ///
    /// ```
    /// use millpond::cuda::{CudaDevice, CudaError, CudaPinned, CudaStream, DevicePool};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let device = match CudaDevice::get(0) {
    /// #     Err(CudaError::NoDriver) => return Ok(()),
    /// #     device => device?,
    /// # };
    /// let (pool, compute, copies) = (DevicePool::new(&device)?, CudaStream::new(&device)?, CudaStream::new(&device)?);
    /// let pinned = millpond::Pool::builder().over(Box::new(CudaPinned::new(&device)))?;
    /// let copying = copies.upload(pinned.alloc_from(&[1u32, 2, 3])?, pool.alloc(3, &compute)?)?;
    /// // From here on `compute` has the elements; the host's end is in use until the copy is done.
    /// let (host, there) = copying.split()?;
    /// assert_eq!(there.to_vec()?, [1, 2, 3]);
    /// assert_eq!(host.wait()?[..], [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the lengths differ, if the driver has not pinned the host's memory ([`CudaError::Pageable`]), if the stream is
    /// another device's, or if the driver refuses. The error contains both ends.
    pub fn upload<T: Element, H: HostEnd<T>>(&self, host: H, device: DeviceBuffer<T>) -> Begun<Ends<H, T>> {
        let order = |ends: &Ends<H, T>| self.order_ends(&ends.0, &ends.1);
        begin(self, (host, device), order, |(host, device)| {
            let _current = self.device().enter()?;
            let from = host.elements().as_ptr().cast();
            let driver = self.device().driver();
            // SAFETY: both have these bytes, and the transfer holds both until the copy is complete.
            unsafe { driver.copy_to_device(device.address(), from, device.bytes(), self.handle()) }
        })
    }

    /// Copies elements from the device to the host on this stream, and does not wait for it. The copy comes after the present uses of the
    /// device's end.
    ///
    /// # Errors
    /// Returns the errors of [`upload`](Self::upload).
    pub fn download<T: Element, H: HostEnd<T>>(&self, device: DeviceBuffer<T>, host: H) -> Begun<Ends<H, T>> {
        let order = |ends: &Ends<H, T>| self.order_ends(&ends.0, &ends.1);
        begin(self, (host, device), order, |(host, device)| {
            let _current = self.device().enter()?;
            let to = host.start_mut().cast();
            let driver = self.device().driver();
            // SAFETY: both have these bytes, all bit patterns are values of `T`, and the transfer holds both until the copy is complete.
            unsafe { driver.copy_to_host(to, device.address(), device.bytes(), self.handle()) }
        })
    }

    /// Copies elements from one buffer to another on this stream, and does not wait for it. The buffers may be on different devices, and
    /// the stream must belong to one of them. The copy comes after the present uses of both buffers.
    ///
    /// # Errors
    /// Returns an error if the lengths differ, if the stream is another device's, or if the driver refuses. The error contains both ends.
    pub fn copy<T: Element>(
        &self,
        from: DeviceBuffer<T>,
        to: DeviceBuffer<T>,
    ) -> Begun<(DeviceBuffer<T>, DeviceBuffer<T>)> {
        let order = |(from, to): &(DeviceBuffer<T>, DeviceBuffer<T>)| {
            if from.len() != to.len() {
                return Err(CudaError::Length {
                    expected: to.len(),
                    found: from.len(),
                });
            }
            if self.expect_on(from.on()).is_err() {
                self.expect_on(to.on())?;
            }
            if to.is_empty() {
                return Ok(false);
            }
            from.order_before(self)?;
            to.order_before(self)?;
            Ok(true)
        };
        begin(self, (from, to), order, |(from, to)| {
            let _current = self.device().enter()?;
            let driver = self.device().driver();
            let (target, origin, bytes) = (to.address(), from.address(), to.bytes());
            let [there, here] = [&*to, &*from].map(context_of);
            if there == here {
                // SAFETY: both have these bytes, and the transfer holds both until the copy is complete.
                return unsafe { driver.copy_on_device(target, origin, bytes, self.handle()) };
            }
            // SAFETY: as above, and each buffer belongs to the context that is passed with it.
            unsafe { driver.copy_between(target, there, origin, here, bytes, self.handle()) }
        })
    }
}

/// Copies the first elements of `host` to `device` on a stream, after `order` has made the stream wait for the users of the device's end.
///
/// # Safety
/// The device's buffer must be freed only after its pool was told of the stream.
pub unsafe fn upload_part<T: Element>(
    stream: &CudaStream,
    host: Buffer<T>,
    device: &DeviceBuffer<T>,
    len: usize,
    order: impl FnOnce(&CudaStream) -> Result<(), CudaError>,
) -> Begun<Buffer<T>> {
    let len = len.min(host.len()).min(device.len());
    let prepare = |_: &Buffer<T>| {
        stream.expect_on(device.on())?;
        order(stream).map(|()| len > 0)
    };
    begin(stream, host, prepare, |host| {
        let _current = stream.device().enter()?;
        let (bytes, driver) = (len * size_of::<T>(), stream.device().driver());
        // SAFETY: both have these bytes. The transfer holds the host's, and the caller the device's, until the copy is complete.
        unsafe { driver.copy_to_device(device.address(), host.as_ptr().cast(), bytes, stream.handle()) }
    })
}

fn context_of<T: Element>(buffer: &DeviceBuffer<T>) -> ContextHandle {
    CudaDevice::context(buffer.on())
}

impl<H, T: Element> Transfer<Ends<H, T>> {
    /// Returns the device's end at once: its stream waits for the copy, on the device. The host's end is in use until the copy is
    /// complete, and stays with the transfer.
    ///
    /// # Errors
    /// Returns the errors of the driver, with both ends.
    pub fn split(mut self) -> Result<Apart<H, T>, TransferError<Ends<H, T>>> {
        let stream = self.stream.clone();
        let Some((host, device)) = self.ends.take() else {
            return Err(TransferError::new(CudaError::NoDriver, None));
        };
        let mut mark = self.mark.take();
        if device.stream() != &stream
            && let Some(copy) = mark.take_if(|mark| mark.hold(device.stream()).is_err())
            // If that stream cannot wait, this thread waits.
            && let Err(why) = settle_on(&stream, || copy.wait())
        {
            return Err(TransferError::unsettled(why, Some((host, device))));
        }
        let host = Transfer {
            ends: Some(host),
            mark,
            stream,
        };
        Ok((host, device))
    }
}
