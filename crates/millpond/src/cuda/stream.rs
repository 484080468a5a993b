//! Streams: the order in which work happens on a device.

use super::abi::{STREAM_NON_BLOCKING, StreamHandle};
use super::device::CudaDevice;
use super::error::{CudaError, insist};
use super::mark::Mark;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// A stream of a device. Cloning makes another handle; one made by [`new`](Self::new) ends with the last of them, when its work
/// is done.
#[derive(Clone)]
pub struct CudaStream(Arc<Inner>);

struct Inner {
    device: CudaDevice,
    handle: StreamHandle,
    owned: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if let Ok(_current) = self.device.enter() {
            // The driver ends it when its work is done; one that refuses ends it with the context.
            // SAFETY: made by us, and nobody has it any more.
            let _ = insist(|| unsafe { self.device.driver().stream_destroy(self.handle) });
        }
    }
}

impl CudaStream {
    /// A new stream, which does not wait for the legacy default one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &CudaDevice) -> Result<Self, CudaError> {
        let _current = device.enter()?;
        let mut handle = StreamHandle::NULL;
        // SAFETY: the pointer is to a local.
        unsafe {
            device
                .driver()
                .stream_create(&raw mut handle, STREAM_NON_BLOCKING)
        }?;
        Ok(Self::of(device, handle, true))
    }

    /// The legacy default stream, which is there on every device.
    #[must_use]
    pub fn legacy(device: &CudaDevice) -> Self {
        Self::of(device, StreamHandle::NULL, false)
    }

    /// A stream that others have made, as the driver's `CUstream`; they end it.
    ///
    /// # Safety
    /// It is a stream of the device's primary context, and lives for as long as any handle of this, and any block that was
    /// asked for or used on it.
    #[must_use]
    pub unsafe fn from_raw(device: &CudaDevice, stream: *mut c_void) -> Self {
        Self::of(device, StreamHandle(stream), false)
    }

    fn of(device: &CudaDevice, handle: StreamHandle, owned: bool) -> Self {
        Self(Arc::new(Inner {
            device: device.clone(),
            handle,
            owned,
        }))
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.device
    }

    /// The driver's `CUstream`; null is the legacy default stream.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.0.handle.0
    }

    /// Waits until all its work is done.
    ///
    /// # Errors
    /// What the driver says: also of work that failed before.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.device().enter()?;
        // SAFETY: the stream lives: it is ours, or whoever made this has promised it.
        unsafe { self.device().driver().stream_synchronize(self.0.handle) }
    }

    /// Has work that is put here from now on wait, on the device, for what the other stream has to do by now.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_for(&self, other: &Self) -> Result<(), CudaError> {
        if self == other {
            return Ok(());
        }
        // The driver keeps what it needs of the mark until it is past.
        let mark = Mark::new(other.device())?;
        mark.record(other)?;
        mark.hold(self)
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
        self.0.handle
    }

    /// Whether nobody else has a handle of it.
    pub(super) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// Two handles of the same stream are equal.
impl PartialEq for CudaStream {
    fn eq(&self, other: &Self) -> bool {
        self.0.handle == other.0.handle && self.device().number() == other.device().number()
    }
}

impl Eq for CudaStream {}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaStream")
            .field("device", &self.device().number())
            .field("handle", &self.0.handle.0)
            .finish_non_exhaustive()
    }
}
