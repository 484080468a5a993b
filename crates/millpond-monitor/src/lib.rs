//! The live monitor: samples the memory of the process over time and publishes it.
//!
//! ```text
//!   Snapshot        the state of the process: memory, pools, budgets, devices, tags, losses        (read.rs)
//!     Monitor       a thread that takes snapshots at an interval, keeps a history, checks thresholds
//!       Server      a thread that serves the last snapshot on a Unix socket and on a local port     (serve.rs)
//! ```
//!
//! The report, the timeline, `/stats`, `/metrics` and `millpond top` all show the same snapshots. Pools are read once in each
//! interval for any number of readers. Readers and pools never wait for each other.
//!
//! The stored data is bounded: [`MonitorBuilder::points`] limits the points, there are at most 512 series, and a snapshot has at
//! most 256 pools and 256 budgets. The rest is counted, and the count is shown.
//!
//! If less than 1 MiB can be allocated, the sample is skipped and counted, because the program may need that memory.
//!
//! *Fork.* The child of a fork has neither thread. Its copy of a monitor is not running, returns no data and leaves the socket
//! alone. If `MILLPOND_MONITOR` is set, the child gets its own monitor when it creates a pool.
//!
//! This crate is a part of [millpond](https://docs.rs/millpond), which re-exports its public names. Programs should depend on millpond:
//! the names that only millpond's own crates need may change without notice.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod builder;
mod environment;
mod identity;
mod json;
mod log;
mod openmetrics;
mod read;
mod report;
mod ring;
mod series;
mod serve;
mod snapshot;
mod stats;
mod thread;
mod threshold;
mod timeline;

pub use builder::{MonitorBuilder, MonitorError};
pub use environment::start as start_from_environment;
pub use report::{MonitorReport, SeriesReport};
pub use series::{Quantity, Subject};
pub use serve::{ServeError, socket_folders};
pub use snapshot::{
    BudgetReading, DeviceProcess, DeviceReading, LimitReading, Losses, PoolReading, Snapshot, TagReading,
};
pub use threshold::{Crossing, Signal, Threshold};
pub use timeline::{Timeline, TimelinePoint, TimelineSeries};

use identity::Identity;
use log::Log;
use millpond_os::spawn_hidden;
use serve::Server;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thread::Sampler;

/// The callback of a threshold.
type Call = Box<dyn FnMut(&Crossing) + Send>;

/// The maximum number of crossings that are stored with their figures.
const MOST_CROSSINGS: usize = 1000;

/// Samples the process's memory at an interval, until it is stopped or dropped.
///
/// ```
/// use millpond::{Monitor, Pool, monitor::Quantity, monitor::Threshold, pressure::Share};
/// use std::time::Duration;
///
/// let pool = Pool::builder().name("work").limit(64 << 20).host()?;
/// let monitor = Monitor::builder()
///     .interval(Duration::from_millis(20))
///     .on(Threshold::pool_limit(Share::percent(80)), |crossing| eprintln!("warning: {crossing}"))
///     .start()?;
///
/// let held = pool.alloc_zeroed::<u8>(16 << 20)?;
/// drop(held);
///
/// let report = monitor.stop();
/// let of = report.get("work", Quantity::Allocated);
/// assert_eq!(of.map(|of| (of.peak, of.last)), Some((16 << 20, 0)));
/// println!("{report}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A monitor can [serve](MonitorBuilder::socket) its samples to other processes. The program `millpond top` shows them.
/// A program that does not create a monitor can be observed too: `MILLPOND_MONITOR=1` starts a monitor when the first
/// pool is made.
///
/// | `MILLPOND_MONITOR` | |
/// |---|---|
/// | `1` or `socket` | the Unix socket that `millpond top` looks for |
/// | `127.0.0.1:9464` | HTTP on a port of this machine |
/// | `…,interval=100ms` | how often to look |
/// | `0`, `off` or nothing | no monitor |
///
/// Several values can be combined with commas. An invalid value or a failure is reported in one line on standard error,
/// and the program continues.
pub struct Monitor {
    shared: Arc<Shared>,
    server: Option<Server>,
    /// The thread, or `None` after it was stopped.
    thread: Option<JoinHandle<()>>,
}

/// The state that the monitor shares with its thread and its server.
#[derive(Debug)]
struct Shared {
    /// The process in which the threads run.
    process: u32,
    started: Instant,
    interval: Duration,
    identity: Identity,
    state: Mutex<State>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

#[derive(Debug)]
struct State {
    log: Log,
    last: Arc<Sample>,
    crossings: Vec<(Duration, Crossing)>,
    crossed: u64,
    panics: u64,
    /// The number of samples that were skipped because memory was short.
    missed: u64,
}

/// A snapshot, and the monitor's own figures.
#[derive(Debug)]
struct Sample {
    at: Duration,
    /// The duration of the sampling.
    took: Duration,
    snapshot: Snapshot,
    /// The thresholds that are exceeded now.
    passed: Vec<Crossing>,
}

/// The bytes that must be free before a sample is taken or served, because a thread of this library must not fail an ordinary allocation.
const ROOM: usize = 1 << 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code of the caller runs under any of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn is_here(&self) -> bool {
        self.process == process::id()
    }

    fn end(&self) {
        *lock(&self.stop) = true;
        self.stopped.notify_all();
    }

    /// Sleeps until the given time. Returns true if the monitor is to stop.
    fn sleep_until(&self, then: Instant) -> bool {
        let mut stop = lock(&self.stop);
        while !*stop {
            let left = then.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.stopped.wait_timeout(stop, left);
            stop = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn report(&self) -> MonitorReport {
        let state = lock(&self.state);
        MonitorReport {
            elapsed: state.last.at,
            samples: state.log.samples(),
            series: state.log.reports(),
            crossings: state.crossings.clone(),
            crossed: state.crossed,
            panics: state.panics,
            missed: state.missed,
            dropped: state.log.dropped(),
        }
    }
}

impl Monitor {
    /// Returns a builder.
    pub fn builder() -> MonitorBuilder {
        MonitorBuilder::new()
    }

    fn start(rules: MonitorBuilder) -> Result<Self, MonitorError> {
        let (sampler, shared) = Sampler::new(&rules);
        let mut server = None;
        if rules.socket.is_some() || rules.address.is_some() {
            server = Some(Server::start(&shared, rules.socket.as_ref(), rules.address)?);
        }
        let sampler = sampler.with_calls(rules.thresholds);
        let thread = spawn_hidden("millpond-monitor", || sampler.run()).map_err(MonitorError::Thread)?;
        Ok(Self {
            shared,
            server,
            thread: Some(thread),
        })
    }

    /// Returns true if the monitor samples. It does not in a child made by `fork`.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.shared.is_here() && self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns the last snapshot, or `None` in a child made by `fork`.
    #[must_use]
    pub fn last(&self) -> Option<Snapshot> {
        let state = self.shared.is_here().then(|| lock(&self.shared.state))?;
        let last = Arc::clone(&state.last);
        drop(state);
        Some(last.snapshot.clone())
    }

    /// Returns the thresholds that are exceeded now, with the figures of the last sample. They include the thresholds
    /// that are always checked: 80 % of a pool's or a budget's limit, and 90 % of a device or of the limit that binds
    /// the process.
    #[must_use]
    pub fn passed(&self) -> Vec<Crossing> {
        let state = self.shared.is_here().then(|| lock(&self.shared.state));
        state.map(|state| state.last.passed.clone()).unwrap_or_default()
    }

    /// Returns the report since the start. It is empty in a child made by `fork`.
    #[must_use]
    pub fn report(&self) -> MonitorReport {
        if !self.shared.is_here() {
            return MonitorReport::default();
        }
        self.shared.report()
    }

    /// Returns the history of all series. The newest samples are separate points, and older ones are joined. It is
    /// empty in a child made by `fork`.
    #[must_use]
    pub fn timeline(&self) -> Timeline {
        if !self.shared.is_here() {
            return Timeline { series: Vec::new() };
        }
        lock(&self.shared.state).log.timeline()
    }

    /// Returns the address of the HTTP server, if there is one, with the port that the system chose.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref()?.address()
    }

    /// Returns the path of the Unix socket, if there is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.server.as_ref()?.socket()
    }

    /// Takes a last sample, stops, and returns the report.
    #[must_use = "it returns the report; to end the monitor without a report, drop it"]
    pub fn stop(mut self) -> MonitorReport {
        self.end();
        self.report()
    }

    /// Removes the socket, for a process that ends while the monitor runs.
    fn remove_socket(&self) {
        if let Some(server) = self.server.as_ref().filter(|_| self.shared.is_here()) {
            server.remove_socket();
        }
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.shared.is_here() {
            // The thread does not exist in this process, so it can be neither joined nor detached.
            return std::mem::forget(thread);
        }
        self.shared.end();
        // A callback that drops the monitor runs on that thread itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Drop for Monitor {
    /// Ends the thread and waits for it, and so for a running callback. Does not wait if a callback itself drops the
    /// monitor, or in a child made by `fork`.
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor")
            .field("interval", &self.shared.interval)
            .field("server", &self.server)
            .field("is_running", &self.is_running())
            .finish_non_exhaustive()
    }
}
