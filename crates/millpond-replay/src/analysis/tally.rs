//! Tracks the memory of each group as blocks come and go, and its value at the peak.
//!
//! While a program grows, nearly every block makes a new peak, so nothing is copied at a peak. Instead each
//! peak has a number. Before a group changes, it first saves its value under the number of the newest peak.

use super::groups::{By, COUNT, Groups};
use super::held::{Held, HeldBlock, Sum};
use super::ledger::{Block, Ledger};
use super::shown;

/// The number of blocks that are collected before all but the largest ones are dropped, in addition to twice
/// the requested number.
const GONE: usize = 4096;

/// The figures of one group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupMemory {
    live: Sum,
    at_peak: Sum,
    /// The number of the peak to which `at_peak` belongs.
    peak: u64,
    /// The most bytes that the group has held.
    pub(super) most: u128,
    /// The blocks that were allocated in the window.
    pub(super) allocated: Sum,
    /// The part of these that was freed by the next event of the same thread.
    pub(super) temporary: Sum,
}

impl GroupMemory {
    fn remember(&mut self, peak: u64) {
        if self.peak != peak {
            self.at_peak = self.live;
            self.peak = peak;
        }
    }

    fn opens(&mut self, peak: u64, sum: Sum, is_event: bool) {
        self.remember(peak);
        self.live.add(sum);
        self.most = self.most.max(self.live.bytes);
        if is_event {
            self.allocated.add(sum);
        }
    }
}

/// All groups, and the peak of all of them together.
#[derive(Default)]
pub(super) struct MemoryByGroup {
    of: [Vec<GroupMemory>; COUNT],
    /// The number of the newest peak.
    number: u64,
    time: u64,
    /// The number of blocks opened up to the newest peak. Blocks with a lower number existed then.
    opened: u64,
    sum: Sum,
    reserved: Option<u128>,
    parked: u128,
    /// Blocks of the peak that have been freed since.
    gone: Vec<Block>,
    /// The number of large blocks that are requested.
    largest: usize,
}

impl MemoryByGroup {
    /// Starts with the blocks that already live.
    pub(super) fn begin(ledger: &Ledger<'_>, largest: usize) -> Self {
        let mut tallies = Self {
            largest,
            ..Self::default()
        };
        for block in ledger.live.values() {
            for by in By::ALL {
                tallies
                    .tally(by, block.groups[by as usize])
                    .opens(0, block.sum(by), false);
            }
        }
        tallies.peak(ledger);
        tallies
    }

    pub(super) fn tally(&mut self, by: By, group: u32) -> &mut GroupMemory {
        let of = &mut self.of[by as usize];
        let at = group as usize;
        if of.len() <= at {
            of.resize(at + 1, GroupMemory::default());
        }
        &mut of[at]
    }

    pub(super) fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        let number = self.number;
        for by in By::ALL {
            self.tally(by, block.groups[by as usize])
                .opens(number, block.sum(by), block.is_event);
        }
        if ledger.bytes > self.sum.bytes {
            self.peak(ledger);
        }
    }

    fn peak(&mut self, ledger: &Ledger<'_>) {
        self.number += 1;
        self.time = ledger.time;
        self.opened = ledger.opened;
        self.sum = now(ledger);
        self.reserved = ledger.reserved;
        self.parked = ledger.parked_bytes;
        self.gone.clear();
    }

    pub(super) fn closed(&mut self, block: &Block) {
        let number = self.number;
        for by in By::ALL {
            let tally = self.tally(by, block.groups[by as usize]);
            tally.remember(number);
            tally.live.subtract(block.sum(by));
        }
        if block.number < self.opened {
            if self.gone.len() >= GONE + 2 * self.largest {
                keep_largest(&mut self.gone, self.largest);
            }
            self.gone.push(*block);
        }
    }

    /// Returns all groups of one property, by number.
    pub(super) fn by(&self, by: By) -> &[GroupMemory] {
        &self.of[by as usize]
    }

    /// Returns the blocks that were held at the peak.
    pub(super) fn held_at_peak(mut self, ledger: &Ledger<'_>) -> Held {
        for tally in self.of.iter_mut().flatten() {
            tally.remember(self.number);
        }
        let there = ledger.live.values().filter(|block| block.number < self.opened);
        let blocks: Vec<Block> = there.chain(&self.gone).copied().collect();
        Held {
            time: self.time,
            sum: self.sum,
            parked_bytes: shown(self.parked),
            reserved_bytes: self.reserved.map(shown),
            unlisted_bytes: ledger.unlisted(),
            largest: largest(blocks, self.largest, &ledger.groups),
            groups: By::ALL.map(|by| {
                let sums = self.by(by).iter().map(|tally| (tally.at_peak, None));
                ledger.named(by, sums, self.sum)
            }),
        }
    }
}

/// Returns the sum of all live blocks.
pub(super) fn now(ledger: &Ledger<'_>) -> Sum {
    Sum {
        bytes: ledger.bytes,
        requested: ledger.requested,
        blocks: ledger.live.len() as u64,
    }
}

/// Returns the blocks held now for which `wanted` returns true.
pub(super) fn held_now(ledger: &Ledger<'_>, most: usize, wanted: impl Fn(&Block) -> bool) -> Held {
    let mut groups: [Vec<(Sum, u64)>; COUNT] = Default::default();
    let mut sum = Sum::default();
    let mut blocks = Vec::new();
    for block in ledger.live.values().filter(|block| wanted(block)) {
        sum.add(block.sum(By::Tag));
        for by in By::ALL {
            let of = &mut groups[by as usize];
            let at = block.groups[by as usize] as usize;
            if of.len() <= at {
                of.resize(at + 1, (Sum::default(), u64::MAX));
            }
            of[at].0.add(block.sum(by));
            of[at].1 = of[at].1.min(block.time);
        }
        if blocks.len() >= GONE + 2 * most {
            keep_largest(&mut blocks, most);
        }
        blocks.push(*block);
    }
    Held {
        time: ledger.time,
        sum,
        parked_bytes: shown(ledger.parked_bytes),
        reserved_bytes: ledger.reserved.map(shown),
        unlisted_bytes: ledger.unlisted(),
        largest: largest(blocks, most, &ledger.groups),
        groups: By::ALL.map(|by| {
            let sums = groups[by as usize].iter();
            ledger.named(by, sums.map(|(sum, oldest)| (*sum, Some(*oldest))), sum)
        }),
    }
}

/// Orders blocks by size, the largest first. Of equal blocks, the oldest is first.
fn by_size(block: &Block) -> (std::cmp::Reverse<u64>, u64) {
    (std::cmp::Reverse(block.bytes), block.order)
}

fn keep_largest(blocks: &mut Vec<Block>, most: usize) {
    if blocks.len() > most && most > 0 {
        blocks.select_nth_unstable_by_key(most - 1, by_size);
    }
    blocks.truncate(most);
}

fn largest(mut blocks: Vec<Block>, most: usize, groups: &Groups<'_>) -> Vec<HeldBlock> {
    keep_largest(&mut blocks, most);
    blocks.sort_unstable_by_key(by_size);
    let name = |block: &Block, by: By| groups.name(by, block.groups[by as usize]).to_owned();
    let told = |block: &Block| HeldBlock {
        bytes: block.bytes,
        requested: block.requested,
        address: block.address,
        since: block.time,
        tag: name(block, By::Tag),
        site: name(block, By::Site),
        pool: name(block, By::Pool),
    };
    blocks.iter().map(told).collect()
}
