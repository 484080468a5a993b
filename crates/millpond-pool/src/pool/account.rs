//! The counters of a pool, which consist of one part for each thread.
//!
//! Each thread counts in a cache line that no other thread writes. Sums over the threads are exact when no thread is
//! active. The peak is the peak of the sum, which no thread knows. Therefore each thread reports its gains and losses as soon
//! as they exceed its [`CREDIT`]. While only one thread uses a pool, it reports every new peak, and peaks are exact.

use super::sync::{AtomicI64, AtomicU64, Ordering};

/// The bytes by which a thread's part may differ from its last report. A thread that holds more memory may differ by a
/// fraction of its part, up to a maximum. With n threads, peaks are off by at most n times the maximum.
pub(crate) const CREDIT: i64 = 64 << 10;
const MOST_CREDIT: i64 = 4 << 20;
const CREDIT_SHARE: i64 = 8;

/// The total of all threads, according to their reports.
#[derive(Debug, Default)]
pub(crate) struct Total {
    live: AtomicI64,
    peak: AtomicI64,
}

impl Total {
    fn add(&self, change: i64) {
        // The total is negative for a moment if one thread frees blocks that another has not reported yet.
        let live = self
            .live
            .fetch_add(change, Ordering::Relaxed)
            .wrapping_add(change);
        // Usually there is no new peak, and a read does not invalidate the cache line of other threads.
        if live > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(live, Ordering::Relaxed);
        }
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed).unsigned_abs()
    }

    pub(crate) fn set_peak(&self, peak: u64) {
        self.peak.store(peak as i64, Ordering::Relaxed);
    }
}

/// A quantity of one thread: the bytes that it has allocated minus the bytes that it has freed. A free counts on the thread
/// that frees, so the quantity may be negative, and only the sum is meaningful.
#[derive(Debug, Default)]
pub(crate) struct Net {
    now: AtomicI64,
    /// No report is needed while `low <= now <= high`.
    high: AtomicI64,
    low: AtomicI64,
    /// The reported value.
    told: AtomicI64,
}

impl Net {
    /// Adds bytes. Returns whether it is time to report. Called by the owner only.
    #[inline]
    fn gain(&self, bytes: usize) -> bool {
        let now = self.now.load(Ordering::Relaxed).wrapping_add(bytes as i64);
        self.now.store(now, Ordering::Relaxed);
        now > self.high.load(Ordering::Relaxed)
    }

    /// Subtracts bytes. Returns whether it is time to report. Called by the owner only.
    #[inline]
    fn lose(&self, bytes: usize) -> bool {
        let now = self.now.load(Ordering::Relaxed).wrapping_sub(bytes as i64);
        self.now.store(now, Ordering::Relaxed);
        now < self.low.load(Ordering::Relaxed)
    }

    /// Reports the value. Called by the owner, or by a thread that holds the cache.
    fn tell(&self, total: &Total, alone: bool) {
        let now = self.now.load(Ordering::Relaxed);
        let told = self.told.swap(now, Ordering::Relaxed);
        total.add(now.wrapping_sub(told));
        // If there is only one thread, it reports only new peaks, because no other thread changes the sum.
        let (low, high) = if alone {
            (i64::MIN, now)
        } else {
            let credit = (now / CREDIT_SHARE).saturating_abs().clamp(CREDIT, MOST_CREDIT);
            (now.saturating_sub(credit), now.saturating_add(credit))
        };
        self.low.store(low, Ordering::Relaxed);
        self.high.store(high, Ordering::Relaxed);
    }

    fn absorb(&self, other: &Self) {
        self.now.fetch_add(other.now(), Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> i64 {
        self.now.load(Ordering::Relaxed)
    }
}

/// One thread's part of the counters.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) allocations: AtomicU64,
    pub(crate) frees: AtomicU64,
    pub(crate) requested: Net,
    pub(crate) allocated: Net,
    /// The number of allocations that called the source.
    pub(crate) misses: AtomicU64,
}

/// The totals of all threads, in a cache line of their own that moves between processors.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Totals {
    pub(crate) requested: Total,
    pub(crate) allocated: Total,
}

impl Tally {
    /// Counts an allocation. Returns whether it is time to [report](Self::tell).
    #[inline]
    pub(crate) fn allocate(&self, requested: usize, allocated: usize) -> bool {
        bump(&self.allocations);
        let one = self.requested.gain(requested);
        self.allocated.gain(allocated) | one
    }

    /// Counts a free. Returns whether it is time to [report](Self::tell).
    #[inline]
    pub(crate) fn free(&self, requested: usize, allocated: usize) -> bool {
        bump(&self.frees);
        let one = self.requested.lose(requested);
        self.allocated.lose(allocated) | one
    }

    /// Returns the number of the thread's calls.
    pub(crate) fn calls(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed) + self.frees.load(Ordering::Relaxed)
    }

    /// Counts a change of a request's size. Returns whether it is time to [report](Self::tell).
    #[inline]
    pub(crate) fn resize(&self, from: usize, to: usize) -> bool {
        self.requested.lose(from) | self.requested.gain(to)
    }

    /// Adds the counters of a thread that ended, which has reported everything. They are not reported again.
    pub(crate) fn absorb(&self, other: &Self) {
        let counts = [
            (&self.allocations, &other.allocations),
            (&self.frees, &other.frees),
            (&self.misses, &other.misses),
        ];
        for (sum, part) in counts {
            sum.fetch_add(part.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.requested.absorb(&other.requested);
        self.allocated.absorb(&other.allocated);
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn tell(&self, totals: &Totals, alone: bool) {
        self.requested.tell(&totals.requested, alone);
        self.allocated.tell(&totals.allocated, alone);
    }
}

/// Increments a counter that no other thread writes.
#[inline]
pub(crate) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_thread_reports_every_peak() {
        let (tally, totals) = (Tally::default(), Totals::default());
        tally.tell(&totals, true);
        let mut live = 0u64;
        let mut peak = 0;
        let mut told = 0;
        for round in 0..10_000u64 {
            let bytes = (round * 7919) % 997 + 1;
            let time = if (round * 31) % 5 < 3 || live < bytes {
                live += bytes;
                tally.allocate(bytes as usize, bytes as usize)
            } else {
                live -= bytes;
                tally.free(bytes as usize, bytes as usize)
            };
            peak = peak.max(live);
            if time {
                tally.tell(&totals, true);
                told += 1;
            }
            assert_eq!(totals.allocated.peak(), peak, "round {round}");
        }
        assert!(told < 10_000, "only new peaks are told");
        assert_eq!(tally.allocated.now(), live as i64);
    }

    #[test]
    fn a_thread_that_holds_much_memory_reports_less_often() {
        let (tally, totals) = (Tally::default(), Totals::default());
        tally.tell(&totals, false);
        let (mut told, mut peak) = (0, 0);
        let all = 100 << 20;
        for _ in 0..all / 4096 {
            if tally.allocate(4096, 4096) {
                tally.tell(&totals, false);
                told += 1;
            }
            peak += 4096;
            let off = peak - totals.allocated.peak() as i64;
            assert!(
                off <= CREDIT.max(peak / CREDIT_SHARE) + 4096,
                "off by {off} of {peak}"
            );
        }
        assert!(told < 100, "{told} times, and by the least credit 1,600");
        assert!(told > 40, "{told}");
    }

    #[test]
    fn peaks_of_several_threads_are_off_by_at_most_their_credits() {
        let totals = Totals::default();
        let threads: Vec<Tally> = (0..4).map(|_| Tally::default()).collect();
        threads.iter().for_each(|t| t.tell(&totals, false));
        let (mut live, mut peak) = (0i64, 0i64);
        let mut seed = 1u64;
        for _ in 0..100_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let tally = &threads[(seed >> 60) as usize % 4];
            let bytes = (seed >> 33) % 40_000 + 1;
            // One thread frees blocks that another allocated.
            let time = if (seed >> 20) & 1 == 0 || live < bytes as i64 {
                live += bytes as i64;
                tally.allocate(bytes as usize, bytes as usize)
            } else {
                live -= bytes as i64;
                tally.free(bytes as usize, bytes as usize)
            };
            if time {
                tally.tell(&totals, false);
            }
            peak = peak.max(live);
        }
        let off = (totals.allocated.peak() as i64 - peak).unsigned_abs();
        assert!(off <= 4 * CREDIT.unsigned_abs(), "off by {off}");
        let sum: i64 = threads.iter().map(|t| t.allocated.now()).sum();
        assert_eq!(sum, live);
    }
}
