//! Events: positions in a stream's order that other streams and other processes can wait for.
//!
//! A wait for a record of another process is a piece of work that may not run before the record is complete. Meanwhile no lock
//! is held, and neither the stream's thread nor the seeded order stops. If the process dies first, the wait ends with
//! `CUDA_ERROR_EXTERNAL_DEVICE`. If a stream waited, the context keeps the error, because later work cannot be correct. If the
//! host waited, the error is not kept.
#![forbid(unsafe_code)]

use super::run::Promise;
use super::stream::After;
use super::{Driver, State};
use crate::access::Origin;
use crate::clock::Clock;
use crate::error::{Answer, Code};
use crate::event_page::{Outcome, Page, Record, Ticket};
use crate::memory::foreign::Raw;
use crate::thread;
use crate::work::action::Action;
use std::sync::{Arc, MutexGuard};

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIME: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
const BETWEEN_PROCESSES: u32 = 4;

/// One event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: u64,
    flags: u32,
    recorded: Option<Recorded>,
    /// The capture in which it was last recorded, and the nodes it stands for.
    pub(crate) captured: Option<(u64, Vec<usize>)>,
    /// The page that it shares with other processes, if any.
    page: Option<Arc<Page>>,
}

#[derive(Clone, Debug)]
struct Recorded {
    task: u64,
    end: u64,
    clock: Clock,
    /// Its number among the records of all processes.
    number: Option<u64>,
}

/// The latest record of an event.
#[derive(Clone, Debug)]
enum Last {
    /// The event was never recorded.
    None,
    Here(Recorded),
    /// Another process recorded it last.
    There(Record),
}

impl Event {
    fn last(&self) -> Last {
        let here = self.recorded.clone();
        let Some(page) = &self.page else {
            return here.map_or(Last::None, Last::Here);
        };
        match (page.latest(), here) {
            (0, _) => Last::None,
            (number, Some(here)) if here.number == Some(number) => Last::Here(here),
            (number, _) => Last::There(Record {
                page: Arc::clone(page),
                number,
            }),
        }
    }
}

impl State {
    pub(crate) fn create_event(&mut self, context: u64, flags: u32) -> Answer<u64> {
        // Events between processes do not support timing.
        let between = flags & BETWEEN_PROCESSES != 0;
        Code::INVALID_VALUE.when(flags & !7 != 0 || between && flags & NO_TIME == 0)?;
        self.healthy(context)?;
        let page = between.then(Page::new).transpose()?;
        Ok(self.enter_event(context, flags, page))
    }

    fn enter_event(&mut self, context: u64, flags: u32, page: Option<Page>) -> u64 {
        let handle = self.new_handle();
        let event = Event {
            context,
            flags,
            recorded: None,
            captured: None,
            page: page.map(Arc::new),
        };
        self.events.insert(handle, event);
        handle
    }

    /// Returns a handle of an event that was created for other processes. An event that was opened can be exported only by its
    /// own process.
    pub(crate) fn export_event(&self, handle: u64) -> Answer<Raw> {
        let event = self.event(handle)?;
        Code::INVALID_HANDLE.when(event.flags & BETWEEN_PROCESSES == 0)?;
        Ok(event.page.as_ref().ok_or(Code::INVALID_HANDLE)?.handle())
    }

    /// Opens an event of another process.
    pub(crate) fn open_event(&mut self, context: u64, raw: &Raw) -> Answer<u64> {
        self.healthy(context)?;
        let page = Page::open(raw)?;
        Ok(self.enter_event(context, NO_TIME, Some(page)))
    }

    pub(crate) fn event(&self, handle: u64) -> Answer<&Event> {
        self.events.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Returns the modelled milliseconds between two events.
    pub(crate) fn elapsed(&mut self, start: u64, end: u64) -> Answer<f32> {
        let time = |event: &Event| {
            Code::INVALID_HANDLE.when(event.flags & NO_TIME != 0)?;
            let recorded = event.recorded.as_ref().ok_or(Code::INVALID_HANDLE)?;
            Ok((recorded.task, recorded.end))
        };
        for handle in [start, end] {
            self.refuse_captured_event(handle)?;
        }
        let (start, end) = (time(self.event(start)?)?, time(self.event(end)?)?);
        Code::NOT_READY.when(!self.queue.is_done(start.0) || !self.queue.is_done(end.0))?;
        Ok(((end.1 as f64 - start.1 as f64) / 1e6) as f32)
    }

    /// Refuses to query a captured event. The query invalidates the capture.
    fn refuse_captured_event(&mut self, handle: u64) -> Answer {
        match self.event(handle)?.captured {
            Some((capture, _)) => self.invalidate(capture, Code::CAPTURED_EVENT),
            None => Ok(()),
        }
    }
}

impl Driver {
    pub(crate) fn record(&self, handle: u64, stream: u64, origin: Origin) -> Answer {
        let mut state = self.state();
        let event = state.event(handle)?;
        Code::INVALID_HANDLE.when(event.context != state.stream(stream)?.context)?;
        if let Some(capture) = state.stream(stream)?.capture {
            let nodes = state.capture_tail(capture, stream)?;
            let event = state.events.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
            event.captured = Some((capture, nodes));
            return Ok(());
        }
        let (mut state, ticket) = self.ticket(state, handle, stream)?;
        let ticket = ticket.map(Arc::new);
        let action = ticket.clone().map_or(Action::Nothing, Action::Tell);
        let Some(task) = state.enqueue(stream, action, origin)? else {
            return Ok(());
        };
        let found = state.stream(stream)?;
        let recorded = Recorded {
            task,
            end: found.end,
            clock: found.clock.clone(),
            number: ticket.as_ref().map(|ticket| ticket.0.number),
        };
        if let Some(ticket) = ticket {
            state.strict.tells(&recorded.clock);
            let record = ticket.0.clone();
            let promise = Promise { record, task };
            self.shared.tell_others(&mut state, promise);
        }
        if let Some(event) = state.events.get_mut(&handle) {
            event.recorded = Some(recorded);
            event.captured = None;
        }
        self.queued(state, task, stream);
        Ok(())
    }

    /// Returns a number for the record that is made now, if other processes have the event. If too many of its records are
    /// open, waits for the oldest, as a driver with a full queue does.
    fn ticket<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        handle: u64,
        stream: u64,
    ) -> Answer<(MutexGuard<'a, State>, Option<Ticket>)> {
        let Some(page) = state.event(handle)?.page.clone() else {
            return Ok((state, None));
        };
        loop {
            state.refuse_legacy_in_capture(stream)?;
            match page.claim() {
                Ok(ticket) => return Ok((state, Some(ticket))),
                Err(oldest) => page.want(oldest),
            }
            state = self.shared.pause_a_little(state);
        }
    }

    /// Orders all later work of the stream after the latest record.
    pub(crate) fn wait_event(&self, stream: u64, handle: u64, origin: Origin) -> Answer {
        let mut state = self.state();
        let event = state.event(handle)?;
        if let Some((capture, nodes)) = event.captured.clone() {
            return state.join_capture(capture, stream, &nodes);
        }
        let last = event.last();
        if let Some(capture) = state.stream(stream)?.capture {
            // A graph cannot wait for work outside of the capture.
            return match last {
                Last::None => Ok(()),
                _ => state.invalidate(capture, Code::STREAM_CAPTURE_ISOLATION),
            };
        }
        let mut after = After::default();
        let action = match last {
            Last::None => return Ok(()),
            Last::Here(recorded) => {
                after.add(recorded.task, recorded.end);
                after.clock = recorded.clock;
                Action::Nothing
            }
            Last::There(awaited) => {
                after.clock.see(state.strict.hears());
                Action::Await(awaited)
            }
        };
        if let Some(task) = state.enqueue_after(stream, action, origin, &after)? {
            self.queued(state, task, stream);
        }
        Ok(())
    }

    pub(crate) fn synchronise_event(&self, handle: u64) -> Answer {
        let mut state = self.state();
        state.refuse_captured_event(handle)?;
        state.refuse_unsafe(thread::number())?;
        let event = state.event(handle)?;
        let context = event.context;
        let mut state = match event.last() {
            Last::None => return Ok(()),
            Last::Here(recorded) => {
                let mut state = self.shared.wait_for(state, &[recorded.task]);
                state.host.join(&recorded.clock);
                state.time.host_waits(thread::number(), recorded.end);
                state
            }
            Last::There(awaited) => self.hear(state, &awaited)?,
        };
        state.trim_pools();
        state.healthy(context)?;
        Ok(())
    }

    /// Returns when another process has completed its record.
    fn hear<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        awaited: &Record,
    ) -> Answer<MutexGuard<'a, State>> {
        let heard = state.strict.hears();
        while awaited.outcome() == Outcome::Open {
            awaited.want();
            state = self.shared.pause_a_little(state);
        }
        Code::EXTERNAL_DEVICE.when(awaited.outcome() == Outcome::Lost)?;
        state.host.see(heard);
        Ok(state)
    }

    pub(crate) fn query_event(&self, handle: u64) -> Answer {
        let mut state = self.state();
        state.refuse_captured_event(handle)?;
        state.refuse_unsafe(thread::number())?;
        let event = state.event(handle)?;
        let context = event.context;
        let recorded = match event.last() {
            Last::None => return Ok(()),
            Last::Here(recorded) => recorded,
            Last::There(awaited) => return self.query_there(state, context, &awaited),
        };
        let done = state.queue.is_done(recorded.task);
        let mut state = if done { state } else { self.shared.poll(state) };
        state.healthy(context)?;
        Code::NOT_READY.when(!state.queue.is_done(recorded.task))?;
        state.host.join(&recorded.clock);
        Ok(())
    }

    fn query_there<'a>(&'a self, mut state: MutexGuard<'a, State>, context: u64, awaited: &Record) -> Answer {
        let heard = state.strict.hears();
        if awaited.outcome() == Outcome::Open {
            awaited.want();
            state = self.shared.poll(state);
        }
        state.healthy(context)?;
        match awaited.outcome() {
            Outcome::Open => Err(Code::NOT_READY),
            Outcome::Lost => Err(Code::EXTERNAL_DEVICE),
            Outcome::Done => {
                state.host.see(heard);
                Ok(())
            }
        }
    }
}
