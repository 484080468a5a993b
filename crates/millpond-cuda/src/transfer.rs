//! Asynchronous copies that own both ends.

use super::abi::ContextHandle;
use super::buffer::DeviceBuffer;
use super::callback;
use super::completion::Completion;
use super::device::CudaDevice;
use super::error::CudaError;
use super::later;
use super::pinned::is_known;
use super::registered::Registered;
use super::stream::CudaStream;
use super::stream::mark::{Unsettled, expect_uncaptured, nothing_goes_on, settle_on};
use super::transfer_error::TransferError;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::Element;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// An asynchronous copy, and the memory that it copies from and to. No other code can access that memory until the copy is complete.
///
/// It is made by [`CudaStream::upload`], [`download`](CudaStream::download), [`copy`](CudaStream::copy) and
/// [`prefetch`](CudaStream::prefetch). [`wait`](Self::wait) blocks the thread. `.await` does not: a transfer is a future for any runtime,
/// with the outcome of `wait`. The driver wakes its task, and no thread waits. After it has completed, further polls return
/// [`Poll::Pending`].
///
/// Dropping a transfer waits for the copy. Dropping one that was polled, such as the future of a task that was cancelled, does not block
/// the runtime's thread: the ends stay with the library until the copy is complete, and are freed by the next call of a device pool or the
/// next copy after that. To keep both ends after a timeout, poll `&mut transfer`, and wait for it later. If a transfer is forgotten
/// (`std::mem::forget`), its memory is never freed, so that no copy uses memory of another owner.
///
/// A waker runs on a thread of the driver, where CUDA cannot be used. The wakers of runtimes only schedule their task.
///
/// ```
/// use millpond::cuda::{CudaStream, DeviceBuffer, TransferError};
/// use millpond::Buffer;
///
/// type Ends = (Buffer<f32>, DeviceBuffer<f32>);
///
/// async fn there_and_back(copies: &CudaStream, host: Buffer<f32>, there: DeviceBuffer<f32>) -> Result<Ends, TransferError<Ends>> {
///     let (host, there) = copies.upload(host, there)?.await?;
///     copies.download(there, host)?.await
/// }
/// ```
#[must_use = "dropping it waits for the copy"]
pub struct Transfer<E: Send + 'static> {
    /// `None` after the ends were handed out. Invariant: until `copy` is complete the device uses them.
    ends: Option<E>,
    /// `None` if the copy is known to be complete.
    copy: Option<Completion>,
    stream: CudaStream,
}

impl<E: Send + 'static> Transfer<E> {
    /// Returns the stream of the copy.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Returns whether the copy is complete. It counts as complete on a lost device; [`wait`](Self::wait) returns the error.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.copy.as_ref().is_none_or(is_over)
    }

    /// Waits for the copy, and returns both ends.
    ///
    /// # Errors
    /// Returns the errors of the driver, with both ends. Returns [`CudaError::AlreadyComplete`] if a poll has returned the ends.
    pub fn wait(mut self) -> Result<E, TransferError<E>> {
        self.finish()
    }

    /// Makes a stream wait for the copy, on the device.
    #[doc(hidden)]
    pub fn hold(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let mark = self.copy.as_ref().map(Completion::mark);
        mark.map_or(Ok(()), |mark| mark.hold(stream))
    }

    fn finish(&mut self) -> Result<E, TransferError<E>> {
        let outcome = self.settle();
        let ends = self.ends.take();
        match outcome {
            Ok(()) => ends.ok_or_else(|| TransferError::new(CudaError::AlreadyComplete, None)),
            Err(why) => Err(TransferError::unsettled(why, ends)),
        }
    }

    fn settle(&mut self) -> Result<(), Unsettled> {
        match self.copy.take() {
            Some(copy) => settle_on(&self.stream, || copy.mark().wait()),
            None => Ok(()),
        }
    }
}

/// Returns whether the copy does not use its ends any more.
fn is_over(copy: &Completion) -> bool {
    copy.mark().is_past().unwrap_or_else(nothing_goes_on)
}

/// The ends are never pinned.
impl<E: Send + 'static> Unpin for Transfer<E> {}

impl<E: Send + 'static> Future for Transfer<E> {
    type Output = Result<E, TransferError<E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.ends.is_none() {
            return Poll::Pending;
        }
        if let Some(copy) = &mut this.copy
            && std::task::ready!(copy.poll(context)).is_ok()
        {
            this.copy = None;
        }
        // If the driver could not tell whether the copy is complete, this thread waits.
        Poll::Ready(this.finish())
    }
}

impl<E: Send + 'static> Drop for Transfer<E> {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        match self
            .copy
            .take_if(|copy| copy.is_polled() || callback::is_inside())
        {
            Some(mut copy) => {
                copy.forget_task();
                drop(Cancelled {
                    inner: Some((ends, copy)),
                    device: self.stream.device().number(),
                });
            }
            None => {
                if self.settle().is_err_and(|why| !why.over) {
                    std::mem::forget(ends);
                }
            }
        }
    }
}

/// The ends of a dropped transfer. Dropping it frees them if the copy is complete, and otherwise keeps them for later.
struct Cancelled<E: Send + 'static> {
    inner: Option<(E, Completion)>,
    device: u32,
}

impl<E: Send + 'static> Drop for Cancelled<E> {
    fn drop(&mut self) {
        let inner = self.inner.take_if(|(_, copy)| !is_over(copy));
        if inner.is_some() {
            let device = self.device;
            // The memory counts as that of its pool.
            later::keep(Self { inner, device }, device, 0);
        }
    }
}

impl<E: Send + 'static> fmt::Debug for Transfer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("stream", &self.stream)
            .field("is_complete", &self.is_complete())
            .finish_non_exhaustive()
    }
}

/// Queues work that uses `ends` on a stream, and creates a transfer that owns them. `order` makes the stream wait for other users of the
/// ends, and returns whether there is anything to be done. `work` queues the work.
pub(super) fn begin<E: Send + 'static>(
    stream: &CudaStream,
    mut ends: E,
    order: impl FnOnce(&E) -> Result<bool, CudaError>,
    work: impl FnOnce(&mut E) -> Result<(), CudaError>,
) -> Result<Transfer<E>, TransferError<E>> {
    // Frees the ends of cancelled transfers.
    later::retry();
    let transfer = |ends, copy| Transfer {
        ends: Some(ends),
        copy,
        stream: stream.clone(),
    };
    // The mark of captured work would never pass.
    let prepared = expect_uncaptured(stream).and_then(|()| order(&ends));
    let prepared = prepared.and_then(|some| some.then(|| Completion::new(stream)).transpose());
    let mut copy = match prepared {
        Ok(Some(copy)) => copy,
        Ok(None) => return Ok(transfer(ends, None)),
        // Nothing has begun.
        Err(error) => return Err(TransferError::new(error, Some(ends))),
    };
    let waited = || settle_on(stream, || stream.synchronize());
    if let Err(error) = work(&mut ends) {
        // The work may still have begun.
        return Err(match waited() {
            Ok(()) => TransferError::new(error, Some(ends)),
            Err(why) => TransferError::unsettled(why, Some(ends)),
        });
    }
    // If the work cannot be marked, this thread waits for it.
    match copy.record(stream) {
        Ok(()) => Ok(transfer(ends, Some(copy))),
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
pub trait HostEnd<T: Element>: sealed::Sealed<T> + Send + 'static {}

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
    /// Returns an error if the lengths differ, if the driver has not pinned the host's memory ([`CudaError::Pageable`]), if the stream
    /// belongs to another device, or if the driver refuses. The error contains both ends.
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
    /// Returns an error if the lengths differ, if the stream belongs to another device, or if the driver refuses. The error contains both
    /// ends.
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
/// The use on `stream` must be [recorded](DeviceBuffer::record_use) before the device's buffer is freed.
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

impl<H: Send + 'static, T: Element> Transfer<Ends<H, T>> {
    /// Returns the device's end at once: its stream waits for the copy, on the device. The host's end is in use until the copy is
    /// complete, and stays with the transfer.
    ///
    /// # Errors
    /// Returns the errors of the driver, with both ends. Returns [`CudaError::AlreadyComplete`] if a poll has returned the ends.
    pub fn split(mut self) -> Result<Apart<H, T>, TransferError<Ends<H, T>>> {
        let stream = self.stream.clone();
        let Some((host, device)) = self.ends.take() else {
            return Err(TransferError::new(CudaError::AlreadyComplete, None));
        };
        let mut copy = self.copy.take();
        if device.stream() != &stream
            && let Some(copy) = copy.take_if(|copy| copy.mark().hold(device.stream()).is_err())
            // If that stream cannot wait, this thread waits.
            && let Err(why) = settle_on(&stream, || copy.mark().wait())
        {
            return Err(TransferError::unsettled(why, Some((host, device))));
        }
        let host = Transfer {
            ends: Some(host),
            copy,
            stream,
        };
        Ok((host, device))
    }
}
