//! Points in the work of streams, as the engine asks for them.

use super::abi::{EVENT_WITHOUT_TIME, EventHandle};
use super::driver::Driver;
use super::error::{CudaError, insist};
use super::stream::RawStream;
use millpond_engine::Event;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Events that were not seen to be complete, and the driver's that are used again.
///
/// Invariant: each handle is the driver's, of the context that is entered for every call here, and is in one place.
#[derive(Debug, Default)]
pub(super) struct Events {
    pending: BTreeMap<Event, Point>,
    spare: Vec<EventHandle>,
    next: u64,
}

/// A point in a stream's work.
#[derive(Debug)]
struct Point {
    stream: Arc<RawStream>,
    /// None where it could not be marked: others capture the stream, or the driver refused. It is marked later then, where the
    /// stream's work ends by that time.
    mark: Option<EventHandle>,
}

impl Events {
    /// An event that is complete already.
    pub(super) fn past(&mut self) -> Event {
        self.next += 1;
        Event(self.next)
    }

    /// Marks the present end of a stream's work.
    pub(super) fn record(&mut self, driver: &Driver, stream: Arc<RawStream>) -> Event {
        // Some are never asked for again: those that are complete serve anew.
        while let Some((&oldest, _)) = self.pending.first_key_value() {
            if !self.is_complete(driver, oldest) {
                break;
            }
        }
        if stream.is_retired() {
            return self.past();
        }
        let mark = self.mark(driver, &stream).ok();
        let event = self.past();
        self.pending.insert(event, Point { stream, mark });
        event
    }

    /// The same without the driver: it is asked later.
    pub(super) fn note(&mut self, stream: Arc<RawStream>) -> Event {
        let event = self.past();
        self.pending.insert(event, Point { stream, mark: None });
        event
    }

    /// An event of the driver's at the present end of a stream's work. What others capture is left alone: an event in it would be
    /// a part of their graph.
    fn mark(&mut self, driver: &Driver, stream: &RawStream) -> Result<EventHandle, CudaError> {
        if stream.is_captured_by_others() {
            return Err(CudaError::Captured);
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
        let recorded = match stream.live() {
            // SAFETY: the event is ours by the invariant, and the stream lives as long as `live` is held.
            Some(live) => unsafe { driver.event_record(handle, live.handle()) },
            None => Err(CudaError::StreamEnded),
        };
        match recorded {
            Ok(()) => Ok(handle),
            Err(error) => {
                self.spare.push(handle);
                Err(error)
            }
        }
    }

    /// The driver's for an event, which is marked now where it could not be before; none where the event is complete.
    fn marked(&mut self, driver: &Driver, event: Event) -> Result<Option<EventHandle>, CudaError> {
        let Some(point) = self.pending.get(&event) else {
            return Ok(None);
        };
        if point.mark.is_some() {
            return Ok(point.mark);
        }
        if point.stream.is_retired() {
            self.pending.remove(&event);
            return Ok(None);
        }
        let stream = Arc::clone(&point.stream);
        let mark = self.mark(driver, &stream)?;
        self.pending.insert(
            event,
            Point {
                stream,
                mark: Some(mark),
            },
        );
        Ok(Some(mark))
    }

    /// Whether the device has passed it. Where the driver cannot say it has not.
    pub(super) fn is_complete(&mut self, driver: &Driver, event: Event) -> bool {
        let handle = match self.marked(driver, event) {
            Ok(Some(handle)) => handle,
            Ok(None) => return true,
            Err(_) => return false,
        };
        // SAFETY: the event is ours by the invariant.
        match unsafe { driver.event_query(handle) } {
            Ok(()) => {
                self.pending.remove(&event);
                self.spare.push(handle);
                true
            }
            Err(error) => {
                // Others began to capture the stream just before it was marked.
                if error.is_of_capture()
                    && let Some(point) = self.pending.get_mut(&event)
                {
                    self.spare.extend(point.mark.take());
                }
                false
            }
        }
    }

    /// Makes a stream wait for it, on the device; or waits for it here, where others capture that stream and work from before
    /// would spoil the capture.
    pub(super) fn wait(
        &mut self,
        driver: &Driver,
        stream: &RawStream,
        event: Event,
    ) -> Result<(), CudaError> {
        let Some(handle) = self.marked(driver, event)? else {
            return Ok(());
        };
        if stream.is_captured_by_others() {
            // SAFETY: the event is ours by the invariant.
            return insist(|| unsafe { driver.event_synchronize(handle) });
        }
        let Some(live) = stream.live() else {
            // No more work is put on a retired stream, so nothing has to wait for the event.
            return Ok(());
        };
        // SAFETY: the event is ours by the invariant, and the stream lives as long as `live` is held.
        unsafe { driver.stream_wait_event(live.handle(), handle, 0) }
    }

    /// All are complete: their streams were waited for.
    pub(super) fn all_passed(&mut self) {
        let passed = std::mem::take(&mut self.pending);
        self.spare
            .extend(passed.into_values().filter_map(|point| point.mark));
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
