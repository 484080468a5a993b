//! A thread that watches the pressure and runs callbacks.
//!
//! The thread reads the pressure at the interval. It also reads it immediately after a notification by the system. One
//! notification is a trigger on the pressure stall information of the process's cgroup, or else of the machine: tasks
//! have stalled for the share of a second that gives [`Level::High`]. The other is that a cgroup of version 2 has
//! reached one of its limits. It sleeps otherwise.
//!
//! The level rises immediately and falls only after a calm period, so that freed memory does not make it alternate.
//! After each change the trims run first, then all other callbacks, in the order of registration. They run outside
//! every lock, so they may call the watch, and add and remove callbacks. A panic of a callback is counted, and the
//! callback stays registered (unless the program aborts on panics).
//!
//! *Fork.* A child does not have the thread. Its copy of a watch reports that it is not running, runs no callbacks and
//! takes no lock. The child can start a watch of its own.

mod alarm;
mod builder;
mod calls;
mod hysteresis;
mod thread;

pub use alarm::Means;
pub use builder::{WatchBuilder, WatchError};
pub use calls::Call as WatchCall;
pub use calls::Turn;

use super::{Cause, DevicePressure, Level, Pressure};
use crate::spawn_hidden;
use calls::{Call, Calls};
use std::io::{self, PipeReader, PipeWriter, Write};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use thread::Watcher;

/// A change of the level.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Change<'a> {
    /// The level before.
    pub from: Level,
    /// The level now.
    pub to: Level,
    /// The cause of the level that is reached now. While the level falls, that level can be lower than `to`.
    pub cause: Cause,
    /// The pressure that was read.
    pub pressure: &'a Pressure,
}

/// A change of the level of a CUDA device's memory.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DeviceChange<'a> {
    /// The current state of the device. While the level falls, its level can be lower than `to`.
    pub device: DevicePressure,
    /// The level before.
    pub from: Level,
    /// The level now.
    pub to: Level,
    /// The pressure that was read.
    pub pressure: &'a Pressure,
}

/// Watches the pressure from a separate thread until it is dropped.
///
/// ```
/// use millpond::pressure::{Level, Watch};
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
    /// The thread, or `None` after it was asked to stop.
    thread: Option<JoinHandle<()>>,
}

/// The state that the watch shares with its thread.
struct Shared {
    /// The process in which the thread runs.
    process: u32,
    ended: AtomicBool,
    /// The level as an index in `Level::ALL`.
    level: AtomicUsize,
    last: Mutex<(Arc<Pressure>, Option<Means>)>,
    calls: Calls,
    /// A byte in this pipe ends the thread. The watch and the thread both keep both ends open, so no write finds a
    /// closed end. The copies in a child do not delay the thread.
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
    /// Reads the pressure for the first time.
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
    /// Returns a builder.
    pub fn builder() -> WatchBuilder {
        WatchBuilder::new()
    }

    fn start(mut rules: WatchBuilder) -> Result<Self, WatchError> {
        let shared = Shared::new(&rules)?;
        for (turn, call) in rules.calls.drain(..) {
            shared.calls.add(turn, call);
        }
        let watcher = Watcher::new(Arc::clone(&shared), rules);
        let thread = spawn_hidden("millpond-watch", || watcher.run())
            .map_err(|error| WatchError::Thread { code: code(&error) })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Returns true if the thread is running. It does not run in a child made by `fork`.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.shared.is_here() && !self.shared.ended.load(Ordering::Acquire)
    }

    /// Returns the last reported level with one load. It is [`Level::Low`] until the thread has read the pressure once.
    #[must_use]
    pub fn level(&self) -> Level {
        self.shared.level()
    }

    /// Returns the last pressure, which is at most an interval old, or `None` in a child made by `fork`.
    #[must_use]
    pub fn last(&self) -> Option<Arc<Pressure>> {
        let last = self.shared.is_here().then(|| self.shared.last.lock())?;
        Some(Arc::clone(&last.unwrap_or_else(PoisonError::into_inner).0))
    }

    /// Returns how the watch learns of changes, or `None` before the first check and in a child made by `fork`.
    #[must_use]
    pub fn means(&self) -> Option<Means> {
        let last = self.shared.is_here().then(|| self.shared.last.lock())?;
        last.unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Returns how many callbacks panicked, with the message of the last panic (its first 200 characters). It is empty
    /// in a child made by `fork`.
    #[must_use]
    pub fn panics(&self) -> (u64, Option<String>) {
        match self.shared.is_here() {
            true => self.shared.calls.panics(),
            false => (0, None),
        }
    }

    /// Adds a callback. It runs from the next change on, until the returned value is dropped. A change that is being
    /// reported now is not the next. In a child made by `fork` it never runs.
    pub fn add(&self, turn: Turn, call: impl Fn(&Change<'_>) + Send + Sync + 'static) -> Subscription {
        self.subscribe(turn, vec![Call::Process(Arc::new(call))])
    }

    /// Adds a callback for changes of devices' levels.
    pub fn add_device(
        &self,
        turn: Turn,
        call: impl Fn(&DeviceChange<'_>) + Send + Sync + 'static,
    ) -> Subscription {
        self.subscribe(turn, vec![Call::Device(Arc::new(call))])
    }

    #[doc(hidden)]
    pub fn subscribe(&self, turn: Turn, calls: Vec<Call>) -> Subscription {
        let add = |call| self.shared.calls.add(turn, call);
        let calls = calls.into_iter().filter(|_| self.shared.is_here());
        Subscription {
            shared: Arc::downgrade(&self.shared),
            ids: calls.map(add).collect(),
        }
    }
}

impl Drop for Watch {
    /// Ends the thread and waits for it, and so for a running callback. Does not wait if a callback itself drops the
    /// watch, or in a child made by `fork`.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.shared.is_here() {
            // The thread does not exist in this process, so it can be neither joined nor detached. The pipe is shared
            // with the parent.
            return std::mem::forget(thread);
        }
        // The pipe contains only this byte, so the write does not block.
        let _ = (&self.shared.stop.1).write(&[0]);
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

/// A registered callback. Dropping this removes it without waiting for a call that has begun.
#[must_use = "dropping it ends the calls"]
#[derive(Debug)]
pub struct Subscription {
    shared: Weak<Shared>,
    /// Empty in a child made by `fork`.
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
