//! The builder of watches and its errors.

use super::calls::{Call, Turn};
use super::{Change, DeviceChange, Watch};
use crate::pressure::{Readings, Share, Thresholds};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The error of a watch that could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The thread could not be started because a limit on threads or memory is reached.
    #[error(
        "cannot start the thread that watches memory: the system's error code is {code}; check the limit on threads (ulimit -u)"
    )]
    Thread {
        /// The system's error code, or 0 if there is none.
        code: i32,
    },
    /// The pipe could not be created, mostly because the limit on open files is reached.
    #[error(
        "cannot create the pipe that stops the watch: the system's error code is {code}; check the limit on open files (ulimit -n)"
    )]
    Pipe {
        /// The system's error code, or 0 if there is none.
        code: i32,
    },
}

/// Builds and starts a [`Watch`].
#[must_use = "a builder starts nothing until `start` is called"]
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

    /// Sets the source of the pressure data. The default is the system.
    pub fn readings(mut self, readings: Readings) -> Self {
        self.readings = readings;
        self
    }

    /// Sets the thresholds.
    pub fn thresholds(mut self, thresholds: Thresholds) -> Self {
        self.thresholds = thresholds;
        self
    }

    /// Sets how far used bytes must fall below the start of a level before the level is left. The default is 5 %, and
    /// the maximum is half of the start. Levels of stalls are left at half of their start.
    pub fn margin(mut self, margin: Share) -> Self {
        self.margin = margin;
        self
    }

    /// Sets the interval between checks without a notification. The default is a second. The value is clamped to 20
    /// milliseconds to an hour.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval.clamp(Self::LEAST_INTERVAL, Self::MOST_INTERVAL);
        self
    }

    /// Sets how long the pressure must stay below a level before the level is left. The default is ten seconds.
    pub fn calm(mut self, calm: Duration) -> Self {
        self.calm = calm;
        self
    }

    /// Adds a callback that frees memory. It runs first when the level changes.
    pub fn trim(mut self, call: impl Fn(&Change<'_>) + Send + Sync + 'static) -> Self {
        self.calls.push((Turn::Trim, Call::Process(Arc::new(call))));
        self
    }

    /// Adds a callback that runs when the level changes, after all trims.
    pub fn tell(mut self, call: impl Fn(&Change<'_>) + Send + Sync + 'static) -> Self {
        self.calls.push((Turn::Tell, Call::Process(Arc::new(call))));
        self
    }

    /// Adds a callback that frees memory of a CUDA device. It runs first when the device's level changes. Each check
    /// includes the devices that the process has opened by then, with the same thresholds, margin and calm period.
    pub fn trim_device(mut self, call: impl Fn(&DeviceChange<'_>) + Send + Sync + 'static) -> Self {
        self.calls.push((Turn::Trim, Call::Device(Arc::new(call))));
        self
    }

    /// Adds a callback that runs when the level of a CUDA device's memory changes, after all trims.
    pub fn tell_device(mut self, call: impl Fn(&DeviceChange<'_>) + Send + Sync + 'static) -> Self {
        self.calls.push((Turn::Tell, Call::Device(Arc::new(call))));
        self
    }

    /// Reads the pressure once and starts the thread.
    ///
    /// # Errors
    /// Returns an error if the system cannot create the pipe or the thread.
    pub fn start(self) -> Result<Watch, WatchError> {
        Watch::start(self)
    }
}
