//! A clock for the processor time of a thread.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Measures the thread's own processor time since its creation, so other load on the machine does not count.
#[derive(Debug)]
pub struct CpuClock(Timespec);

impl CpuClock {
    /// Starts the clock.
    #[must_use]
    pub fn start() -> Self {
        Self(clock_gettime(ClockId::ThreadCPUTime))
    }

    /// Returns the nanoseconds since the start.
    #[must_use]
    pub fn nanoseconds(&self) -> f64 {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        (now.tv_sec - self.0.tv_sec) as f64 * 1e9 + (now.tv_nsec - self.0.tv_nsec) as f64
    }
}
