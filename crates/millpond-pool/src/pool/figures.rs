//! The statistics of a pool.

use super::account::Tally;
#[cfg(test)]
use super::classes::class_bytes;
use super::core::Core;
use super::heap::{CacheRegistry, Heap, lock};
use millpond_account::budget::Budget;
use millpond_account::stats::PoolStats;
use millpond_engine::{Gauge, PieceState};
use millpond_os::reentrancy::inside;
use std::sync::atomic::Ordering;

/// Returns the sums over all threads.
fn sum(registry: &CacheRegistry, core: Option<&Core>) -> Tally {
    let sum = Tally::default();
    let tallies = registry.tallies().chain(core.map(|core| &core.tally));
    tallies.for_each(|tally| sum.absorb(tally));
    sum
}

/// Returns the requested and the allocated bytes of the blocks in use.
pub(super) fn live(registry: &CacheRegistry, core: Option<&Core>) -> (u64, u64) {
    let sum = sum(registry, core);
    (sum.requested.now() as u64, sum.allocated.now() as u64)
}

impl Heap {
    /// Returns the requested and the allocated bytes of live blocks.
    pub(super) fn live(&self) -> (u64, u64) {
        live(&lock(&self.registry), lock(&self.core).as_ref())
    }

    /// Returns the statistics.
    pub fn stats(&self) -> PoolStats {
        let _inside = inside();
        let registry = lock(&self.registry);
        let mut stats = PoolStats::default();
        self.claim(&registry, |_, stacks| stats.kept += stacks.bytes() as u64);
        let core = lock(&self.core);
        let sum = sum(&registry, core.as_ref());
        let gauge = |current: i64, peak: u64| {
            // The value is negative only while other threads are active.
            let current = u64::try_from(current).unwrap_or(0);
            Gauge {
                current,
                peak: peak.max(current),
            }
        };
        let [allocations, frees, misses] = *lock(&self.forgotten);
        stats.allocations = sum.allocations.load(Ordering::Relaxed) - allocations;
        stats.frees = sum.frees.load(Ordering::Relaxed) - frees;
        let misses = sum.misses.load(Ordering::Relaxed) - misses;
        stats.hits = stats.allocations.saturating_sub(misses);
        stats.requested = gauge(sum.requested.now(), self.totals.requested.peak());
        stats.allocated = gauge(sum.allocated.now(), self.totals.allocated.peak());
        if let Some(core) = core.as_ref() {
            stats.reserved = core.reserved();
            stats.refusals = core.refusals;
        }
        stats
    }

    /// Returns the name of the policy that places blocks.
    pub(crate) fn policy(&self) -> &'static str {
        self.policy
    }

    /// Returns the maximum number of bytes that the pool may take from its source, or `None` if only the source's own capacity limits
    /// it.
    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.limit.bytes()).filter(|bytes| *bytes < u64::MAX)
    }

    /// Returns the budgets that the pool's blocks and its reserved bytes are charged to.
    pub fn budgets(&self) -> impl Iterator<Item = &Budget> {
        self.budget.iter().chain(&self.reserved)
    }

    /// Returns the number of calls in which pages were moved or given back, or a device was waited for.
    pub(crate) fn stalls(&self) -> u64 {
        let _inside = inside();
        lock(&self.core)
            .as_ref()
            .map_or(0, |core| core.memory.stats().stalls)
    }

    /// Returns the fraction of the engine's free memory that is outside its largest free range.
    pub(crate) fn external_fragmentation(&self) -> f64 {
        let _inside = inside();
        let (mut free, mut largest) = (0u64, 0u64);
        self.with_engine(|core| {
            core.memory.policy().layout(&mut |piece| {
                if piece.state == PieceState::Free {
                    free += piece.bytes;
                    largest = largest.max(piece.bytes);
                }
            });
        });
        if free == 0 {
            return 0.0;
        }
        1.0 - largest as f64 / free as f64
    }

    /// Returns the total allocations, frees and misses.
    pub(super) fn counts(&self) -> [u64; 3] {
        let registry = lock(&self.registry);
        let sum = sum(&registry, lock(&self.core).as_ref());
        [&sum.allocations, &sum.frees, &sum.misses].map(|count| count.load(Ordering::Relaxed))
    }

    pub(crate) fn reset_peaks(&self) {
        let _inside = inside();
        let (requested, allocated) = self.live();
        self.totals.requested.set_peak(requested);
        self.totals.allocated.set_peak(allocated);
        let registry = lock(&self.registry);
        let alone = self.alone();
        self.claim(&registry, |cache, _| cache.tally.tell(&self.totals, alone));
        if let Some(core) = lock(&self.core).as_mut() {
            core.reset_peaks();
        }
    }

    /// Asserts that the counters of the engine and of the pool agree. No other thread may be active.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let shelves: usize = self
            .shelves
            .iter()
            .enumerate()
            .map(|(class, shelf)| lock(shelf).blocks() * class_bytes(class))
            .sum();
        let stats = self.stats();
        let core = lock(&self.core);
        let Some(core) = core.as_ref() else { return };
        core.memory.check();
        let below = core.memory.stats().allocated.current;
        assert!(
            stats.allocated.current + stats.kept + shelves as u64 <= below,
            "{stats:?} and {shelves} on shelves, above the engine's {below}"
        );
    }
}
