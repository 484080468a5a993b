//! Counts and times calls of the driver on request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Whether calls are counted. Reading this is the only cost of a call while they are not.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// The counted calls of one of the driver's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverCalls {
    /// The name of the function.
    pub function: &'static str,
    /// The number of calls that have returned.
    pub calls: u64,
    /// The number of these calls that did not return success. This includes "not ready" for an event.
    pub failed: u64,
    /// The total time from call to return, on all threads.
    pub time: Duration,
}

/// Starts or stops counting and timing this process's calls of CUDA's driver. The default is off.
pub fn watch_driver_calls(watch: bool) {
    WATCHED.store(watch, Ordering::Relaxed);
}

/// Returns the start time of a call, if calls are counted.
#[inline]
pub(super) fn begin() -> Option<Instant> {
    WATCHED.load(Ordering::Relaxed).then(Instant::now)
}

/// The counts of one function.
#[derive(Debug, Default)]
pub(super) struct Tally {
    calls: AtomicU64,
    failed: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Tally {
    pub(super) fn ended(&self, begun: Instant, failed: bool) {
        let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub(super) fn of(&self, function: &'static str) -> DriverCalls {
        DriverCalls {
            function,
            calls: self.calls.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
        }
    }
}
