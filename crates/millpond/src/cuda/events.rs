//! Points in the work of streams, as the engine asks for them.

use super::abi::{EVENT_WITHOUT_TIME, EventHandle, StreamHandle};
use super::driver::Driver;
use super::error::{CudaError, insist};
use millpond_engine::Event;
use std::collections::BTreeMap;

/// Events that were not seen to be complete, and the driver's that are used again.
///
/// Invariant: each handle is the driver's, of the context that is entered for every call here, and is in one place.
#[derive(Debug, Default)]
pub(super) struct Events {
    pending: BTreeMap<Event, EventHandle>,
    spare: Vec<EventHandle>,
    next: u64,
}

impl Events {
    /// An event that is complete already.
    pub(super) fn past(&mut self) -> Event {
        self.next += 1;
        Event(self.next)
    }

    /// Marks the present end of a stream's work.
    pub(super) fn record(&mut self, driver: &Driver, stream: StreamHandle) -> Result<Event, CudaError> {
        // Some are never asked for again: those that are complete serve anew.
        while let Some((&oldest, _)) = self.pending.first_key_value() {
            if !self.is_complete(driver, oldest) {
                break;
            }
        }
        let handle = match self.spare.pop() {
            Some(handle) => handle,
            None => {
                let mut handle = EventHandle::NULL;
                // SAFETY: the pointer is to a local.
                unsafe { driver.event_create(&raw mut handle, EVENT_WITHOUT_TIME) }?;
                handle
            }
        };
        // SAFETY: the event is ours by the invariant, the stream the caller's.
        if let Err(error) = unsafe { driver.event_record(handle, stream) } {
            self.spare.push(handle);
            return Err(error);
        }
        let event = self.past();
        self.pending.insert(event, handle);
        Ok(event)
    }

    /// Whether the device has passed it. Where the driver cannot say it has not.
    pub(super) fn is_complete(&mut self, driver: &Driver, event: Event) -> bool {
        let Some(&handle) = self.pending.get(&event) else {
            return true;
        };
        // SAFETY: the event is ours by the invariant.
        match unsafe { driver.event_query(handle) } {
            Ok(()) => {
                self.pending.remove(&event);
                self.spare.push(handle);
                true
            }
            Err(_) => false,
        }
    }

    /// Makes a stream wait for it, on the device.
    pub(super) fn wait(&self, driver: &Driver, stream: StreamHandle, event: Event) -> Result<(), CudaError> {
        match self.pending.get(&event) {
            // SAFETY: the event is ours by the invariant, the stream the caller's.
            Some(&handle) => unsafe { driver.stream_wait_event(stream, handle, 0) },
            None => Ok(()),
        }
    }

    /// All are complete: the device was waited for.
    pub(super) fn all_passed(&mut self) {
        let passed = std::mem::take(&mut self.pending);
        self.spare.extend(passed.into_values());
    }

    /// Gives the driver's back.
    pub(super) fn end(&mut self, driver: &Driver) {
        self.all_passed();
        for handle in self.spare.drain(..) {
            // Nothing can be done where the driver will not have it back.
            // SAFETY: the event is ours by the invariant, and forgotten here.
            let _ = insist(|| unsafe { driver.event_destroy(handle) });
        }
    }
}
