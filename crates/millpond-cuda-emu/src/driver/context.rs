//! Contexts: resources of a device that share a lifetime and an error state.
#![forbid(unsafe_code)]

use super::perform::EndOfContext;
use super::stream::{Stream, StreamKind};
use super::{Driver, State};
use crate::access::Origin;
use crate::clock::Clock;
use crate::error::{Answer, Code};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: u32,
    pub(crate) primary: bool,
    /// The number of times a primary context is retained.
    pub(crate) retained: u32,
    pub(crate) flags: u32,
    /// The legacy default stream.
    pub(crate) legacy: u64,
    /// The default stream of each thread that has one.
    pub(crate) per_thread: HashMap<u64, u64>,
    /// The error of its failed work, if any.
    pub(crate) failed: Option<Code>,
    pub(crate) limits: BTreeMap<i32, u64>,
    pub(crate) cache: i32,
    /// The work of destroyed streams. A wait for the context also waits for it.
    pub(crate) gone: Clock,
    /// Contexts whose memory this one may access.
    pub(crate) peers: BTreeSet<u64>,
    /// The values that clients have stored here, by their keys.
    pub(crate) storage: BTreeMap<usize, Stored>,
}

/// A value that a client has stored in a context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) value: usize,
    /// The function to call when the context ends.
    pub(crate) ends: Option<EndOfContext>,
}

impl State {
    pub(crate) fn create_context(&mut self, device: u32, flags: u32) -> u64 {
        let handle = self.new_handle();
        self.add_context(handle, device, flags, false);
        handle
    }

    fn add_context(&mut self, handle: u64, device: u32, flags: u32, primary: bool) {
        let legacy = self.new_handle();
        self.streams
            .insert(legacy, Stream::new(handle, device, StreamKind::Legacy, 0, 0));
        // The limits of a real card: stack, printf, heap, depth, pending launches, fetch granularity, persisting cache.
        let limits = [
            (0, 1024),
            (1, 1 << 20),
            (2, 8 << 20),
            (3, 2),
            (4, 2048),
            (5, 64),
            (6, 0),
        ];
        let context = Context {
            device,
            primary,
            retained: u32::from(primary),
            flags,
            legacy,
            per_thread: HashMap::new(),
            failed: None,
            limits: limits.into(),
            cache: 0,
            gone: Clock::default(),
            peers: BTreeSet::new(),
            storage: BTreeMap::new(),
        };
        self.contexts.insert(handle, context);
    }

    /// Returns whether a handle is that of a primary context, which may not be retained.
    pub(crate) fn is_primary(&self, handle: u64) -> bool {
        self.primary_handles.contains(&handle)
    }

    pub(crate) fn context(&self, handle: u64) -> Answer<&Context> {
        self.contexts.get(&handle).ok_or(Code::INVALID_CONTEXT)
    }

    /// Returns a context, or its error if its work has failed.
    pub(crate) fn healthy(&self, handle: u64) -> Answer<&Context> {
        let context = self.context(handle)?;
        context.failed.map_or(Ok(context), Err)
    }

    pub(crate) fn retain_primary(&mut self, device: u32) -> Answer<u64> {
        let slot = *self.primary.get(device as usize).ok_or(Code::INVALID_DEVICE)?;
        if let Some(handle) = slot
            && let Some(context) = self.contexts.get_mut(&handle)
        {
            context.retained += 1;
            return Ok(handle);
        }
        // A device whose primary context has failed stays lost to the process, also after a reset.
        if let Some(code) = self.lost.get(&device) {
            return Err(*code);
        }
        let mut handle = self.primary_handles[device as usize];
        if self.contexts.contains_key(&handle) {
            // The context is being destroyed, which may include a wait.
            handle = self.new_handle();
            self.primary_handles[device as usize] = handle;
        }
        self.ended.remove(&handle);
        self.add_context(handle, device, 0, true);
        self.primary[device as usize] = Some(handle);
        Ok(handle)
    }

    /// Removes a context with everything in it, and returns the values that clients stored there.
    fn remove_context(&mut self, handle: u64) -> BTreeMap<usize, Stored> {
        if let Ok(context) = self.context(handle)
            && let (true, Some(code)) = (context.primary, context.failed)
        {
            self.lost.insert(context.device, code);
        }
        const END: &str = "the end of its context";
        let streams = self.streams.iter().filter(|(_, stream)| stream.context == handle);
        let events = self.events.iter().filter(|(_, event)| event.context == handle);
        let streams = streams.map(|(of, _)| (*of, "stream", END));
        let events = events.map(|(of, _)| (*of, "event", END));
        let context = [(handle, "context", "its destruction or last release")];
        let ended: Vec<_> = streams.chain(events).chain(context).collect();
        for (of, what, call) in ended {
            self.end_handle(of, what, call);
        }
        self.streams.retain(|_, stream| stream.context != handle);
        self.events.retain(|_, event| event.context != handle);
        let mut storage = BTreeMap::new();
        if let Some(context) = self.contexts.remove(&handle) {
            self.primary[context.device as usize].take_if(|primary| *primary == handle);
            storage = context.storage;
        }
        let origin = Origin {
            call: END,
            ..Origin::default()
        };
        for (at, block) in self.memory.context_gone(handle) {
            self.strict.freed(at, block.len, block.origin, origin);
        }
        storage
    }

    /// Notes that the host has waited for all of a context.
    fn host_knows_all(&mut self, handle: u64) {
        let of = |(id, stream): (&u64, &Stream)| (stream.context == handle).then_some(*id);
        let streams: Vec<u64> = self.streams.iter().filter_map(of).collect();
        for stream in streams {
            self.host_knows(stream);
        }
        if let Some(context) = self.contexts.get(&handle) {
            self.host.join(&context.gone);
        }
    }
}

impl Driver {
    /// Releases a primary context. The last release destroys it with everything that was created in it.
    pub(crate) fn release_primary(&self, device: u32) -> Answer {
        let mut state = self.state();
        let handle = state
            .primary
            .get(device as usize)
            .ok_or(Code::INVALID_DEVICE)?
            .ok_or(Code::INVALID_CONTEXT)?;
        let context = state.contexts.get_mut(&handle).ok_or(Code::INVALID_CONTEXT)?;
        context.retained -= 1;
        if context.retained > 0 {
            return Ok(());
        }
        state.primary[device as usize] = None;
        drop(state);
        self.destroy_context(handle)
    }

    pub(crate) fn destroy_context(&self, handle: u64) -> Answer {
        let state = self.state();
        state.context(handle)?;
        let mut state = self.wait_context(state, handle);
        state.host_knows_all(handle);
        let storage = state.remove_context(handle);
        drop(state);
        for (key, stored) in storage {
            if let Some(ends) = stored.ends {
                ends.call(handle, key, stored.value);
            }
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Returns when all work of a context is complete.
    pub(crate) fn synchronise_context(&self, handle: u64) -> Answer {
        let mut state = self.state();
        state.healthy(handle)?;
        state.refuse_in_capture(handle)?;
        let mut state = self.wait_context(state, handle);
        state.host_knows_all(handle);
        state.trim_pools();
        state.healthy(handle)?;
        Ok(())
    }
}
