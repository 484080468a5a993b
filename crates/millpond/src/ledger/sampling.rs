//! Which allocations are entered in the account.
//!
//! Each one is entered with the same chance, whatever came before: so a loop that allocates the same way again and again
//! is seen in all its places, and an entry stands for as many allocations as the chance says. The number of allocations
//! between two that are entered is then distributed geometrically, and can be drawn in advance.

use crate::thread::thread_number;
use crate::time::Time;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// Which allocations are entered in the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// All: sums are exact, and wrong frees are found.
    All,
    /// About one in so many, at random: sums are estimates. Sizes have no say in it.
    Sampled {
        /// How many allocations one entry stands for; 0 counts as 1.
        one_in: u32,
    },
}

/// The state of one thread's dice.
#[derive(Clone, Debug)]
pub struct Sampler(u64);

impl Sampler {
    /// Dice that fall the same way each time.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice for this thread.
    #[must_use]
    pub fn new() -> Self {
        Self(seed())
    }

    /// SplitMix64, of Steele, Lea and Flood.
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
        // In (0, 1], so that the logarithm is finite.
        let chance = ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let gap = chance.ln() / (-1.0 / f64::from(one_in)).ln_1p();
        // Saturates.
        gap as u32
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

/// Throws this thread's dice.
pub(super) fn dice(one_in: u32) -> bool {
    with_dice(|dice| dice.one_in(one_in))
}

/// How many allocations this thread is to let pass.
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

/// Says of most addresses that they are not in the account, with one load. Counts entries by hash; a count that has
/// reached its end stays there. Accounts that follow each other may share one.
///
/// A free comes after its allocation and has been told of it, so it sees the count that the allocation raised.
#[derive(Clone)]
pub(crate) struct Filter(Option<Arc<Counts>>);

type Counts = [AtomicU8; 1 << 16];

impl Filter {
    pub(crate) fn new() -> Self {
        let counts: Arc<[AtomicU8]> = (0..1 << 16).map(|_| AtomicU8::new(0)).collect();
        Self(counts.try_into().ok())
    }

    /// How many have this one.
    pub(crate) fn holders(&self) -> usize {
        self.0.as_ref().map_or(0, Arc::strong_count)
    }

    /// Begins anew, without entries. Nobody else has it.
    pub(crate) fn renew(&self) {
        // The caller found out by a relaxed load that nobody else has the filter. The fence orders the last changes by other
        // threads before the stores below.
        fence(Ordering::Acquire);
        for count in self.0.iter().flat_map(|counts| counts.iter()) {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// It holds everything possible.
    pub(super) fn everything() -> Self {
        Self(None)
    }

    #[inline]
    fn count(&self, address: usize) -> Option<&AtomicU8> {
        // All bits count in the uppermost ones of a product with 2^64 over the golden ratio.
        let place = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        self.0.as_ref()?.get(place as usize)
    }

    #[inline]
    pub(crate) fn may_hold(&self, address: usize) -> bool {
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
            // What stays as it is, stays.
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to);
        }
    }
}
