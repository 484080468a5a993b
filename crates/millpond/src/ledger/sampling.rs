//! Which allocations are entered in the account.
//!
//! Each one is entered with the same chance, whatever came before: so a loop that allocates the same way again and again
//! is seen in all its places, and an entry stands for as many allocations as the chance says. The number of allocations
//! between two that are entered is then distributed geometrically, and can be drawn in advance.

use crate::thread::thread_number;
use crate::time::Time;
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

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
    thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0) };
    }
    let state = STATE.get();
    let mut dice = Sampler(if state == 0 { seed() } else { state });
    let picked = dice.one_in(one_in);
    STATE.set(dice.0);
    picked
}

/// Says of most addresses that they are not in the account, with one load. Counts entries by hash; a count that has
/// reached its end stays there.
///
/// A free comes after its allocation and has been told of it, so it sees the count that the allocation raised.
pub(super) struct Filter(Box<[AtomicU8]>);

impl Filter {
    pub(super) const SLOTS: usize = 1 << 16;

    /// Without slots it holds everything possible.
    pub(super) fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| AtomicU8::new(0)).collect())
    }

    fn slot(&self, hash: u64) -> Option<&AtomicU8> {
        self.0.get(hash as usize % Self::SLOTS)
    }

    #[inline]
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        self.slot(hash)
            .is_none_or(|slot| slot.load(Ordering::Relaxed) > 0)
    }

    pub(super) fn add(&self, hash: u64) {
        self.change(hash, |count| count.checked_add(1));
    }

    pub(super) fn take(&self, hash: u64) {
        self.change(hash, |count| {
            if count == u8::MAX {
                None
            } else {
                count.checked_sub(1)
            }
        });
    }

    fn change(&self, hash: u64, to: impl FnMut(u8) -> Option<u8>) {
        if let Some(slot) = self.slot(hash) {
            // What stays as it is, stays.
            let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to);
        }
    }
}
