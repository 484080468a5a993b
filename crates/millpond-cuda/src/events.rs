//! The engine's events: points in the work of streams.

use super::abi::{EVENT_WITHOUT_TIME, EventHandle};
use super::driver::Driver;
use super::error::{CudaError, insist};
use super::stream::RawStream;
use millpond_engine::Event;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pending events of the engine, and unused events of the driver.
///
/// Invariant: each handle is an event of the context that is entered for every call here, and is stored in only one place.
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
    /// `None` if the point could not be marked, because another library captures the stream or the driver refused. It is then marked later,
    /// at the end of the stream's work at that time.
    mark: Option<EventHandle>,
}

impl Events {
    /// Returns an event that is complete already.
    pub(super) fn past(&mut self) -> Event {
        self.next += 1;
        Event(self.next)
    }

    /// Records an event at the present end of a stream's work.
    pub(super) fn record(&mut self, driver: &Driver, stream: Arc<RawStream>) -> Event {
        // The engine does not query every event again, so the driver's events of complete ones are collected here.
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

    /// Creates an event without calling the driver. The driver's event is recorded later.
    pub(super) fn note(&mut self, stream: Arc<RawStream>) -> Event {
        let event = self.past();
        self.pending.insert(event, Point { stream, mark: None });
        event
    }

    /// Records an event of the driver at the present end of a stream's work. Returns an error if another library captures the stream,
    /// because the event would become part of its graph.
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

    /// Returns the driver's event for an event, and records it now if that was not possible before. Returns `None` if the event is
    /// complete.
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

    /// Returns whether the device has passed the event. Returns `false` if the driver cannot tell.
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
                // Another library began to capture the stream just before it was marked.
                if error.is_of_capture()
                    && let Some(point) = self.pending.get_mut(&event)
                {
                    self.spare.extend(point.mark.take());
                }
                false
            }
        }
    }

    /// Makes a stream wait for the event, on the device. If another library captures that stream, this thread waits instead, because
    /// waiting for work outside of the capture would invalidate it.
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

    /// Marks all events as complete. The caller has waited for their streams.
    pub(super) fn all_passed(&mut self) {
        let passed = std::mem::take(&mut self.pending);
        self.spare
            .extend(passed.into_values().filter_map(|point| point.mark));
    }

    /// Destroys the driver's events.
    pub(super) fn end(&mut self, driver: &Driver) {
        self.all_passed();
        for handle in self.spare.drain(..) {
            // There is no remedy if the driver refuses.
            // SAFETY: the event is ours by the invariant, and is removed here.
            let _ = insist(|| unsafe { driver.event_destroy(handle) });
        }
    }
}
