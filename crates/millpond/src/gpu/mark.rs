//! Points in a stream's work that others wait for.

use super::abi::{EVENT_WITH_TIME, EVENT_WITHOUT_TIME, EventHandle, NOT_READY};
use super::device::CudaDevice;
use super::error::{CudaError, insist};
use super::fork;
use super::stream::{CudaStream, RawStream};
use std::ffi::c_uint;

/// The number of unused events that a device keeps for later marks: about as many as a program with many threads uses at once.
const SPARE_EVENTS: usize = 256;

/// A point in the work of a device's streams. Once it has been recorded, the host and other streams can wait for it.
pub(crate) struct Mark {
    device: CudaDevice,
    event: EventHandle,
    /// Whether another mark may reuse the event after this one. Recording the event again is enough for that, even if a stream
    /// still waits for the event. Events that keep the time are of another kind and are not reused.
    serves_again: bool,
}

impl Mark {
    pub(crate) fn new(device: &CudaDevice) -> Result<Self, CudaError> {
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

    /// One that keeps the time at which the device came to it, which takes the device a little longer.
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

    /// Puts it at the present end of a stream of its device.
    ///
    /// # Errors
    /// [`CudaError::Captured`] where the stream is: nobody could wait for it then.
    pub(crate) fn record(&self, stream: &CudaStream) -> Result<(), CudaError> {
        expect_uncaptured(stream)?;
        self.record_captured(stream)
    }

    /// The same in a capture, where it orders what is captured.
    pub(super) fn record_captured(&self, stream: &CudaStream) -> Result<(), CudaError> {
        self.record_raw(stream.raw())
    }

    /// Like [`record_captured`](Self::record_captured), for a stream that may no longer have a handle.
    pub(super) fn record_raw(&self, stream: &RawStream) -> Result<(), CudaError> {
        let _current = self.device.enter()?;
        let live = stream.live().ok_or(CudaError::StreamEnded)?;
        // SAFETY: the event is ours and the stream lives.
        unsafe { self.device.driver().event_record(self.event, live.handle()) }
    }

    /// Has a stream of any device wait for it, on the device.
    ///
    /// # Errors
    /// [`CudaError::Captured`] where the stream is: what is captured waits for nothing else, and to ask for it spoils the capture.
    pub(crate) fn hold(&self, stream: &CudaStream) -> Result<(), CudaError> {
        expect_uncaptured(stream)?;
        self.hold_captured(stream)
    }

    /// The same in a capture, of a mark in it: a stream that was not part of it joins.
    pub(super) fn hold_captured(&self, stream: &CudaStream) -> Result<(), CudaError> {
        // The default stream is that of the context which is entered.
        let _current = stream.enter()?;
        // SAFETY: the event is ours and the stream lives.
        unsafe {
            self.device
                .driver()
                .stream_wait_event(stream.handle(), self.event, 0)
        }
    }

    /// Whether it is past.
    pub(crate) fn is_past(&self) -> Result<bool, CudaError> {
        let _current = self.device.enter_beside()?;
        // SAFETY: the event is ours.
        match unsafe { self.device.driver().event_query(self.event) } {
            Ok(()) => Ok(true),
            Err(CudaError::Driver { code: NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Milliseconds from another one to this; both keep the time, and are past.
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

    /// Waits for it.
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
            // A driver that refuses ends it with the context.
            // SAFETY: made by us, and nobody has it any more; the driver keeps what it needs of it until it is past.
            let _ = insist(|| unsafe { self.device.driver().event_destroy(self.event) });
        }
    }
}

/// Whether what is put on a stream is done, and not written down.
pub(super) fn expect_uncaptured(stream: &CudaStream) -> Result<(), CudaError> {
    match stream.is_capturing()? {
        true => Err(CudaError::Captured),
        false => Ok(()),
    }
}

/// Why something cannot be waited for, and whether it is over all the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unsettled {
    pub(crate) error: CudaError,
    /// As [`nothing_goes_on`] has it.
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

/// Like [`settle`], but if `wait` fails, this waits for an event in `stream`, the stream that was given the work.
pub(crate) fn settle_on(
    stream: &CudaStream,
    wait: impl FnMut() -> Result<(), CudaError>,
) -> Result<(), Unsettled> {
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

/// Whether an error means that no work of the device goes on for this process: it is lost, or was never this process's.
pub(crate) fn nothing_goes_on(error: CudaError) -> bool {
    error.is_fatal() || error == CudaError::Forked
}
