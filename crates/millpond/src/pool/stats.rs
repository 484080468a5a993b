//! The account of a pool, as its users read it.

use millpond_engine::Gauge;
use std::iter::Sum;

/// What a pool holds and has done, in bytes and counts. Exact at rest.
///
/// `requested <= allocated <= reserved`, always. Peaks of requested and allocated are exact while one thread has used
/// the pool, and off by at most 1 MiB for each thread otherwise (64 KiB where it holds less than
/// 8 MiB); reserved and its peak are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes callers asked for and hold.
    pub requested: Gauge,
    /// Bytes of the blocks they hold.
    pub allocated: Gauge,
    /// Bytes taken from the source.
    pub reserved: Gauge,
    /// Bytes that the threads keep to hand them out again without a lock; part of what is cached.
    pub kept: u64,
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
