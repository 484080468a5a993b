//! Streams: the order in which work happens on a device.

use super::abi::{CAPTURE_NONE, STREAM_NON_BLOCKING, StreamHandle};
use super::device::CudaDevice;
use super::error::{CudaError, insist};
use super::graph;
use super::mark::{Mark, settle_on};
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Weak};

/// A stream of a device. Cloning makes another handle; one made by [`new`](Self::new) ends with the last of them, when its work
/// is done.
#[derive(Clone)]
pub struct CudaStream(Arc<Handles>);

/// What all clones of a handle share: once it has gone nobody has the stream but who keeps it to wait for it.
pub(super) struct Handles(Arc<RawStream>);

/// A stream, kept alive.
pub(super) struct RawStream {
    device: CudaDevice,
    handle: StreamHandle,
    owner: Owner,
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
        {
            let is_captured = || stream.is_capturing().unwrap_or(true);
            stream.device.leave(stream.handle, is_captured);
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
    pub(super) fn handle(&self) -> StreamHandle {
        self.handle
    }

    pub(super) fn device(&self) -> &CudaDevice {
        &self.device
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.handle == other.handle && self.device.number() == other.device.number()
    }

    /// Whether it is known when nobody has a handle of it any more: of others' streams there may be some that count apart.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.owner, Owner::Us)
    }

    /// Whether it is there for as long as this is: of others' streams that is as long as they have promised.
    pub(super) fn stays(&self) -> bool {
        !matches!(self.owner, Owner::Others) || self.handle == StreamHandle::NULL
    }

    /// As [`CudaStream::synchronize`].
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.device.enter_beside()?;
        // SAFETY: the stream lives: it is ours, or whoever made this has promised it.
        unsafe { self.device.driver().stream_synchronize(self.handle) }
    }

    /// As [`CudaStream::is_capturing`].
    pub(super) fn is_capturing(&self) -> Result<bool, CudaError> {
        let _current = self.device.enter()?;
        let mut status = CAPTURE_NONE;
        // SAFETY: the pointer is to a local; the stream lives.
        unsafe {
            self.device
                .driver()
                .stream_is_capturing(self.handle, &raw mut status)
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
        // SAFETY: the stream lives.
        !self.is_capturing().unwrap_or(true)
            && unsafe { self.device.driver().stream_query(self.handle) }.is_ok()
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
    /// It is a stream of the device's primary context, and lives for as long as any handle of this, and any pool that was asked
    /// for a block on it or told that one was used there: pools keep handles of the streams they know. It is not the per-thread
    /// default one, which is another stream on each thread.
    #[must_use]
    pub unsafe fn from_raw(device: &CudaDevice, stream: *mut c_void) -> Self {
        Self::of(device, StreamHandle(stream), Owner::Others)
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
        let stream = RawStream {
            device: device.clone(),
            handle,
            owner,
        };
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

    /// Whether it is a device's.
    pub(crate) fn expect_on(&self, device: &CudaDevice) -> Result<(), CudaError> {
        let (expected, found) = (device.number(), self.device().number());
        if expected == found {
            return Ok(());
        }
        Err(CudaError::OtherDevice { expected, found })
    }

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
