//! Streams: the order in which work happens on a device.

use super::abi::{CAPTURE_NONE, STREAM_NON_BLOCKING, StreamHandle};
use super::device::CudaDevice;
use super::device::Current;
use super::error::{CudaError, insist};
use super::fork;
use super::graph;
use super::mark::{Mark, settle_on};
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

/// A stream of a device. Cloning makes another handle; one made by [`new`](Self::new) ends with the last of them, when its work
/// is done.
#[derive(Clone)]
pub struct CudaStream(Arc<Handles>);

/// What all clones of a handle share: once it has gone nobody has the stream but who keeps it to wait for it.
pub(super) struct Handles(Arc<RawStream>);

/// A stream, kept alive.
///
/// Invariant: until it was retired the stream lives: it is ours, the driver's, kept by its keeper, or others have promised it.
pub(super) struct RawStream {
    device: CudaDevice,
    handle: StreamHandle,
    owner: Owner,
    /// Whether its work is done and the driver is not to be asked about it any more: others end it. Read for as long as it is asked.
    retired: RwLock<bool>,
}

/// Streams of others that somebody here has: each is one, whoever gave it to us and how often, so that one retires it for all.
static OTHERS: Mutex<Vec<Weak<RawStream>>> = Mutex::new(Vec::new());

/// A stream's handle, while it is not retired.
pub(super) struct Live<'a> {
    handle: StreamHandle,
    _retired: RwLockReadGuard<'a, bool>,
}

impl Live<'_> {
    pub(super) fn handle(&self) -> StreamHandle {
        self.handle
    }
}

/// Whose a stream is.
enum Owner {
    Us,
    /// Others', who have promised that it lives, or the driver's.
    Others,
    /// Others', and kept alive by this.
    #[cfg(feature = "cudarc")]
    Kept {
        _keeper: Arc<dyn std::any::Any + Send + Sync>,
    },
}

impl Drop for Handles {
    fn drop(&mut self) {
        let stream = &self.0;
        // The legacy stream is always there to be marked, and that orders others.
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
            // The driver ends it when its work is done; one that refuses ends it with the context.
            // SAFETY: made by us, and nobody has it any more.
            let _ = insist(|| unsafe { self.device.driver().stream_destroy(self.handle) });
        }
    }
}

impl RawStream {
    /// One of others'.
    fn of_others(device: &CudaDevice, handle: StreamHandle) -> Arc<Self> {
        let new = || Arc::new(Self::new(device, handle, Owner::Others));
        // Whoever has the lock in a process that was forked may not be there.
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

    fn new(device: &CudaDevice, handle: StreamHandle, owner: Owner) -> Self {
        Self {
            device: device.clone(),
            handle,
            owner,
            retired: RwLock::new(false),
        }
    }

    /// The handle, to be given to the driver as long as the answer is held; none of a stream that was retired. It is not asked for
    /// again meanwhile, as whoever retires the stream may be waiting in between.
    pub(super) fn live(&self) -> Option<Live<'_>> {
        let retired = self.retired.read().unwrap_or_else(PoisonError::into_inner);
        (!*retired).then(|| Live {
            handle: self.handle,
            _retired: retired,
        })
    }

    /// Whether it was retired: all its work is done then.
    pub(super) fn is_retired(&self) -> bool {
        matches!(self.owner, Owner::Others) && self.live().is_none()
    }

    /// Whether both are the same stream. The driver may give the handle of one that has ended to another.
    pub(super) fn is(&self, other: &Self) -> bool {
        let same = self.handle == other.handle && self.device.number() == other.device.number();
        same && (std::ptr::eq(self, other) || !(self.is_retired() || other.is_retired()))
    }

    /// Whether it is known when nobody has a handle of it any more: of others' streams there may be some that count apart.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.owner, Owner::Us)
    }

    /// Whether it is there for as long as this is: of others' streams that is as long as they have promised.
    pub(super) fn stays(&self) -> bool {
        !matches!(self.owner, Owner::Others) || self.handle == StreamHandle::NULL || self.is_retired()
    }

    /// As [`CudaStream::synchronize`].
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.device.enter_beside()?;
        let Some(live) = self.live() else {
            return Ok(());
        };
        // SAFETY: the stream lives, by the invariant.
        unsafe { self.device.driver().stream_synchronize(live.handle()) }
    }

    /// As [`CudaStream::is_capturing`].
    pub(super) fn is_capturing(&self) -> Result<bool, CudaError> {
        let _current = self.device.enter()?;
        self.live().map_or(Ok(false), |live| self.captures(&live))
    }

    /// Asks the driver whether the stream is captured. The context is this thread's.
    fn captures(&self, live: &Live<'_>) -> Result<bool, CudaError> {
        let mut status = CAPTURE_NONE;
        // SAFETY: the pointer is to a local; the stream lives, by the invariant.
        unsafe {
            self.device
                .driver()
                .stream_is_capturing(live.handle(), &raw mut status)
        }?;
        Ok(status != CAPTURE_NONE)
    }

    /// Whether somebody else captures it: nobody can wait for it, and to try spoils the capture. Of what we capture ourselves all
    /// that was there before is done. Where the driver cannot say, the next call to it will.
    pub(super) fn is_captured_by_others(&self) -> bool {
        if graph::is_captured(self) {
            return false;
        }
        // Of the legacy stream it refuses to say where one that goes with it is captured.
        self.is_capturing().unwrap_or_else(|error| error.is_of_capture())
    }

    /// Whether all its work is done. Where the driver cannot say it is not.
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
    /// A new stream, which does not wait for the legacy default one.
    ///
    /// # Errors
    /// What the driver says.
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

    /// The legacy default stream, which is there on every device.
    #[must_use]
    pub fn legacy(device: &CudaDevice) -> Self {
        Self::of(device, StreamHandle::NULL, Owner::Others)
    }

    /// A stream that others have made, as the driver's `CUstream`; they end it.
    ///
    /// # Safety
    /// It is a stream of the device's primary context. It lives until [`retire`](Self::retire) has answered `Ok`, or else for as long
    /// as any handle of this, and any pool that was asked for a block on it or told that one was used there: pools keep handles of the
    /// streams they know. It is not the per-thread default one, which is another stream on each thread.
    #[must_use]
    pub unsafe fn from_raw(device: &CudaDevice, stream: *mut c_void) -> Self {
        Self(Arc::new(Handles(RawStream::of_others(
            device,
            StreamHandle(stream),
        ))))
    }

    /// Says that those who made the stream are about to end it. Waits until its work is done. From then on nothing here asks the
    /// driver about it: no handle of it, however many were made, no buffer, and no pool. Blocks that were used on it are free for
    /// other streams. To put work on it is refused with [`CudaError::StreamEnded`].
    ///
    /// Call it before the stream ends: a driver may crash when it is given one that has ended. Nobody may put work on the stream while
    /// this is called or later, by the driver or by another library either. Of a stream that was not made by
    /// [`from_raw`](Self::from_raw), and of the legacy default stream, this waits and does nothing else.
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
    /// // SAFETY: it lives until it was retired.
    /// let stream = unsafe { CudaStream::from_raw(&device, theirs) };
    /// drop(pool.alloc_from(&[1.0f32, 2.0], &stream)?);
    /// stream.retire()?;
    /// the_other_library_ends_it(theirs);
    /// drop(pool); // it waits for its other streams
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CudaError::Captured`] while the stream is captured, and what the driver says. The stream is not retired then, and must
    /// live on, unless the error [is fatal](CudaError::is_fatal): nothing goes on in a context that is lost.
    pub fn retire(&self) -> Result<(), CudaError> {
        if self.is_capturing()? {
            return Err(CudaError::Captured);
        }
        let waited = self.synchronize();
        let over = waited.is_ok() || waited.is_err_and(|error| error.is_fatal());
        let raw = self.raw();
        if over && !raw.stays() {
            *raw.retired.write().unwrap_or_else(PoisonError::into_inner) = true;
        }
        waited
    }

    /// A stream that lives for as long as its keeper does.
    #[cfg(feature = "cudarc")]
    pub(super) fn kept_by(
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

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.0.device
    }

    /// The driver's `CUstream`; null is the legacy default stream.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.0.0.handle.0
    }

    /// Waits until all its work is done.
    ///
    /// # Errors
    /// What the driver says: also of work that failed before.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.raw().synchronize()
    }

    /// Waits for it when memory of the host's is lent to its work, so it does so for certain: of a device that is lost nothing goes
    /// on.
    pub(super) fn wait(&self) -> Result<(), CudaError> {
        loop {
            // The driver refuses to say of the legacy stream while one that goes with it is captured. Nobody can wait for it then, and
            // to try breaks that capture; to ask does not. A capture ends.
            while self.is_capturing().is_err_and(|error| error.is_of_capture()) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            match settle_on(self, || self.synchronize()) {
                Ok(()) => return Ok(()),
                // A capture of another stream began in between. What a captured stream was given is written down and not done.
                Err(why) if why.error.is_of_capture() && !self.is_capturing().unwrap_or(false) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                Err(why) => return Err(why.error),
            }
        }
    }

    /// Has work that is put here from now on wait, on the device, for what the other stream has to do by now.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_for(&self, other: &Self) -> Result<(), CudaError> {
        if self == other {
            return Ok(());
        }
        self.expect_live()?;
        if other.raw().is_retired() {
            return Ok(());
        }
        let joined = graph::joins(self, other)?;
        // The driver keeps what it needs of the mark until it is past.
        let waits = Mark::new(other.device()).and_then(|mark| {
            mark.record_captured(other)?;
            mark.hold_captured(self)
        });
        if joined && waits.is_err() {
            graph::stays_out(self);
        }
        waits
    }

    /// Whether what is put here is captured, and not done.
    ///
    /// # Errors
    /// What the driver says.
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        self.raw().is_capturing()
    }

    /// Whether it is a device's, and work may be put on it.
    pub(crate) fn expect_on(&self, device: &CudaDevice) -> Result<(), CudaError> {
        let (expected, found) = (device.number(), self.device().number());
        if expected == found {
            return self.expect_live();
        }
        Err(CudaError::OtherDevice { expected, found })
    }

    /// Whether work may be put on it.
    pub(super) fn expect_live(&self) -> Result<(), CudaError> {
        match self.raw().is_retired() {
            true => Err(CudaError::StreamEnded),
            false => Ok(()),
        }
    }

    /// Enters its device's context, to put work on it.
    pub(super) fn enter(&self) -> Result<Current<'static>, CudaError> {
        self.expect_live()?;
        self.device().enter()
    }

    /// The driver's handle, for work that is put on it: by who has [entered](Self::enter) or [expects](Self::expect_live) it.
    pub(super) fn handle(&self) -> StreamHandle {
        self.raw().handle
    }

    /// The stream itself, to be kept without being a handle of it.
    pub(super) fn raw(&self) -> &Arc<RawStream> {
        &self.0.0
    }

    /// Whether anybody has a handle of it, now and later.
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
