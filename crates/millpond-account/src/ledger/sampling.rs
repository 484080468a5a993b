//! Selects the allocations that are recorded in the account.
//!
//! Each allocation is selected with the same probability, independent of earlier ones. A loop that repeats the same
//! allocations is therefore sampled at all its places, and an entry represents as many allocations as the probability
//! implies. The number of allocations between two selected ones has a geometric distribution and can be drawn in
//! advance.

use millpond_os::thread::thread_number;
use millpond_os::time::Time;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// The allocations that are recorded in the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// All allocations. Sums are exact, and wrong frees are found.
    All,
    /// A random sample of one in `one_in` allocations. Sums are estimates. The size has no influence.
    Sampled {
        /// The number of allocations that one entry represents. 0 counts as 1.
        one_in: u32,
    },
}

/// The random state of one thread.
#[derive(Clone, Debug)]
pub struct Sampler(u64);

impl Sampler {
    /// Makes a state that always produces the same sequence.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Makes a state for this thread.
    #[must_use]
    pub fn new() -> Self {
        Self(seed())
    }

    /// Returns the next number of SplitMix64, by Steele, Lea and Flood.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn gap(&mut self, tracking: Tracking) -> u32 {
        let Tracking::Sampled { one_in: one_in @ 2.. } = tracking else {
            return 0;
        };
        let gap = self.chance().ln() / (-1.0 / f64::from(one_in)).ln_1p();
        // The conversion saturates.
        gap as u32
    }

    /// Returns the number of bytes to the next selected one if each byte is selected with the probability `1 / mean`,
    /// independent of the others. The number has an exponential distribution.
    pub(crate) fn bytes_to_next(&mut self, mean: u64) -> u64 {
        // The conversion saturates.
        ((-self.chance().ln() * mean as f64) as u64).max(1)
    }

    /// Returns a random number above 0 and at most 1, so that its logarithm is finite.
    fn chance(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn one_in(&mut self, one_in: u32) -> bool {
        ((self.next() >> 32) * u64::from(one_in)) >> 32 == 0
    }
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new()
    }
}

fn seed() -> u64 {
    Sampler(u64::from(thread_number()) << 40 ^ Time::now().nanos()).next()
}

/// Decides at random with this thread's state.
pub(super) fn dice(one_in: u32) -> bool {
    with_dice(|dice| dice.one_in(one_in))
}

/// Returns how many allocations this thread skips.
pub(super) fn gap(tracking: Tracking) -> u32 {
    with_dice(|dice| dice.gap(tracking))
}

fn with_dice<R>(throw: impl FnOnce(&mut Sampler) -> R) -> R {
    thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0) };
    }
    let state = STATE.get();
    let mut dice = Sampler(if state == 0 { seed() } else { state });
    let answer = throw(&mut dice);
    STATE.set(dice.0);
    answer
}

/// A filter of addresses. For most addresses that are not in the account, one load shows that they are not. The filter
/// counts entries by hash. A count that has reached its maximum stays there. Successive accounts may share one filter.
///
/// A free happens after its allocation, so it sees the count that the allocation raised.
#[derive(Clone)]
pub struct Filter(Option<Arc<Counts>>);

type Counts = [AtomicU8; 1 << 16];

impl Filter {
    /// Creates an empty filter.
    pub fn empty() -> Self {
        let counts: Arc<[AtomicU8]> = (0..1 << 16).map(|_| AtomicU8::new(0)).collect();
        Self(counts.try_into().ok())
    }

    /// Returns the number of owners of this filter.
    pub fn holders(&self) -> usize {
        self.0.as_ref().map_or(0, Arc::strong_count)
    }

    /// Removes all entries. The caller must be the only owner.
    pub fn renew(&self) {
        // The caller found by a relaxed load that it is the only owner. The fence orders the last changes by other
        // threads before the stores below.
        fence(Ordering::Acquire);
        for count in self.0.iter().flat_map(|counts| counts.iter()) {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Makes a filter that reports every address as possible.
    pub(super) fn everything() -> Self {
        Self(None)
    }

    #[inline]
    fn count(&self, address: usize) -> Option<&AtomicU8> {
        // All bits of the address influence the uppermost bits of the product with 2^64 divided by the golden ratio.
        let place = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        self.0.as_ref()?.get(place as usize)
    }

    /// Returns false if the address is certainly not in the account.
    #[inline]
    pub fn may_hold(&self, address: usize) -> bool {
        self.count(address)
            .is_none_or(|count| count.load(Ordering::Relaxed) > 0)
    }

    pub(super) fn add(&self, address: usize) {
        self.change(address, |count| count.checked_add(1));
    }

    pub(super) fn take(&self, address: usize) {
        self.change(address, |count| {
            if count == u8::MAX {
                None
            } else {
                count.checked_sub(1)
            }
        });
    }

    fn change(&self, address: usize, to: impl FnMut(u8) -> Option<u8>) {
        if let Some(count) = self.count(address) {
            // An error means that the count stays at its maximum.
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to);
        }
    }
}
