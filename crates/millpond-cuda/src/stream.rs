//! Streams, which order work on a device.

pub(super) mod captures;
pub(super) mod mark;

use super::abi::{CAPTURE_NONE, STREAM_NON_BLOCKING, StreamHandle};
use super::callback;
use super::device::{CudaDevice, Current};
use super::error::{CudaError, insist};
use super::fork;
use mark::{Mark, settle_on};
use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

/// A stream of a device. Cloning makes another handle. A stream made by [`new`](Self::new) is destroyed with the last handle, after its
/// work is complete.
#[derive(Clone)]
pub struct CudaStream(Arc<Handles>);

/// The state that all clones of a handle share. After it has been dropped, only code that waits for the stream keeps it alive.
pub(super) struct Handles(Arc<RawStream>);

/// A stream, kept alive.
///
/// Invariant: the stream is alive until it is retired. Either it is ours or the driver's, or its keeper keeps it alive, or its
/// creator has promised that it lives.
pub(super) struct RawStream {
    device: CudaDevice,
    /// The unique number of this value.
    number: u64,
    handle: StreamHandle,
    owner: Owner,
    /// Whether the stream was retired: its work is done, its creator destroys it, and it must not be passed to the driver again. A thread
    /// holds the read lock while it passes the stream to the driver.
    retired: RwLock<bool>,
}

/// The streams of other libraries that are in use here. A stream has only one entry, so retiring it through one handle retires it for all
/// handles.
static OTHERS: Mutex<Vec<Weak<RawStream>>> = Mutex::new(Vec::new());

/// The driver's handle of a stream that is not retired. The stream cannot be retired while this exists.
pub(super) struct Live<'a> {
    handle: StreamHandle,
    _retired: RwLockReadGuard<'a, bool>,
}

impl Live<'_> {
    pub(super) fn handle(&self) -> StreamHandle {
        self.handle
    }
}

/// The owner of a stream.
enum Owner {
    Us,
    /// Another library, which has promised that the stream lives, or the driver.
    Others,
    /// Another library. The stream is kept alive by this.
    Kept {
        _keeper: Arc<dyn std::any::Any + Send + Sync>,
    },
}

impl Drop for Handles {
    fn drop(&mut self) {
        let stream = &self.0;
        if callback::is_inside() {
            stream.device.leave_unmarked();
            return;
        }
        // The legacy stream always exists, so it can be marked later. Marking it would order other streams.
        if stream.handle != StreamHandle::NULL
            && let Ok(_current) = stream.device.enter_beside()
            && let Some(live) = stream.live()
        {
            let is_captured = || stream.captures(&live).unwrap_or(true);
            stream.device.leave(live.handle(), is_captured);
        }
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        if !matches!(self.owner, Owner::Us) {
            return;
        }
        if let Ok(_current) = self.device.enter_beside() {
            // The driver destroys the stream when its work is complete. If it refuses, the stream ends with the context.
            // SAFETY: the stream was made by us, and it is not used any more.
            let _ = insist(|| unsafe { self.device.driver().stream_destroy(self.handle) });
        }
    }
}

impl RawStream {
    /// Returns a stream of another library. All live handles of the same stream share one value.
    fn of_others(device: &CudaDevice, handle: StreamHandle) -> Arc<Self> {
        let new = || Arc::new(Self::new(device, handle, Owner::Others));
        // In a forked process, the thread that holds the lock may not exist.
        if fork::is_forked() {
            return new();
        }
        let mut others = OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
        others.retain(|stream| stream.strong_count() > 0);
        let known = others.iter().filter_map(Weak::upgrade).find(|stream| {
            stream.handle == handle && stream.device.number() == device.number() && !stream.is_retired()
        });
        known.unwrap_or_else(|| {
            let stream = new();
            others.push(Arc::downgrade(&stream));
            stream
        })
    }

    pub(super) fn device(&self) -> &CudaDevice {
        &self.device
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn new(device: &CudaDevice, handle: StreamHandle, owner: Owner) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self {
            device: device.clone(),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            handle,
            owner,
            retired: RwLock::new(false),
        }
    }

    /// Returns the handle, or `None` if the stream was retired. The handle may be given to the driver as long as the returned
    /// value is held. A thread must not call this again while it holds the value: if another thread is waiting to retire the
    /// stream in between, the second call deadlocks.
    pub(super) fn live(&self) -> Option<Live<'_>> {
        let retired = self.retired.read().unwrap_or_else(PoisonError::into_inner);
        (!*retired).then(|| Live {
            handle: self.handle,
            _retired: retired,
        })
    }

    /// Returns whether the stream was retired. All work of a retired stream is done.
    pub(super) fn is_retired(&self) -> bool {
        matches!(self.owner, Owner::Others) && self.live().is_none()
    }

    /// Returns whether both are the same stream. A retired stream equals only itself, because the driver may give the handle of
    /// a stream that has ended to a new stream.
    #[inline]
    pub(super) fn is(&self, other: &Self) -> bool {
        let same = || self.handle == other.handle && self.device.number() == other.device.number();
        std::ptr::eq(self, other) || same() && !(self.is_retired() || other.is_retired())
    }

    /// Returns whether this library made the stream. Only then is it known when no handle is left, because another library's stream may
    /// have handles that are counted separately.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.owner, Owner::Us)
    }

    /// Returns whether the stream exists for as long as this value. Returns `false` if only the promise of another library ensures that.
    pub(super) fn stays(&self) -> bool {
        !matches!(self.owner, Owner::Others) || self.handle == StreamHandle::NULL || self.is_retired()
    }

    /// Like [`CudaStream::synchronize`].
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.device.enter_beside()?;
        let Some(live) = self.live() else {
            return Ok(());
        };
        // SAFETY: the stream lives, by the invariant.
        unsafe { self.device.driver().stream_synchronize(live.handle()) }
    }

    /// Like [`CudaStream::is_capturing`].
    pub(super) fn is_capturing(&self) -> Result<bool, CudaError> {
        let _current = self.device.enter()?;
        self.live().map_or(Ok(false), |live| self.captures(&live))
    }

    /// Asks the driver whether the stream is captured. The context must be current on this thread.
    fn captures(&self, live: &Live<'_>) -> Result<bool, CudaError> {
        let mut status = CAPTURE_NONE;
        // SAFETY: the pointer is to a local. The stream lives, by the invariant.
        unsafe {
            self.device
                .driver()
                .stream_is_capturing(live.handle(), &raw mut status)
        }?;
        Ok(status != CAPTURE_NONE)
    }

    /// Returns whether another library captures the stream. Such a stream cannot be waited for, and an attempt invalidates the capture. The
    /// earlier work of a stream that this library captures is complete. An error of the driver that does not concern captures counts as
    /// `false`. The next call of the driver will return it.
    pub(super) fn is_captured_by_others(&self) -> bool {
        if captures::is_captured(self) {
            return false;
        }
        // For the legacy stream, the driver returns an error while a stream that synchronises with it is captured.
        self.is_capturing().unwrap_or_else(|error| error.is_of_capture())
    }

    /// Returns whether all work of the stream is complete. Returns `false` if the driver cannot tell.
    pub(super) fn is_idle(&self) -> bool {
        let Ok(_current) = self.device.enter_beside() else {
            return false;
        };
        if self.is_capturing().unwrap_or(true) {
            return false;
        }
        // SAFETY: the stream lives, by the invariant.
        let passed = |live: Live<'_>| unsafe { self.device.driver().stream_query(live.handle()) };
        self.live().map(passed).is_none_or(|passed| passed.is_ok())
    }
}

impl fmt::Debug for RawStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaStream")
            .field("device", &self.device.number())
            .field("handle", &self.handle.0)
            .finish_non_exhaustive()
    }
}

impl CudaStream {
    /// Creates a stream that does not wait for the legacy default stream.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn new(device: &CudaDevice) -> Result<Self, CudaError> {
        let _current = device.enter_beside()?;
        let mut handle = StreamHandle::NULL;
        // SAFETY: the pointer is to a local.
        unsafe {
            device
                .driver()
                .stream_create(&raw mut handle, STREAM_NON_BLOCKING)
        }?;
        Ok(Self::of(device, handle, Owner::Us))
    }

    /// Returns the legacy default stream, which exists on every device.
    #[must_use]
    pub fn legacy(device: &CudaDevice) -> Self {
        Self::of(device, StreamHandle::NULL, Owner::Others)
    }

    /// Returns a handle of a stream that another library has made, given as the driver's `CUstream`. That library destroys it.
    ///
    /// # Safety
    /// `stream` must be a stream of the device's primary context. It must live until [`retire`](Self::retire) has returned
    /// `Ok`. If it is not retired, it must live as long as any handle of it, and as long as any pool that has allocated a block
    /// on it or has recorded a use on it: pools keep handles of the streams that they know. It must not be the per-thread
    /// default stream, which is a different stream on each thread.
    #[must_use]
    pub unsafe fn from_raw(device: &CudaDevice, stream: *mut c_void) -> Self {
        Self(Arc::new(Handles(RawStream::of_others(
            device,
            StreamHandle(stream),
        ))))
    }

    /// Retires a stream that its creator is about to destroy. Waits until the work of the stream is done. Afterwards, this
    /// library does not pass the stream to the driver again. This holds for all handles of the stream, and for all buffers and
    /// pools. Blocks that were used on the stream become free for other streams. Putting work on the stream fails with
    /// [`CudaError::StreamEnded`].
    ///
    /// Call this before the stream is destroyed: a driver may crash if it is given a stream that was destroyed. No work may be put on the
    /// stream during this call or later, not even through the driver or another library. For a stream that was not made by
    /// [`from_raw`](Self::from_raw), and for the legacy default stream, this only waits.
    ///
    /// ```
    /// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # fn a_stream_of_another_library() -> *mut std::ffi::c_void { std::ptr::null_mut() }
    /// # fn the_other_library_ends_it(_: *mut std::ffi::c_void) {}
    /// # let device = match CudaDevice::get(0) {
    /// #     Err(CudaError::NoDriver) => return Ok(()),
    /// #     device => device?,
    /// # };
    /// let pool = DevicePool::new(&device)?;
    /// let theirs = a_stream_of_another_library();
    /// // SAFETY: the stream lives until it is retired.
    /// let stream = unsafe { CudaStream::from_raw(&device, theirs) };
    /// drop(pool.alloc_from(&[1.0f32, 2.0], &stream)?);
    /// stream.retire()?;
    /// the_other_library_ends_it(theirs);
    /// drop(pool); // the pool waits for its other streams
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`CudaError::Captured`] while the stream is captured, and any error of the driver. The stream is then not retired and must
    /// stay alive, unless the error [is fatal](CudaError::is_fatal): no work continues in a context that is lost.
    pub fn retire(&self) -> Result<(), CudaError> {
        match self.is_capturing() {
            Ok(true) => return Err(CudaError::Captured),
            Err(error) if !error.is_fatal() => return Err(error),
            // After a fatal error the wait below fails too, and then the stream is retired.
            Ok(false) | Err(_) => {}
        }
        let waited = self.synchronize();
        let over = waited.is_ok() || waited.is_err_and(|error| error.is_fatal());
        let raw = self.raw();
        if over && !raw.stays() {
            *raw.retired.write().unwrap_or_else(PoisonError::into_inner) = true;
        }
        waited
    }

    /// Returns a handle of a stream that another library has made, given as the driver's `CUstream`. The keeper is dropped when this
    /// library does not use the stream any more, so the stream need not be [retired](Self::retire).
    ///
    /// ```
    /// use millpond::cuda::{CudaDevice, CudaError, CudaStream};
    /// use std::sync::Arc;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = match CudaDevice::get(0) {
    ///     Err(CudaError::NoDriver) => return Ok(()),
    ///     device => device?,
    /// };
    /// // The keeper is whatever owns the stream, here another handle.
    /// let owner = Arc::new(CudaStream::new(&device)?);
    /// // SAFETY: the stream lives as long as its owner.
    /// let stream = unsafe { CudaStream::kept_by(&device, owner.as_raw(), owner.clone()) };
    /// assert!(stream == *owner);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    /// `stream` must be a stream of the device's primary context, and must live until the keeper is dropped. It must not be the per-thread
    /// default stream, which is a different stream on each thread.
    #[must_use]
    pub unsafe fn kept_by(
        device: &CudaDevice,
        stream: *mut c_void,
        keeper: Arc<dyn std::any::Any + Send + Sync>,
    ) -> Self {
        Self::of(device, StreamHandle(stream), Owner::Kept { _keeper: keeper })
    }

    fn of(device: &CudaDevice, handle: StreamHandle, owner: Owner) -> Self {
        let stream = RawStream::new(device, handle, owner);
        Self(Arc::new(Handles(Arc::new(stream))))
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.0.device
    }

    /// Returns the driver's `CUstream`. Null is the legacy default stream.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.0.0.handle.0
    }

    /// Returns whether the stream lives as long as its handles. A stream that was made by [`from_raw`](Self::from_raw) may end after it was
    /// [retired](Self::retire).
    #[must_use]
    pub fn is_kept(&self) -> bool {
        let raw = self.raw();
        !matches!(raw.owner, Owner::Others) || raw.handle == StreamHandle::NULL
    }

    /// Waits until all work of the stream is complete.
    ///
    /// # Errors
    /// Returns the errors of the driver, including those of work that failed earlier.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.raw().synchronize()
    }

    /// Waits for the stream while memory of the host is lent to its work. It returns only when no work can use the memory any more. On a
    /// lost device no work continues.
    #[doc(hidden)]
    pub fn wait(&self) -> Result<(), CudaError> {
        loop {
            // The driver cannot tell whether the legacy stream is captured while a stream that synchronises with it is
            // captured. The legacy stream cannot be waited for then. An attempt to wait invalidates that capture, but a query
            // does not. Every capture ends, so this queries again later.
            while self.is_capturing().is_err_and(|error| error.is_of_capture()) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            match settle_on(self, || self.synchronize()) {
                Ok(()) => return Ok(()),
                // A capture of another stream began in between, so this retries. If this stream itself is captured, its work is recorded
                // and not run, so a retry would not help.
                Err(why) if why.error.is_of_capture() && !self.is_capturing().unwrap_or(false) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                Err(why) => return Err(why.error),
            }
        }
    }

    /// Makes later work on this stream wait, on the device, for the work that is queued on the other stream now.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn wait_for(&self, other: &Self) -> Result<(), CudaError> {
        if self == other {
            return Ok(());
        }
        self.expect_live()?;
        if other.raw().is_retired() {
            return Ok(());
        }
        let joined = captures::joins(self, other)?;
        // The driver keeps the event until it has passed.
        let waits = Mark::new(other.device()).and_then(|mark| {
            mark.record_captured(other)?;
            mark.hold_captured(self)
        });
        if joined && waits.is_err() {
            captures::stays_out(self);
        }
        waits
    }

    /// Returns whether work on this stream is captured instead of run.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        self.raw().is_capturing()
    }

    /// Checks that the stream is a stream of `device` and that work may be put on it.
    #[doc(hidden)]
    pub fn expect_on(&self, device: &CudaDevice) -> Result<(), CudaError> {
        let (expected, found) = (device.number(), self.device().number());
        if expected == found {
            return self.expect_live();
        }
        Err(CudaError::OtherDevice { expected, found })
    }

    /// Checks that work may be put on the stream: it must not be retired.
    pub(super) fn expect_live(&self) -> Result<(), CudaError> {
        match self.raw().is_retired() {
            true => Err(CudaError::StreamEnded),
            false => Ok(()),
        }
    }

    /// Checks that work may be put on the stream, and enters the context of its device.
    pub(super) fn enter(&self) -> Result<Current<'static>, CudaError> {
        self.expect_live()?;
        self.device().enter()
    }

    /// Returns the driver's handle, for putting work on the stream. The caller must have called [`enter`](Self::enter) or
    /// [`expect_live`](Self::expect_live) before.
    pub(super) fn handle(&self) -> StreamHandle {
        self.raw().handle
    }

    /// Returns the stream itself, which can be kept without being a handle of it.
    pub(super) fn raw(&self) -> &Arc<RawStream> {
        &self.0.0
    }

    /// Returns a weak reference that shows whether any handle of the stream is left, now and later.
    pub(super) fn handles(&self) -> Weak<Handles> {
        Arc::downgrade(&self.0)
    }
}

/// Two handles of the same stream are equal.
impl PartialEq for CudaStream {
    fn eq(&self, other: &Self) -> bool {
        self.raw().is(other.raw())
    }
}

impl Eq for CudaStream {}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw().fmt(f)
    }
}
