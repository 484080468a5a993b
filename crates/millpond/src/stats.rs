//! The account of a pool, as its users read it.

use millpond_engine::{Gauge, display_size};
use std::fmt;
use std::iter::Sum;

/// What a pool holds and has done, in bytes and counts. Exact at rest.
///
/// `requested <= allocated <= reserved`, always. Peaks of requested and allocated are exact while one thread has used
/// the pool, and off by at most 4 MiB for each thread otherwise (an eighth of what it holds, but
/// not less than 64 KiB, where that is less); reserved and its peak are exact.
///
/// Shown as a line:
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
    /// Bytes callers asked for and hold.
    pub requested: Gauge,
    /// Bytes of the blocks they hold.
    pub allocated: Gauge,
    /// Bytes taken from the source.
    pub reserved: Gauge,
    /// Bytes that the threads keep to hand them out again without a lock; part of what is cached.
    pub kept: u64,
    /// Bytes of blocks that were given back and wait for a stream of their device; a host has none.
    pub waiting: u64,
    /// Allocations served.
    pub allocations: u64,
    /// Blocks given back.
    pub frees: u64,
    /// Allocations served without calling the source.
    pub hits: u64,
    /// Allocations refused.
    pub refusals: u64,
}

impl PoolStats {
    /// Hits over allocations; 0 before the first.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        ratio(self.hits, self.allocations)
    }

    /// Allocated over reserved; 0 while nothing is reserved.
    ///
    /// Near 1 is where a pool should be: it says that little lies idle, not that little is left. To be warned before
    /// memory runs out, give the pool a [budget](crate::PoolBuilder::budget) with a soft limit.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        ratio(self.allocated.current, self.reserved.current)
    }

    /// The share of reserved bytes in no caller's hands; 0 while nothing is reserved.
    #[must_use]
    pub fn fragmentation_ratio(&self) -> f64 {
        ratio(self.cached(), self.reserved.current)
    }

    /// Bytes held from the source that no caller has.
    #[must_use]
    pub fn cached(&self) -> u64 {
        self.reserved.current.saturating_sub(self.allocated.current)
    }

    /// Bytes that can be handed out without more from the source, if they lie as they are wanted: reserved less allocated.
    /// What the pool may still take beside them its [limit](crate::Pool::limit) says.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.cached()
    }

    /// Bytes of blocks that callers hold, and of those freed that wait for a stream of their device. A host has no
    /// streams: there it is what is allocated.
    #[must_use]
    pub fn active(&self) -> u64 {
        self.allocated.current.saturating_add(self.waiting)
    }

    /// Reserved less active.
    #[must_use]
    pub fn inactive(&self) -> u64 {
        self.reserved.current.saturating_sub(self.active())
    }

    /// Allocations saved: served without calling the source. Their share of all is the [hit rate](Self::hit_rate).
    #[must_use]
    pub fn saved(&self) -> u64 {
        self.hits
    }

    /// Peak reserved over peak requested; none before anything was asked for. 1 is the least there is. Peaks begin anew
    /// with [`reset_peak`](crate::Pool::reset_peak).
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

/// Several pools together. The peaks are added: what was used at once was no more.
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
    fn the_words_of_the_account_hold_together() {
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
