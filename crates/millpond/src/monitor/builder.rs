//! What a monitor is to do, and why it cannot be started.

use super::serve::ServeError;
use super::threshold::{Crossing, Threshold};
use super::{Call, Monitor};
use crate::budget::Budget;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Why there is no monitor.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The system gives no thread: the limit on threads or on memory is met.
    #[error("no thread to sample memory could be started: {0}")]
    Thread(std::io::Error),
    /// What was sampled could not be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Where the Unix socket is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Where `millpond top` looks for it.
    Usual,
    /// Somewhere else.
    At(PathBuf),
}

/// Starts a [`Monitor`].
#[must_use = "a builder starts nothing until told to"]
pub struct MonitorBuilder {
    pub(super) interval: Duration,
    pub(super) points: usize,
    pub(super) budgets: Vec<Budget>,
    pub(super) thresholds: Vec<(Threshold, Option<Call>)>,
    pub(super) socket: Option<Place>,
    pub(super) address: Option<SocketAddr>,
    pub(super) rank: Option<String>,
    pub(super) host: Option<String>,
}

impl fmt::Debug for MonitorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MonitorBuilder")
            .field("interval", &self.interval)
            .field("points", &self.points)
            .field("thresholds", &self.thresholds.len())
            .field("socket", &self.socket)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl MonitorBuilder {
    /// The shortest interval.
    pub const LEAST_INTERVAL: Duration = Duration::from_millis(10);
    /// The longest interval.
    pub const MOST_INTERVAL: Duration = Duration::from_secs(3600);

    pub(super) fn new() -> Self {
        Self {
            interval: Duration::from_secs(1),
            points: 600,
            budgets: Vec::new(),
            thresholds: Vec::new(),
            socket: None,
            address: None,
            rank: None,
            host: None,
        }
    }

    /// How often to look: a second, unless said. From 10 milliseconds to an hour; what is outside is brought inside.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval.clamp(Self::LEAST_INTERVAL, Self::MOST_INTERVAL);
        self
    }

    /// How many points of the [timeline](Monitor::timeline) are kept: 600 unless said, 8 at least, 100 000 at most. The newest
    /// quarter is of one sample each, the next of two, and so on: with 600 and an interval of a second, the last two and a half
    /// minutes by the second and as much more as there was, ever more coarsely.
    pub fn points(mut self, points: usize) -> Self {
        self.points = points.clamp(8, 100_000);
        self
    }

    /// Looks at this budget too, and at those above and below it. Budgets that a pool is charged to are looked at anyway.
    pub fn budget(mut self, budget: &Budget) -> Self {
        self.budgets.push(budget.clone());
        self
    }

    /// Calls this when a threshold is passed: once, and again only when it was passed anew. Called on the monitor's thread, outside
    /// every lock: it may allocate, and ask the monitor. While it runs nothing is sampled. One that panics is counted, and called
    /// again the next time.
    ///
    /// ```
    /// use millpond::{Monitor, monitor::Threshold, pressure::Share};
    ///
    /// let monitor = Monitor::builder()
    ///     .on(Threshold::utilisation(Share::percent(80)), |crossing| eprintln!("{crossing}"))
    ///     .on(Threshold::device(Share::percent(90)), |crossing| eprintln!("{crossing}"))
    ///     .start()?;
    /// # drop(monitor);
    /// # Ok::<(), millpond::monitor::MonitorError>(())
    /// ```
    pub fn on(mut self, threshold: Threshold, call: impl FnMut(&Crossing) + Send + 'static) -> Self {
        self.thresholds.push((threshold, Some(Box::new(call))));
        self
    }

    /// Serves what is sampled on a Unix socket where `millpond top` finds it: `$XDG_RUNTIME_DIR/millpond/PID.sock`, or
    /// `/tmp/millpond-UID/PID.sock` where there is no such folder; `PID-1.sock` where the process has one already. Only the user's own
    /// processes can read it.
    pub fn socket(mut self) -> Self {
        self.socket = Some(Place::Usual);
        self
    }

    /// The same on a socket of this path, in a folder that is there. A socket that nobody listens to is replaced.
    pub fn socket_at(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(Place::At(path.into()));
        self
    }

    /// Serves `/metrics` for Prometheus, and `/stats`, on this address of the machine itself. With port 0 the system chooses one;
    /// [`Monitor::address`] has it.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// The process's rank among those of its job. Unless said it is what `RANK`, `OMPI_COMM_WORLD_RANK`, `SLURM_PROCID` or
    /// `LOCAL_RANK` say, in this order.
    pub fn rank(mut self, rank: impl Into<String>) -> Self {
        self.rank = Some(rank.into());
        self
    }

    /// What the machine is called; unless said, its own name.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Takes a first sample and starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread, or what is to be served cannot be: the address is not the machine's own or taken, or there
    /// is no place for the socket.
    pub fn start(self) -> Result<Monitor, MonitorError> {
        Monitor::start(self)
    }
}
