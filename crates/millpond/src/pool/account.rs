//! The account of a pool, kept by its threads.
//!
//! Each thread counts by itself, on a line that no other writes. Sums over the threads are exact at rest. A peak is
//! of the sum, which no thread sees: so each thread tells the others what it has gained or lost, as soon as that is
//! more than its [`CREDIT`]. While one thread alone uses a pool it tells of every new peak, and peaks are exact.

use super::sync::{AtomicI64, AtomicU64, Ordering};

/// Bytes by which a thread's part may differ from what it last told: of one that holds much one part in so many, but
/// not less and not more than this. With n threads, peaks are off by at most n times the most.
pub(crate) const CREDIT: i64 = 64 << 10;
const MOST_CREDIT: i64 = 1 << 20;
const CREDIT_SHARE: i64 = 128;

/// What all threads together hold, as they have told.
#[derive(Debug, Default)]
pub(crate) struct Total {
    live: AtomicI64,
    peak: AtomicI64,
}

impl Total {
    fn add(&self, change: i64) {
        // Below nothing for a moment where one thread frees what another has not told yet.
        let live = self
            .live
            .fetch_add(change, Ordering::Relaxed)
            .wrapping_add(change);
        self.peak.fetch_max(live, Ordering::Relaxed);
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed).unsigned_abs()
    }

    pub(crate) fn set_peak(&self, peak: u64) {
        self.peak.store(peak as i64, Ordering::Relaxed);
    }
}

/// A quantity of one thread: bytes it has allocated less those it has freed. Frees count where they happen, so it may
/// be below nothing, and only the sum means something.
#[derive(Debug, Default)]
pub(crate) struct Net {
    now: AtomicI64,
    /// Nothing needs to be told while `low <= now <= high`.
    high: AtomicI64,
    low: AtomicI64,
    /// What the others know.
    told: AtomicI64,
}

impl Net {
    /// Answers whether it is time to tell. By the owner only.
    #[inline]
    fn gain(&self, bytes: usize) -> bool {
        let now = self.now.load(Ordering::Relaxed).wrapping_add(bytes as i64);
        self.now.store(now, Ordering::Relaxed);
        now > self.high.load(Ordering::Relaxed)
    }

    /// Answers whether it is time to tell. By the owner only.
    #[inline]
    fn lose(&self, bytes: usize) -> bool {
        let now = self.now.load(Ordering::Relaxed).wrapping_sub(bytes as i64);
        self.now.store(now, Ordering::Relaxed);
        now < self.low.load(Ordering::Relaxed)
    }

    /// By the owner, or by a thread that has the cache.
    fn tell(&self, total: &Total, alone: bool) {
        let now = self.now.load(Ordering::Relaxed);
        let told = self.told.swap(now, Ordering::Relaxed);
        total.add(now.wrapping_sub(told));
        // Alone, a peak is told when there is a new one: no other thread changes the sum.
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

/// One thread's part of the account.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) allocations: AtomicU64,
    pub(crate) frees: AtomicU64,
    pub(crate) requested: Net,
    pub(crate) allocated: Net,
    /// Allocations in which the source was called.
    pub(crate) misses: AtomicU64,
}

/// What all threads together hold.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) requested: Total,
    pub(crate) allocated: Total,
}

impl Tally {
    /// Counts an allocation; answers whether it is time to [`tell`](Self::tell).
    #[inline]
    pub(crate) fn allocate(&self, requested: usize, allocated: usize) -> bool {
        bump(&self.allocations);
        let one = self.requested.gain(requested);
        self.allocated.gain(allocated) | one
    }

    /// Counts a free; answers whether it is time to [`tell`](Self::tell).
    #[inline]
    pub(crate) fn free(&self, requested: usize, allocated: usize) -> bool {
        bump(&self.frees);
        let one = self.requested.lose(requested);
        self.allocated.lose(allocated) | one
    }

    /// Calls of the thread.
    pub(crate) fn calls(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed) + self.frees.load(Ordering::Relaxed)
    }

    /// Counts that a request changes its size.
    #[inline]
    pub(crate) fn resize(&self, from: usize, to: usize) -> bool {
        self.requested.lose(from) | self.requested.gain(to)
    }

    /// Adds the account of a thread that ended, which has told everything. Never told again.
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

/// Adds one, where nobody else writes.
#[inline]
pub(crate) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_every_peak_is_told() {
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
    fn who_holds_much_tells_less_often() {
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
        assert!(told < 600, "{told} times, and by the least credit 1,600");
        assert!(told > 300, "{told}");
    }

    #[test]
    fn together_peaks_are_off_by_the_credit_of_each() {
        let totals = Totals::default();
        let threads: Vec<Tally> = (0..4).map(|_| Tally::default()).collect();
        threads.iter().for_each(|t| t.tell(&totals, false));
        let (mut live, mut peak) = (0i64, 0i64);
        let mut seed = 1u64;
        for _ in 0..100_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let tally = &threads[(seed >> 60) as usize % 4];
            let bytes = (seed >> 33) % 40_000 + 1;
            // What one thread allocates another frees.
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
