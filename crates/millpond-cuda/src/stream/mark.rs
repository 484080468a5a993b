//! Points in a stream's work that can be waited for.

use super::{CudaStream, RawStream};
use crate::abi::{EVENT_WITH_TIME, EVENT_WITHOUT_TIME, EventHandle, NOT_READY};
use crate::device::CudaDevice;
use crate::error::{CudaError, insist};
use crate::fork;
use crate::wake::{Place, Signal};
use std::ffi::c_uint;
use std::sync::Arc;

/// The number of unused events that a device keeps for later marks: about as many as a program with many threads uses at once.
const SPARE_EVENTS: usize = 256;

/// A point in the work of a device's streams. After it is recorded, the host and other streams can wait for it.
pub struct Mark {
    device: CudaDevice,
    event: EventHandle,
    /// Whether another mark may reuse the event after this one. The other mark only has to record the event again, even if a stream still
    /// waits for the event. Events that record the time are of another kind and are not reused.
    serves_again: bool,
}

impl Mark {
    #[doc(hidden)]
    pub fn new(device: &CudaDevice) -> Result<Self, CudaError> {
        // In a forked process, the thread that holds the lock may not exist.
        fork::check()?;
        // Creating events is slow if several threads do it at once, so the device keeps unused events.
        let spare = device.spare_events().pop();
        let mut mark = match spare {
            Some(event) => Self {
                device: device.clone(),
                event,
                serves_again: false,
            },
            None => Self::with_flags(device, EVENT_WITHOUT_TIME)?,
        };
        mark.serves_again = true;
        Ok(mark)
    }

    /// Creates a mark that records the time at which the device reaches it, which takes the device slightly longer.
    pub(crate) fn timed(device: &CudaDevice) -> Result<Self, CudaError> {
        Self::with_flags(device, EVENT_WITH_TIME)
    }

    fn with_flags(device: &CudaDevice, flags: c_uint) -> Result<Self, CudaError> {
        let _current = device.enter_beside()?;
        let mut event = EventHandle::NULL;
        // SAFETY: the pointer is to a local.
        unsafe { device.driver().event_create(&raw mut event, flags) }?;
        Ok(Self {
            device: device.clone(),
            event,
            serves_again: false,
        })
    }

    /// Records the mark at the present end of a stream of its device.
    ///
    /// # Errors
    /// Returns [`CudaError::Captured`] if the stream is captured, because the mark could not be waited for.
    #[doc(hidden)]
    pub fn record(&self, stream: &CudaStream) -> Result<(), CudaError> {
        expect_uncaptured(stream)?;
        self.record_captured(stream)
    }

    /// Like [`record`](Self::record), but also records in a capture, where the mark orders captured work.
    pub(crate) fn record_captured(&self, stream: &CudaStream) -> Result<(), CudaError> {
        self.record_raw(stream.raw())
    }

    /// Like [`record_captured`](Self::record_captured), for a stream that may no longer have a handle.
    pub(crate) fn record_raw(&self, stream: &RawStream) -> Result<(), CudaError> {
        let _current = self.device.enter()?;
        let live = stream.live().ok_or(CudaError::StreamEnded)?;
        // SAFETY: the event is ours and the stream lives.
        unsafe { self.device.driver().event_record(self.event, live.handle()) }
    }

    /// Makes a stream of any device wait for the mark, on the device.
    ///
    /// # Errors
    /// Returns [`CudaError::Captured`] if the stream is captured. Captured work cannot wait for work outside of the capture, and an attempt
    /// invalidates the capture.
    #[doc(hidden)]
    pub fn hold(&self, stream: &CudaStream) -> Result<(), CudaError> {
        expect_uncaptured(stream)?;
        self.hold_captured(stream)
    }

    /// Like [`hold`](Self::hold), but also works in a capture, with a mark of that capture. A stream that is not part of the capture joins
    /// it.
    pub(crate) fn hold_captured(&self, stream: &CudaStream) -> Result<(), CudaError> {
        // The handle of the default stream means the default stream of the current context.
        let _current = stream.enter()?;
        // SAFETY: the event is ours and the stream lives.
        unsafe {
            self.device
                .driver()
                .stream_wait_event(stream.handle(), self.event, 0)
        }
    }

    /// Returns whether the device has passed the mark.
    pub(crate) fn is_past(&self) -> Result<bool, CudaError> {
        let _current = self.device.enter_beside()?;
        // SAFETY: the event is ours.
        match unsafe { self.device.driver().event_query(self.event) } {
            Ok(()) => Ok(true),
            Err(CudaError::Driver { code: NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Fires a signal when the device has passed the mark, which was recorded at this place.
    pub(crate) fn fire(&self, place: Place, signal: &Arc<Signal>) -> Result<(), CudaError> {
        let _current = self.device.enter_beside()?;
        let streams = self.device.wake_streams();
        // SAFETY: the device's context is current, and the event is ours.
        unsafe { streams.fire_after(self.device.driver(), self.event, place, signal) }
    }

    /// Returns the milliseconds from another mark to this one. Both must record the time and be past.
    pub(crate) fn milliseconds_since(&self, begin: &Self) -> Result<f32, CudaError> {
        let _current = self.device.enter_beside()?;
        let mut time = 0.0;
        // SAFETY: the pointer is to a local, and both events are ours.
        unsafe {
            self.device
                .driver()
                .event_elapsed(&raw mut time, begin.event, self.event)
        }?;
        Ok(time)
    }

    /// Waits for the mark.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        let _current = self.device.enter_beside()?;
        // SAFETY: the event is ours.
        unsafe { self.device.driver().event_synchronize(self.event) }
    }
}

impl std::fmt::Debug for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mark")
            .field("device", &self.device.number())
            .finish_non_exhaustive()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if fork::is_forked() {
            return;
        }
        if self.serves_again {
            let mut spare = self.device.spare_events();
            if spare.len() < SPARE_EVENTS {
                spare.push(self.event);
                return;
            }
        }
        if let Ok(_current) = self.device.enter_beside() {
            // If the driver refuses, the event ends with the context.
            // SAFETY: the event was made by us, and it is not used any more. The driver keeps what it needs of it until it is past.
            let _ = insist(|| unsafe { self.device.driver().event_destroy(self.event) });
        }
    }
}

/// Checks that work on a stream is run and not captured.
pub(crate) fn expect_uncaptured(stream: &CudaStream) -> Result<(), CudaError> {
    match stream.is_capturing()? {
        true => Err(CudaError::Captured),
        false => Ok(()),
    }
}

/// The reason why a wait failed, and whether the work has ended nevertheless.
#[derive(Clone, Copy, Debug)]
pub struct Unsettled {
    pub error: CudaError,
    /// The result of [`nothing_goes_on`] for the error.
    pub(crate) over: bool,
}

/// Waits with `wait` until no work of a device uses memory that was lent to the device. If the wait fails, the memory stays
/// lent: waiting for the whole device would invalidate captures of other libraries.
pub(crate) fn settle(wait: impl FnMut() -> Result<(), CudaError>) -> Result<(), Unsettled> {
    insist(wait).map_err(|error| Unsettled {
        error,
        over: nothing_goes_on(error),
    })
}

/// Like `settle`, but if `wait` fails, this waits for an event in `stream`, the stream that was given the work.
pub fn settle_on(stream: &CudaStream, wait: impl FnMut() -> Result<(), CudaError>) -> Result<(), Unsettled> {
    let marked = || {
        let mark = Mark::new(stream.device())?;
        mark.record(stream)?;
        mark.wait()
    };
    settle(wait).or_else(|why| match why.over {
        true => Err(why),
        false => settle(marked).map_err(|then| if then.over { then } else { why }),
    })
}

/// Returns whether an error means that no work of this process runs on the device: the device is lost, or never belonged to this process.
pub(crate) fn nothing_goes_on(error: CudaError) -> bool {
    error.is_fatal() || error == CudaError::Forked
}
