//! What a watch is to be like, and why it cannot be.

use super::calls::{Call, Turn};
use super::{Change, DeviceChange, Watch};
use crate::pressure::{Readings, Share, Thresholds};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Why nobody can watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The system gives no thread: the limit on threads or on memory is met.
    #[error("no thread to watch memory could be started: the system's code is {code}")]
    Thread {
        /// The system's code, 0 where it has none.
        code: i32,
    },
    /// The system gives no pipe: mostly the limit on open files is met.
    #[error("no pipe to stop the watch with could be made: the system's code is {code}")]
    Pipe {
        /// The system's code, 0 where it has none.
        code: i32,
    },
}

/// Starts a [`Watch`].
#[must_use = "a builder starts nothing until told to"]
pub struct WatchBuilder {
    pub(super) readings: Readings,
    pub(super) thresholds: Thresholds,
    pub(super) margin: Share,
    pub(super) interval: Duration,
    pub(super) calm: Duration,
    pub(super) calls: Vec<(Turn, Call)>,
}

impl fmt::Debug for WatchBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchBuilder")
            .field("readings", &self.readings)
            .field("thresholds", &self.thresholds)
            .field("margin", &self.margin)
            .field("interval", &self.interval)
            .field("calm", &self.calm)
            .field("calls", &self.calls.len())
            .finish()
    }
}

impl WatchBuilder {
    /// The shortest interval.
    pub const LEAST_INTERVAL: Duration = Duration::from_millis(20);
    /// The longest interval.
    pub const MOST_INTERVAL: Duration = Duration::from_secs(3600);

    pub(super) fn new() -> Self {
        Self {
            readings: Readings::system(),
            thresholds: Thresholds::default(),
            margin: Share::percent(5),
            interval: Duration::from_secs(1),
            calm: Duration::from_secs(10),
            calls: Vec::new(),
        }
    }

    /// Where pressure is read from: the system, unless said.
    pub fn readings(mut self, readings: Readings) -> Self {
        self.readings = readings;
        self
    }

    /// Where the levels begin.
    pub fn thresholds(mut self, thresholds: Thresholds) -> Self {
        self.thresholds = thresholds;
        self
    }

    /// How far below where a level of used bytes begins it is left again: 5 % unless said, half of where it
    /// begins at the most. Levels of stalls are left at half of where they begin.
    pub fn margin(mut self, margin: Share) -> Self {
        self.margin = margin;
        self
    }

    /// How often to look when the system tells nothing: a second, unless said. From 20 milliseconds to an hour;
    /// what is outside is brought inside.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval.clamp(Self::LEAST_INTERVAL, Self::MOST_INTERVAL);
        self
    }

    /// How long a level must not be met before it is left: ten seconds, unless said.
    pub fn calm(mut self, calm: Duration) -> Self {
        self.calm = calm;
        self
    }

    /// Calls this first when the level changes, to give memory back.
    pub fn trim(mut self, call: impl Fn(&Change<'_>) + Send + Sync + 'static) -> Self {
        self.calls.push((Turn::Trim, Call::Process(Arc::new(call))));
        self
    }

    /// Calls this when the level changes, after all trims.
    pub fn tell(mut self, call: impl Fn(&Change<'_>) + Send + Sync + 'static) -> Self {
        self.calls.push((Turn::Tell, Call::Process(Arc::new(call))));
        self
    }

    /// Calls this first when the level of a CUDA device's memory changes, to give some back. Those are looked at that this process has
    /// opened by then, each time the thread looks; they have the same thresholds, margin and calm.
    pub fn trim_device(mut self, call: impl Fn(&DeviceChange<'_>) + Send + Sync + 'static) -> Self {
        self.calls.push((Turn::Trim, Call::Device(Arc::new(call))));
        self
    }

    /// Calls this when the level of a CUDA device's memory changes, after all trims.
    pub fn tell_device(mut self, call: impl Fn(&DeviceChange<'_>) + Send + Sync + 'static) -> Self {
        self.calls.push((Turn::Tell, Call::Device(Arc::new(call))));
        self
    }

    /// Looks once and starts the thread.
    ///
    /// # Errors
    /// When the system gives no pipe or no thread.
    pub fn start(self) -> Result<Watch, WatchError> {
        Watch::start(self)
    }
}
