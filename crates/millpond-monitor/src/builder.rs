//! The builder of monitors and its errors.

use super::serve::{Place, ServeError};
use super::threshold::{Crossing, Threshold};
use super::{Call, Monitor};
use millpond_account::budget::Budget;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// The error of a monitor that could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The thread could not be started because a limit on threads or memory is reached.
    #[error("cannot start the thread that samples memory: {0}")]
    Thread(std::io::Error),
    /// The server could not be started.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Builds and starts a [`Monitor`].
#[must_use = "a builder starts nothing until `start` is called"]
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

    /// Sets the sampling interval. The default is a second. The value is clamped to 10 milliseconds to an hour.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval.clamp(Self::LEAST_INTERVAL, Self::MOST_INTERVAL);
        self
    }

    /// Sets how many points of the [timeline](Monitor::timeline) are kept. The default is 600, the minimum 8, the
    /// maximum 100 000. Each point of the newest quarter contains one sample, each of the next quarter two, and so on.
    /// With 600 points and an interval of a second, the last two and a half minutes are kept by the second, and the
    /// earlier time at decreasing resolution.
    pub fn points(mut self, points: usize) -> Self {
        self.points = points.clamp(8, 100_000);
        self
    }

    /// Also samples this budget and the budgets above and below it. Budgets to which a pool is charged are always
    /// sampled.
    pub fn budget(mut self, budget: &Budget) -> Self {
        self.budgets.push(budget.clone());
        self
    }

    /// Adds a callback for a threshold. It runs when the threshold is exceeded, and again only after the share has
    /// fallen in between. It runs on the monitor's thread outside every lock, so it may allocate and call the monitor.
    /// No samples are taken while it runs. A panic of the callback is counted, and the callback stays registered.
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

    /// Serves the samples on a Unix socket where `millpond top` finds it: `$XDG_RUNTIME_DIR/millpond/PID.sock`, or
    /// `/tmp/millpond-UID/PID.sock` if that directory does not exist. If the process already has a socket, the name is
    /// `PID-1.sock`, and so on. Only processes of the same user can connect.
    pub fn socket(mut self) -> Self {
        self.socket = Some(Place::Usual);
        self
    }

    /// Serves the samples on a socket at this path, in an existing directory. A socket on which no process listens is
    /// replaced.
    pub fn socket_at(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(Place::At(path.into()));
        self
    }

    /// Serves `/metrics` for Prometheus, and `/stats`, on a loopback address. With port 0 the system chooses a port,
    /// which [`Monitor::address`] returns.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Sets the rank of the process in its job. The default is the value of `RANK`, `OMPI_COMM_WORLD_RANK`,
    /// `SLURM_PROCID` or `LOCAL_RANK`, in this order.
    pub fn rank(mut self, rank: impl Into<String>) -> Self {
        self.rank = Some(rank.into());
        self
    }

    /// Sets the name of the machine. The default is the host name.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Takes the first sample and starts the thread.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread, or if a server cannot be started: the address is not a
    /// loopback address or is in use, or the socket cannot be created.
    pub fn start(self) -> Result<Monitor, MonitorError> {
        Monitor::start(self)
    }
}
