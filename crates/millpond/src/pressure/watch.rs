//! Being called when memory gets scarce.
//!
//! One thread looks at the interval, and at once when the system tells it to: when tasks stalled for as much of a
//! second as gives [`Level::High`] (a trigger on the pressure stall information of the process's cgroup, else of the
//! machine), and when a cgroup of version 2 met one of its limits. It sleeps otherwise.
//!
//! The level rises at once and falls only after calm, so that memory given back does not make it fall and rise again
//! all the time. With every change the trims are called first, then everybody else, in the order they came; outside
//! every lock, so they may ask the watch, add and remove callbacks. One that panics is counted and called again the
//! next time (unless the program aborts on panics).
//!
//! *Fork.* A child has no such thread: its copy of a watch is not running and says so, calls nobody and takes no
//! lock. It can start one of its own.

mod alarm;
mod builder;
mod calls;
mod hysteresis;
mod thread;

pub use alarm::Means;
pub use builder::{WatchBuilder, WatchError};
pub(crate) use calls::Call as WatchCall;
pub use calls::Turn;

use super::{Cause, DevicePressure, Level, Pressure};
use calls::{Call, Calls};
use std::io::{self, PipeReader, PipeWriter, Write};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use thread::Watcher;

/// A change of level.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Change<'a> {
    /// The level before.
    pub from: Level,
    /// The level now.
    pub to: Level,
    /// What gives the level that is met now; on the way down that can be less than `to`.
    pub cause: Cause,
    /// What was read.
    pub pressure: &'a Pressure,
}

/// A change of the level of a CUDA device's memory.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DeviceChange<'a> {
    /// The device as it is now; on the way down its level can be less than `to`.
    pub device: DevicePressure,
    /// The level before.
    pub from: Level,
    /// The level now.
    pub to: Level,
    /// What was read.
    pub pressure: &'a Pressure,
}

/// Watches memory from a thread of its own, until dropped.
///
/// ```
/// use millpond::{Watch, pressure::Level};
///
/// let watch = Watch::builder()
///     .trim(|change| if change.to >= Level::High { /* give back what is cached */ })
///     .tell(|change| eprintln!("memory: {:?}, by {:?}", change.to, change.cause))
///     .start()?;
/// assert!(watch.is_running());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    /// None once it was told to stop.
    thread: Option<JoinHandle<()>>,
}

/// What the watch and its thread both have.
struct Shared {
    /// The process whose thread it is.
    process: u32,
    ended: AtomicBool,
    /// As a place in `Level::ALL`.
    level: AtomicUsize,
    last: Mutex<(Arc<Pressure>, Option<Means>)>,
    calls: Calls,
    /// A byte in it ends the thread. Both ends stay open as long as either side lives: a child's copies do not
    /// hold the thread up, and no write meets a closed end.
    stop: (PipeReader, PipeWriter),
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("process", &self.process)
            .field("level", &self.level())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Looks for the first time.
    fn new(rules: &WatchBuilder) -> Result<Arc<Self>, WatchError> {
        let stop = io::pipe().map_err(|error| WatchError::Pipe { code: code(&error) })?;
        let first = Arc::new(rules.readings.pressure(&rules.thresholds));
        Ok(Arc::new(Self {
            process: process::id(),
            ended: AtomicBool::new(false),
            level: AtomicUsize::new(0),
            last: Mutex::new((first, None)),
            calls: Calls::default(),
            stop,
        }))
    }

    fn is_here(&self) -> bool {
        self.process == process::id()
    }

    fn level(&self) -> Level {
        Level::ALL[self.level.load(Ordering::Relaxed) % Level::ALL.len()]
    }

    fn set(&self, level: Option<Level>, pressure: Arc<Pressure>) {
        if let Some(level) = level {
            self.level.store(level as usize, Ordering::Relaxed);
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut last.0, pressure);
        drop(last);
        drop(before);
    }

    fn set_means(&self, means: Means) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(means);
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

fn code(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

impl Watch {
    /// Begins to describe a watch.
    pub fn builder() -> WatchBuilder {
        WatchBuilder::new()
    }

    fn start(mut rules: WatchBuilder) -> Result<Self, WatchError> {
        let shared = Shared::new(&rules)?;
        for (turn, call) in rules.calls.drain(..) {
            shared.calls.add(turn, call);
        }
        let watcher = Watcher::new(Arc::clone(&shared), rules);
        let thread = Builder::new()
            .name("millpond-watch".to_owned())
            .spawn(|| watcher.run())
            .map_err(|error| WatchError::Thread { code: code(&error) })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Whether its thread is running. It is not in a child made by `fork`.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.shared.is_here() && !self.shared.ended.load(Ordering::Acquire)
    }

    /// The level now, as it was last told. Costs one load. [`Level::Low`] until the thread has looked once.
    #[must_use]
    pub fn level(&self) -> Level {
        self.shared.level()
    }

    /// What was last read, at most an interval ago. None in a child made by `fork`.
    #[must_use]
    pub fn last(&self) -> Option<Arc<Pressure>> {
        let last = self.shared.is_here().then(|| self.shared.last.lock())?;
        Some(Arc::clone(&last.unwrap_or_else(PoisonError::into_inner).0))
    }

    /// How it learns of changes. None before the first look, and in a child made by `fork`.
    #[must_use]
    pub fn means(&self) -> Option<Means> {
        let last = self.shared.is_here().then(|| self.shared.last.lock())?;
        last.unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// How many calls panicked, and what the last of them said (its first 200 characters). Nothing in a child made by `fork`.
    #[must_use]
    pub fn panics(&self) -> (u64, Option<String>) {
        match self.shared.is_here() {
            true => self.shared.calls.panics(),
            false => (0, None),
        }
    }

    /// Calls this from the next change on, as long as the answer lives; one that is being told now is not the
    /// next. In a child made by `fork` nobody is ever called.
    pub fn add(&self, turn: Turn, call: impl Fn(&Change<'_>) + Send + Sync + 'static) -> Subscription {
        self.subscribe(turn, vec![Call::Process(Arc::new(call))])
    }

    /// The same of changes of devices' levels.
    pub fn add_device(
        &self,
        turn: Turn,
        call: impl Fn(&DeviceChange<'_>) + Send + Sync + 'static,
    ) -> Subscription {
        self.subscribe(turn, vec![Call::Device(Arc::new(call))])
    }

    pub(crate) fn subscribe(&self, turn: Turn, calls: Vec<Call>) -> Subscription {
        let add = |call| self.shared.calls.add(turn, call);
        let calls = calls.into_iter().filter(|_| self.shared.is_here());
        Subscription {
            shared: Arc::downgrade(&self.shared),
            ids: calls.map(add).collect(),
        }
    }
}

impl Drop for Watch {
    /// Ends the thread and waits for it, and so for a callback that is running; not when a callback itself drops
    /// the watch, and not in a child made by `fork`.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.shared.is_here() {
            // There is no such thread here to join or to let go, and the pipe is shared with the parent.
            return std::mem::forget(thread);
        }
        // The pipe is empty but for this byte: there is room.
        let _ = (&self.shared.stop.1).write(&[0]);
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

/// Somebody who is called. Dropping it ends that: a call that has begun is not waited for.
#[must_use = "dropping it ends the calls"]
#[derive(Debug)]
pub struct Subscription {
    shared: Weak<Shared>,
    /// None in a child made by `fork`.
    ids: Vec<u64>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade()
            && shared.is_here()
        {
            self.ids.iter().for_each(|id| shared.calls.remove(*id));
        }
    }
}
