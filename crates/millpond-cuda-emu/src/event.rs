//! Events: a place in a stream's order that others can wait for.
#![forbid(unsafe_code)]

use crate::driver::{Driver, State};
use crate::error::{Answer, Code};
use crate::stream::After;
use crate::strict::Origin;
use crate::work::action::Action;
use crate::work::clock::Clock;

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIME: u32 = 2;

/// One event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: u64,
    flags: u32,
    recorded: Option<Recorded>,
    /// The capture it was last recorded in, and the nodes it stands for.
    pub(crate) captured: Option<(u64, Vec<usize>)>,
}

#[derive(Clone, Debug)]
struct Recorded {
    task: u64,
    end: u64,
    clock: Clock,
}

impl State {
    pub(crate) fn create_event(&mut self, context: u64, flags: u32) -> Answer<u64> {
        // Events between processes cannot have times.
        if flags & !7 != 0 || flags & 4 != 0 && flags & NO_TIME == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.healthy(context)?;
        let handle = self.new_handle();
        self.events.insert(
            handle,
            Event {
                context,
                flags,
                recorded: None,
                captured: None,
            },
        );
        Ok(handle)
    }

    pub(crate) fn event(&self, handle: u64) -> Answer<&Event> {
        self.events.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Modelled milliseconds between two events.
    pub(crate) fn elapsed(&mut self, start: u64, end: u64) -> Answer<f32> {
        let time = |event: &Event| {
            if event.flags & NO_TIME != 0 {
                return Err(Code::INVALID_HANDLE);
            }
            let recorded = event.recorded.as_ref().ok_or(Code::INVALID_HANDLE)?;
            Ok((recorded.task, recorded.end))
        };
        for handle in [start, end] {
            self.refuse_captured_event(handle)?;
        }
        let (start, end) = (time(self.event(start)?)?, time(self.event(end)?)?);
        if !self.queue.is_done(start.0) || !self.queue.is_done(end.0) {
            return Err(Code::NOT_READY);
        }
        Ok(((end.1 as f64 - start.1 as f64) / 1e6) as f32)
    }

    /// A captured event answers no question, and asking ends the capture in failure.
    fn refuse_captured_event(&mut self, handle: u64) -> Answer {
        match self.event(handle)?.captured {
            Some((capture, _)) => {
                self.invalidate(capture);
                Err(Code::CAPTURED_EVENT)
            }
            None => Ok(()),
        }
    }
}

impl Driver {
    pub(crate) fn record(&self, handle: u64, stream: u64, origin: Origin) -> Answer {
        let mut state = self.state();
        let event = state.event(handle)?;
        if event.context != state.stream(stream)?.context {
            return Err(Code::INVALID_HANDLE);
        }
        if let Some(capture) = state.stream(stream)?.capture {
            let nodes = state.capture_tail(capture, stream)?;
            let event = state.events.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
            event.captured = Some((capture, nodes));
            return Ok(());
        }
        let Some(task) = state.enqueue(&self.shared.options, stream, Action::Nothing, origin)? else {
            return Ok(());
        };
        let found = state.stream(stream)?;
        let recorded = Recorded {
            task,
            end: found.end,
            clock: found.clock.clone(),
        };
        if let Some(event) = state.events.get_mut(&handle) {
            event.recorded = Some(recorded);
            event.captured = None;
        }
        self.queued(state, task, stream);
        Ok(())
    }

    /// Everything queued on the stream from now on comes after what was recorded.
    pub(crate) fn wait_event(&self, stream: u64, handle: u64, origin: Origin) -> Answer {
        let mut state = self.state();
        let event = state.event(handle)?;
        if let Some((capture, nodes)) = event.captured.clone() {
            return state.join_capture(capture, stream, &nodes);
        }
        let recorded = event.recorded.clone();
        if let Some(capture) = state.stream(stream)?.capture {
            // Work outside a capture is nothing that a graph can wait for.
            if recorded.is_some() {
                state.invalidate(capture);
                return Err(Code::STREAM_CAPTURE_ISOLATION);
            }
            return Ok(());
        }
        let Some(recorded) = recorded else { return Ok(()) };
        let after = After {
            tasks: vec![recorded.task],
            end: recorded.end,
            clock: recorded.clock,
        };
        if let Some(task) =
            state.enqueue_after(&self.shared.options, stream, Action::Nothing, origin, &after)?
        {
            self.queued(state, task, stream);
        }
        Ok(())
    }

    pub(crate) fn synchronise_event(&self, handle: u64) -> Answer {
        let mut state = self.state();
        state.refuse_captured_event(handle)?;
        state.refuse_unsafe(crate::calls::thread())?;
        let event = state.event(handle)?;
        let context = event.context;
        let Some(recorded) = event.recorded.clone() else {
            return Ok(());
        };
        let mut state = self.shared.wait_for(state, &[recorded.task]);
        state.host.join(&recorded.clock);
        state.time.host_waits(crate::calls::thread(), recorded.end);
        state.trim_pools();
        state.healthy(context)?;
        Ok(())
    }

    pub(crate) fn query_event(&self, handle: u64) -> Answer {
        let mut state = self.state();
        state.refuse_captured_event(handle)?;
        state.refuse_unsafe(crate::calls::thread())?;
        let event = state.event(handle)?;
        let context = event.context;
        let Some(recorded) = event.recorded.clone() else {
            return Ok(());
        };
        let done = state.queue.is_done(recorded.task);
        let mut state = if done { state } else { self.shared.poll(state) };
        state.healthy(context)?;
        if !state.queue.is_done(recorded.task) {
            return Err(Code::NOT_READY);
        }
        state.host.join(&recorded.clock);
        Ok(())
    }
}
