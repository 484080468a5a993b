//! Streams: the order in which work is queued, and the rules between the orders of streams.
#![forbid(unsafe_code)]

use super::capture::NodeKind;
use super::{Driver, State};
use crate::access::{Access, Origin};
use crate::clock::{Clock, Stamp};
use crate::error::{Answer, Code};
use crate::options::Streams;
use crate::thread;
use crate::work::action::Action;
use crate::work::queue::Work;

/// The relation of a stream to the legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// The legacy stream. Its work waits for all blocking streams of its context, and they wait for it.
    Legacy,
    /// A blocking stream. The default stream of a thread is one too.
    Blocking,
    /// A stream that is not ordered with the legacy stream.
    NonBlocking,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) device: u32,
    pub(crate) kind: StreamKind,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// The last work that was queued, and its end in modelled time.
    pub(crate) last: Option<u64>,
    pub(crate) end: u64,
    pub(crate) place: u64,
    /// The work that comes before the next work.
    pub(crate) clock: Clock,
    /// The capture in which it takes part.
    pub(crate) capture: Option<u64>,
}

impl Stream {
    pub(crate) fn new(context: u64, device: u32, kind: StreamKind, flags: u32, priority: i32) -> Self {
        Self {
            context,
            device,
            kind,
            flags,
            priority,
            last: None,
            end: 0,
            place: 0,
            clock: Clock::default(),
            capture: None,
        }
    }
}

/// The work that some work waits for, other than that of its own stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct After {
    pub(crate) tasks: Vec<u64>,
    /// The modelled time at which the last of it ends.
    pub(crate) end: u64,
    pub(crate) clock: Clock,
}

impl After {
    /// Adds a task that ends at this time.
    pub(crate) fn add(&mut self, task: u64, end: u64) {
        self.tasks.push(task);
        self.end = self.end.max(end);
    }

    fn stream(&mut self, stream: &Stream) {
        self.tasks.extend(stream.last);
        self.end = self.end.max(stream.end);
        self.clock.join(&stream.clock);
    }
}

impl State {
    pub(crate) fn stream(&self, handle: u64) -> Answer<&Stream> {
        self.streams.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn stream_mut(&mut self, handle: u64) -> Answer<&mut Stream> {
        self.streams.get_mut(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Returns the stream of a handle: 0 is the default stream, 1 the legacy stream, 2 that of the thread.
    pub(crate) fn find_stream(
        &mut self,
        handle: u64,
        context: u64,
        per_thread: bool,
        thread: u64,
    ) -> Answer<u64> {
        match handle {
            0 | 1 if !(per_thread && handle == 0) => Ok(self.healthy(context)?.legacy),
            0 | 2 => {
                let found = self.healthy(context)?;
                if let Some(stream) = found.per_thread.get(&thread) {
                    return Ok(*stream);
                }
                let device = found.device;
                let stream = self.new_handle();
                self.streams
                    .insert(stream, Stream::new(context, device, StreamKind::Blocking, 0, 0));
                if let Some(context) = self.contexts.get_mut(&context) {
                    context.per_thread.insert(thread, stream);
                }
                Ok(stream)
            }
            _ => {
                let context = self.stream(handle)?.context;
                self.healthy(context)?;
                Ok(handle)
            }
        }
    }

    pub(crate) fn create_stream(&mut self, context: u64, flags: u32, priority: i32) -> Answer<u64> {
        Code::INVALID_VALUE.when(flags > 1)?;
        let device = self.healthy(context)?.device;
        let kind = if flags & 1 == 0 {
            StreamKind::Blocking
        } else {
            StreamKind::NonBlocking
        };
        let handle = self.new_handle();
        // Priorities out of range become the nearest valid one, as in the driver.
        let priority = priority.clamp(-5, 0);
        self.streams
            .insert(handle, Stream::new(context, device, kind, flags, priority));
        Ok(handle)
    }

    /// Returns the work that the rules put before the next work of a stream.
    fn before(&self, handle: u64) -> Answer<After> {
        let stream = self.stream(handle)?;
        let mut after = After::default();
        after.stream(stream);
        after.clock.join(&self.host);
        match stream.kind {
            StreamKind::NonBlocking => {}
            StreamKind::Blocking => {
                let legacy = self.context(stream.context)?.legacy;
                after.stream(self.stream(legacy)?);
            }
            StreamKind::Legacy => {
                let blocking =
                    |other: &&Stream| other.context == stream.context && other.kind == StreamKind::Blocking;
                self.streams
                    .values()
                    .filter(blocking)
                    .for_each(|other| after.stream(other));
            }
        }
        after.clock.forget(&self.retired);
        Ok(after)
    }

    /// Queues work on a stream. On a captured stream, adds a node to the graph instead.
    pub(crate) fn enqueue(&mut self, stream: u64, action: Action, origin: Origin) -> Answer<Option<u64>> {
        self.enqueue_after(stream, action, origin, &After::default())
    }

    pub(crate) fn enqueue_after(
        &mut self,
        stream: u64,
        action: Action,
        origin: Origin,
        more: &After,
    ) -> Answer<Option<u64>> {
        let found = self.stream(stream)?;
        if let Some(capture) = found.capture {
            self.capture_node(capture, stream, NodeKind::of(&action), action, origin)?;
            return Ok(None);
        }
        self.refuse_legacy_in_capture(stream)?;
        let mut after = self.before(stream)?;
        after.tasks.extend(&more.tasks);
        after.end = after.end.max(more.end);
        after.clock.join(&more.clock);
        self.put(stream, action, origin, &after).map(Some)
    }

    /// Queues work after exactly the given work, and makes it the stream's last.
    pub(crate) fn put(&mut self, handle: u64, action: Action, origin: Origin, after: &After) -> Answer<u64> {
        let memory = &self.memory;
        let (engine, length) = action.cost(&self.time, |at| memory.is_pinned(at, 1));
        let stream = self.streams.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
        let origin = Origin {
            stream: handle,
            ..origin
        };
        stream.place += 1;
        let stamp = Stamp {
            stream: handle,
            place: stream.place,
        };
        stream.end = self
            .time
            .run(thread::number(), stream.device, engine, after.end, length);
        stream.clock.join(&after.clock);
        if self.strict.on() {
            let live = |at| memory.block(at).is_some();
            let accesses = action.accesses().into_iter();
            let accesses: Vec<_> = accesses.flat_map(|access| memory.places(access)).collect();
            self.strict
                .queued(&accesses, stamp, &stream.clock, &self.host, origin, live);
        }
        stream.clock.see(stamp);
        let work = Work {
            stream: handle,
            context: stream.context,
            device: stream.device,
            action,
            origin,
            length,
        };
        let task = self.queue.add(work, &after.tasks);
        stream.last = Some(task);
        Ok(task)
    }

    /// Checks a free like a write of the whole block: the accesses of other streams must be complete by then.
    pub(crate) fn strict_free(&mut self, handle: u64, whole: Access, origin: Origin) {
        if let Some(stream) = self.streams.get(&handle)
            && self.strict.on()
        {
            let stamp = Stamp {
                stream: handle,
                place: stream.place,
            };
            let origin = Origin {
                stream: handle,
                ..origin
            };
            self.strict
                .queued(&[(whole, None)], stamp, &stream.clock, &self.host, origin, |_| {
                    true
                });
        }
    }

    /// Reports in strict mode that a range is released while work that the host has not waited for uses it.
    pub(crate) fn unwaited(&mut self, at: u64, len: u64, origin: Origin) {
        self.strict.unwaited(at, len, &self.host, origin);
    }

    /// Calls [`unwaited`](Self::unwaited) for the block that begins at an address, if there is one.
    pub(crate) fn unwaited_block(&mut self, at: u64, origin: Origin) {
        if let Ok(block) = self.memory.block_at(at) {
            self.unwaited(at, block.len, origin);
        }
    }

    /// Returns the position of the last work of a stream.
    pub(crate) fn stamp(&self, handle: u64) -> Stamp {
        let place = self.streams.get(&handle).map_or(0, |stream| stream.place);
        Stamp {
            stream: handle,
            place,
        }
    }

    /// Notes that the host has waited for all of a stream.
    pub(crate) fn host_knows(&mut self, handle: u64) {
        if let Some(stream) = self.streams.get(&handle) {
            self.host.join(&stream.clock);
            self.time.host_waits(thread::number(), stream.end);
        }
    }

    /// Forgets a destroyed stream whose work the host knows to be complete. Many short-lived streams therefore leave only
    /// their numbers behind.
    fn retire(&mut self, handle: u64) {
        self.strict.forget(handle);
        self.retired.insert(handle);
        self.host.forget(&self.retired);
    }
}

impl Driver {
    pub(crate) fn synchronise_stream(&self, handle: u64) -> Answer {
        let mut state = self.state();
        state.refuse_stream_in_capture(handle)?;
        state.refuse_unsafe(thread::number())?;
        let after = state.before(handle)?;
        let context = state.stream(handle)?.context;
        let mut state = self.shared.wait_for(state, &after.tasks);
        // Another thread may have destroyed the stream meanwhile.
        if state.streams.contains_key(&handle) {
            state.host.join(&after.clock);
            state.time.host_waits(thread::number(), after.end);
        }
        state.trim_pools();
        state.healthy(context)?;
        Ok(())
    }

    pub(crate) fn query_stream(&self, handle: u64) -> Answer {
        let mut state = self.state();
        state.refuse_stream_in_capture(handle)?;
        state.refuse_unsafe(thread::number())?;
        let after = state.before(handle)?;
        let context = state.stream(handle)?.context;
        let done = after.tasks.iter().all(|task| state.queue.is_done(*task));
        let mut state = if done { state } else { self.shared.poll(state) };
        state.healthy(context)?;
        Code::NOT_READY.when(!after.tasks.iter().all(|task| state.queue.is_done(*task)))?;
        state.host.join(&after.clock);
        Ok(())
    }

    /// Destroys a stream. Its queued work still runs.
    pub(crate) fn destroy_stream(&self, handle: u64) -> Answer {
        let mut state = self.state();
        Code::INVALID_HANDLE.when(state.stream(handle)?.kind == StreamKind::Legacy)?;
        let context = state.stream(handle)?.context;
        state.healthy(context)?;
        if let Some(capture) = state.stream(handle)?.capture {
            let _ = state.invalidate(capture, Code::STREAM_CAPTURE_INVALIDATED);
        }
        let last = state.stamp(handle);
        let stream = state.streams.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
        state.end_handle(handle, "stream", "cuStreamDestroy_v2");
        if last.place == 0 || state.host.covers(last) {
            state.retire(handle);
        } else if let Some(context) = state.contexts.get_mut(&stream.context) {
            context.gone.join(&stream.clock);
        }
        // The legacy stream and waits for the context still come after its work.
        if stream.kind == StreamKind::Blocking
            && let Some(legacy) = state.contexts.get(&stream.context).map(|context| context.legacy)
            && stream.last.is_some_and(|last| !state.queue.is_done(last))
        {
            let mut before = After::default();
            before.stream(state.stream(legacy)?);
            before.stream(&stream);
            let origin = Origin {
                call: "cuStreamDestroy_v2",
                ..Origin::default()
            };
            let task = state.put(legacy, Action::Nothing, origin, &before)?;
            if self.shared.options.streams == Streams::Threads {
                self.queued(state, task, legacy);
            }
        } else {
            drop(state);
        }
        self.shared.changed.notify_all();
        Ok(())
    }
}
