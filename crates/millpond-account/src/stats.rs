//! The statistics of a pool.

use millpond_engine::{Gauge, display_size};
use std::fmt;
use std::iter::Sum;

/// The figures of a pool in bytes and counts. They are exact while no thread uses the pool.
///
/// `requested <= allocated <= reserved` always holds. The peaks of requested and allocated are exact if only one thread
/// has used the pool. Otherwise the error is at most 4 MiB for each thread (or an eighth of its holdings, but not less
/// than 64 KiB, if that is less). Reserved and its peak are exact.
///
/// The figures are displayed as one line:
///
/// ```
/// let pool = millpond::Pool::builder().capacity(4 << 20).host()?;
/// let held = pool.alloc_zeroed::<f32>(1 << 18)?;
/// let stats = pool.stats();
/// assert_eq!(stats.active(), 1 << 20);
/// assert_eq!(stats.available(), stats.reserved.current - (1 << 20));
/// assert!(stats.to_string().starts_with("1.00 MiB in use of "), "{stats}");
/// # drop(held);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// The bytes that callers requested and hold.
    pub requested: Gauge,
    /// The bytes of the blocks that callers hold.
    pub allocated: Gauge,
    /// The bytes taken from the source.
    pub reserved: Gauge,
    /// The bytes in the caches of threads, which are reused without a lock. They are part of the cached bytes.
    pub kept: u64,
    /// The bytes of freed blocks that wait for a stream of their device. A host pool has none.
    pub waiting: u64,
    /// The number of successful allocations.
    pub allocations: u64,
    /// The number of frees.
    pub frees: u64,
    /// The number of allocations that were served without calling the source.
    pub hits: u64,
    /// The number of refused allocations.
    pub refusals: u64,
}

impl PoolStats {
    /// Returns hits divided by allocations, or 0 before the first allocation.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hits, self.allocations)
    }

    /// Returns allocated divided by reserved, or 0 while nothing is reserved.
    ///
    /// A value near 1 is good: little memory is idle. It does not mean that little memory is left. For a warning before
    /// memory runs out, give the pool a budget with a soft limit.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        ratio(self.allocated.current, self.reserved.current)
    }

    /// Returns the share of reserved bytes that no caller holds, or 0 while nothing is reserved.
    #[must_use]
    pub fn fragmentation_ratio(&self) -> f64 {
        ratio(self.cached(), self.reserved.current)
    }

    /// Returns the bytes from the source that no caller holds.
    #[must_use]
    pub fn cached(&self) -> u64 {
        self.reserved.current.saturating_sub(self.allocated.current)
    }

    /// Returns the bytes that can be allocated without the source, if the free ranges have suitable sizes: reserved
    /// minus allocated. The limit determines how much more the pool may take from the source.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.cached()
    }

    /// Returns the bytes of blocks that callers hold, and of freed blocks that wait for a stream of their device. A
    /// host has no streams, so there the value equals the allocated bytes.
    #[must_use]
    pub fn active(&self) -> u64 {
        self.allocated.current.saturating_add(self.waiting)
    }

    /// Returns reserved minus active.
    #[must_use]
    pub fn inactive(&self) -> u64 {
        self.reserved.current.saturating_sub(self.active())
    }

    /// Returns the number of allocations that were served without calling the source. Their share of all allocations is
    /// the [hit rate](Self::hit_rate).
    #[must_use]
    pub fn saved(&self) -> u64 {
        self.hits
    }

    /// Returns the peak of reserved divided by the peak of requested, or `None` before the first request. The minimum
    /// is 1. `reset_peak` resets the peaks.
    #[must_use]
    pub fn overhead(&self) -> Option<f64> {
        (self.requested.peak > 0).then(|| ratio(self.reserved.peak, self.requested.peak))
    }
}

impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in use of {} reserved ({:.1} %), peak {}; {} allocations, {} frees, {:.1} % hits",
            display_size(self.allocated.current),
            display_size(self.reserved.current),
            100.0 * self.utilisation(),
            display_size(self.allocated.peak),
            self.allocations,
            self.frees,
            100.0 * self.hit_rate()
        )?;
        match self.refusals {
            0 => Ok(()),
            refusals => write!(f, ", {refusals} refused"),
        }
    }
}

/// Adds up several pools. The peaks are added too, so the result is an upper bound of the common peak.
impl Sum for PoolStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let gauge = |a: Gauge, b: Gauge| Gauge {
            current: a.current.saturating_add(b.current),
            peak: a.peak.saturating_add(b.peak),
        };
        all.fold(Self::default(), |sum, one| Self {
            requested: gauge(sum.requested, one.requested),
            allocated: gauge(sum.allocated, one.allocated),
            reserved: gauge(sum.reserved, one.reserved),
            kept: sum.kept.saturating_add(one.kept),
            waiting: sum.waiting.saturating_add(one.waiting),
            allocations: sum.allocations.saturating_add(one.allocations),
            frees: sum.frees.saturating_add(one.frees),
            hits: sum.hits.saturating_add(one.hits),
            refusals: sum.refusals.saturating_add(one.refusals),
        })
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_statistics_are_consistent() {
        let gauge = |current, peak| Gauge { current, peak };
        let mut stats = PoolStats {
            requested: gauge(900, 2 << 20),
            allocated: gauge(1 << 20, 3 << 20),
            reserved: gauge(4 << 20, 5 << 20),
            allocations: 100,
            frees: 90,
            hits: 95,
            ..PoolStats::default()
        };
        assert_eq!((stats.active(), stats.inactive()), (1 << 20, 3 << 20));
        assert_eq!((stats.available(), stats.saved()), (3 << 20, 95));
        assert_eq!(stats.overhead(), Some(2.5));
        assert_eq!(PoolStats::default().overhead(), None);
        let line = "1.00 MiB in use of 4.00 MiB reserved (25.0 %), peak 3.00 MiB; 100 allocations, 90 frees, 95.0 % hits";
        assert_eq!(stats.to_string(), line);
        stats.refusals = 2;
        assert_eq!(stats.to_string(), format!("{line}, 2 refused"));
    }
}
