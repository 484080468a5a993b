//! Calls of the driver, counted and timed while somebody wants to know.

use super::driver::Driver;
use super::error::CudaError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Read at every call of the driver: that, and nothing else, is what it costs to be able to watch.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Calls of one of the driver's functions while they were watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverCalls {
    /// The function.
    pub function: &'static str,
    /// Calls that have returned.
    pub calls: u64,
    /// Of these, those that did not answer success: "not ready" of an event is among them.
    pub failed: u64,
    /// From call to return, added up, on whichever threads.
    pub time: Duration,
}

/// Has this process's calls of CUDA's driver counted and timed from now on, or no more. It is off at first.
pub fn watch_driver_calls(watch: bool) {
    WATCHED.store(watch, Ordering::Relaxed);
}

/// The driver's functions that were called while they were watched, since the program began; take the difference of two answers
/// for a part of it.
///
/// ```
/// use millpond::cuda::{self, CudaDevice, CudaError};
///
/// cuda::watch_driver_calls(true);
/// match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => {}
///     device => {
///         device?.memory()?;
///         let calls = cuda::driver_calls()?;
///         assert!(calls.iter().any(|of| of.function == "cuMemGetInfo_v2" && of.calls > 0));
///     }
/// }
/// # Ok::<(), CudaError>(())
/// ```
///
/// # Errors
/// Where there is no driver.
pub fn driver_calls() -> Result<Vec<DriverCalls>, CudaError> {
    let mut calls = Driver::get()?.calls();
    calls.retain(|of| of.calls > 0);
    Ok(calls)
}

/// When a call begins, if it is watched.
#[inline]
pub(super) fn begin() -> Option<Instant> {
    WATCHED.load(Ordering::Relaxed).then(Instant::now)
}

/// Calls of one function.
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
