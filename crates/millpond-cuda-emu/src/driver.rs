//! The driver: one state under one lock. The lock protects only bookkeeping. Work, callbacks and waits run
//! without it.

pub(crate) mod capture;
pub(crate) mod context;
mod event;
mod graph;
pub(crate) mod perform;
mod run;
pub(crate) mod stream;

use crate::access::Origin;
use crate::blas::Blas;
use crate::clock::{Clock, Timeline};
use crate::error::{Answer, Code};
use crate::kernels::Kernels;
use crate::memory::Memory;
use crate::memory::os::Span;
use crate::options::Options;
use crate::strict::Strict;
use crate::thread;
use crate::work::action::Action;
use crate::work::queue::Queue;
use capture::{Capture, Executable, Graph};
use context::Context;
use event::Event;
use run::{Chooser, Promise};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use stream::Stream;

/// The number of ended handles that are remembered.
const ENDED: usize = 4096;

/// The mutable state of the driver.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) memory: Memory,
    pub(crate) contexts: HashMap<u64, Context>,
    /// The primary context of each device, while it is retained.
    pub(crate) primary: Vec<Option<u64>>,
    /// The handle of the primary context of each device, which stays the same when the context ends and is retained again.
    pub(crate) primary_handles: Vec<u64>,
    /// The errors of the devices whose primary contexts have failed and are gone.
    lost: BTreeMap<u32, Code>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) captures: HashMap<u64, Capture>,
    pub(crate) graphs: HashMap<u64, Graph>,
    pub(crate) executables: HashMap<u64, Executable>,
    pub(crate) kernels: Kernels,
    /// cuBLAS handles.
    pub(crate) blas: HashMap<u64, Blas>,
    pub(crate) queue: Queue,
    pub(crate) workers: BTreeSet<u64>,
    pub(crate) chooser: Chooser,
    /// Records that other processes may wait for, if a thread has to poll for such waits.
    pub(crate) promises: Vec<Promise>,
    pub(crate) telling: bool,
    /// The number of calls and of pieces of work that were done, and of the pieces that are being done.
    pub(crate) activity: u64,
    pub(crate) running: u32,
    pub(crate) time: Timeline,
    /// Work that the host knows to be complete.
    pub(crate) host: Clock,
    pub(crate) strict: Strict,
    /// The streams, events and contexts that have ended, by handle: the kind, and the call that ended it. The oldest handles are
    /// forgotten.
    pub(crate) ended: BTreeMap<u64, (&'static str, &'static str)>,
    /// Streams that were destroyed after the host knew all their work to be complete.
    pub(crate) retired: HashSet<u64>,
    pub(crate) closing: bool,
    next: u64,
}

/// State that calls share with the threads of streams.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    /// The devices that the process sees, in its order. It is empty until the driver is initialised.
    pub(crate) visible: OnceLock<Vec<u32>>,
    state: Mutex<State>,
    pub(crate) changed: Condvar,
}

/// A driver. The C interface has one for the process. Tests create their own.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
}

impl Driver {
    pub(crate) fn new(options: Options) -> Answer<Self> {
        let mut state = State {
            memory: Memory::new(&options)?,
            contexts: HashMap::new(),
            primary: vec![None; options.devices as usize],
            primary_handles: Vec::new(),
            lost: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: HashMap::new(),
            captures: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            kernels: Kernels::default(),
            blas: HashMap::new(),
            queue: Queue::default(),
            workers: BTreeSet::new(),
            chooser: Chooser::new(options.seed),
            promises: Vec::new(),
            telling: false,
            activity: 0,
            running: 0,
            time: Timeline::new(options.latency, options.link),
            host: Clock::default(),
            strict: Strict::new(options.strict),
            ended: BTreeMap::new(),
            retired: HashSet::new(),
            closing: false,
            next: 0x100,
        };
        for _ in 0..options.devices {
            let handle = state.new_handle();
            state.primary_handles.push(handle);
        }
        let shared = Shared {
            options,
            visible: OnceLock::new(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// Waits for work. Afterwards the host knows that it is complete, so pools above their threshold release
    /// memory.
    pub(crate) fn wait<'a>(&'a self, state: MutexGuard<'a, State>, tasks: &[u64]) -> MutexGuard<'a, State> {
        let mut state = self.shared.wait_for(state, tasks);
        state.trim_pools();
        state
    }

    /// Waits for all work of a context, as `wait` does.
    pub(crate) fn wait_context<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        context: u64,
    ) -> MutexGuard<'a, State> {
        let open = state.queue.open(context);
        self.wait(state, &open)
    }

    pub(crate) fn queued(&self, state: MutexGuard<'_, State>, task: u64, stream: u64) {
        self.shared.queued(state, task, stream);
    }

    /// Queues work on a stream and starts the executor.
    pub(crate) fn submit(&self, stream: u64, action: Action, origin: Origin) -> Answer {
        let mut state = self.state();
        if let Some(task) = state.enqueue(stream, action, origin)? {
            self.queued(state, task, stream);
        }
        Ok(())
    }

    /// Queues work and returns when it is complete.
    pub(crate) fn finish(&self, stream: u64, action: Action, origin: Origin) -> Answer {
        let mut state = self.state();
        let Some(task) = state.enqueue(stream, action, origin)? else {
            return Ok(());
        };
        let found = state.stream(stream)?;
        let (context, end, clock) = (found.context, found.end, found.clock.clone());
        self.queued(state, task, stream);
        let mut state = self.shared.wait_for(self.state(), &[task]);
        state.host.join(&clock);
        state.time.host_waits(thread::number(), end);
        state.trim_pools();
        state.healthy(context)?;
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.state().closing = true;
        self.shared.changed.notify_all();
    }
}

/// While this exists, resolved bytes stay mapped, even if memory is closed or freed.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Shared);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.state().memory.unhold();
    }
}

impl Shared {
    /// Protects access to memory outside of queued work. The result must not be dropped while the lock is
    /// held.
    pub(crate) fn hold(&self) -> Held<'_> {
        self.state().memory.hold();
        Held(self)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A panic is caught at the C interface. The state is still consistent enough for later calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns a unique handle. Small numbers are special streams in CUDA, so they are not used.
    pub(crate) fn new_handle(&mut self) -> u64 {
        self.next += 0x10;
        self.next
    }

    /// Records in strict mode that a handle has ended, so that later uses of it are reported.
    pub(crate) fn end_handle(&mut self, handle: u64, what: &'static str, call: &'static str) {
        if self.strict.on() {
            self.ended.insert(handle, (what, call));
            if self.ended.len() > ENDED {
                self.ended.pop_first();
            }
        }
    }

    /// Reports a call that passes an unknown handle, if the handle was valid before. Returns the code.
    pub(crate) fn unknown(&mut self, handle: u64, code: Code, origin: Origin) -> Code {
        if let Some((what, ended)) = self.ended.get(&handle).copied() {
            self.strict.stale(what, handle, ended, origin);
        }
        code
    }

    /// Records that work of a context has failed. Every later call in the context returns this code.
    pub(crate) fn fail(&mut self, context: u64, code: Code) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.failed.get_or_insert(code);
        }
    }

    /// Returns the bytes of a range for a kernel of a device. Memory of another device must have been made accessible to this one by
    /// `cuCtxEnablePeerAccess`, `cuMemSetAccess` or `cuMemPoolSetAccess`. Copies and fills do not need this, because the driver makes
    /// them and can access all devices, except for copies between unified addresses in pools.
    pub(crate) fn reach(&self, at: u64, len: u64, device: u32) -> Answer<Vec<Span>> {
        let peers = |context: u64| {
            let mut contexts = self.contexts.values();
            contexts.any(|own| own.device == device && own.peers.contains(&context))
        };
        if self.memory.is_open_to(at, len, device, peers) {
            self.memory.resolve(at, len)
        } else {
            Err(Code::ILLEGAL_ADDRESS)
        }
    }

    pub(crate) fn trim_pools(&mut self) {
        let queue = &self.queue;
        self.memory.synchronised(&|task| queue.is_done(task));
    }
}
