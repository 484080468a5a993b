//! Time this thread has spent on a processor.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Started at creation; reads the thread's own processor time, so other load does not count.
#[derive(Debug)]
pub struct CpuClock(Timespec);

impl CpuClock {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(clock_gettime(ClockId::ThreadCPUTime))
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub fn nanoseconds(&self) -> f64 {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        (now.tv_sec - self.0.tv_sec) as f64 * 1e9 + (now.tv_nsec - self.0.tv_nsec) as f64
    }
}
