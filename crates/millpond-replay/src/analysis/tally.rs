//! What each group holds as blocks come and go, and what it held at the peak.
//!
//! A new peak comes with nearly every block while a program grows, so nothing is copied then: the peak has a number, and a group
//! that changes later first remembers what it held under the newest one.

use super::groups::{By, COUNT, Groups};
use super::held::{Group, Held, HeldBlock, Sum};
use super::ledger::{Block, Ledger};
use super::shown;

/// Blocks remembered that were held at the peak and are gone since, beyond the largest asked for.
const GONE: usize = 4096;

/// One group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    live: Sum,
    at_peak: Sum,
    /// The peak of `at_peak`.
    peak: u64,
    /// The most it has held itself.
    pub(super) most: u128,
    /// Handed out in the window.
    pub(super) allocated: Sum,
    /// Of these, given back as the very next thing its thread did.
    pub(super) temporary: Sum,
}

impl Tally {
    fn remember(&mut self, peak: u64) {
        if self.peak != peak {
            self.at_peak = self.live;
            self.peak = peak;
        }
    }

    fn opens(&mut self, peak: u64, block: &Block, is_event: bool) {
        self.remember(peak);
        self.live.add(block.bytes, block.requested);
        self.most = self.most.max(self.live.bytes);
        if is_event {
            self.allocated.add(block.bytes, block.requested);
        }
    }
}

/// All groups, and the peak of all of them together.
#[derive(Default)]
pub(super) struct Tallies {
    of: [Vec<Tally>; COUNT],
    /// Number of the newest peak.
    number: u64,
    time: u64,
    /// Blocks opened by the newest peak: those with a lower number were there.
    opened: u64,
    sum: Sum,
    reserved: Option<u128>,
    parked: u128,
    /// Blocks of the peak that are gone since.
    gone: Vec<Block>,
    /// Large blocks wanted.
    largest: usize,
}

impl Tallies {
    /// Beginning with what lives already.
    pub(super) fn begin(ledger: &Ledger<'_>, largest: usize) -> Self {
        let mut tallies = Self {
            largest,
            ..Self::default()
        };
        for block in ledger.live.values() {
            for by in By::ALL {
                tallies
                    .tally(by, block.groups[by as usize])
                    .opens(0, block, false);
            }
        }
        tallies.peak(ledger);
        tallies
    }

    pub(super) fn tally(&mut self, by: By, group: u32) -> &mut Tally {
        let of = &mut self.of[by as usize];
        let at = group as usize;
        if of.len() <= at {
            of.resize(at + 1, Tally::default());
        }
        &mut of[at]
    }

    pub(super) fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        let number = self.number;
        for by in By::ALL {
            self.tally(by, block.groups[by as usize])
                .opens(number, block, block.is_event);
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
            tally.live.subtract(block.bytes, block.requested);
        }
        if block.number < self.opened {
            if self.gone.len() >= GONE + 2 * self.largest {
                keep_largest(&mut self.gone, self.largest);
            }
            self.gone.push(*block);
        }
    }

    /// All groups of one way to group, by number.
    pub(super) fn by(&self, by: By) -> &[Tally] {
        &self.of[by as usize]
    }

    /// What was held at the peak.
    pub(super) fn held_at_peak(mut self, ledger: &Ledger<'_>) -> Held {
        for tally in self.of.iter_mut().flatten() {
            tally.remember(self.number);
        }
        let group = |by: By, (group, tally): (usize, &Tally)| Group {
            name: ledger.groups.name(by, group as u32).to_owned(),
            sum: tally.at_peak,
            oldest: None,
        };
        let there = ledger.live.values().filter(|block| block.number < self.opened);
        let blocks: Vec<Block> = there.chain(&self.gone).copied().collect();
        Held {
            time: self.time,
            sum: self.sum,
            parked_bytes: shown(self.parked),
            reserved_bytes: self.reserved.map(shown),
            largest: largest(blocks, self.largest, &ledger.groups),
            groups: By::ALL.map(|by| {
                let all = self.by(by).iter().enumerate();
                all.filter(|(_, tally)| tally.at_peak.blocks > 0)
                    .map(|one| group(by, one))
                    .collect()
            }),
        }
    }
}

/// All that lives.
pub(super) fn now(ledger: &Ledger<'_>) -> Sum {
    Sum {
        bytes: ledger.bytes,
        requested: ledger.requested,
        blocks: ledger.live.len() as u64,
    }
}

/// What is held now, of the blocks that are wanted.
pub(super) fn held_now(ledger: &Ledger<'_>, most: usize, wanted: impl Fn(&Block) -> bool) -> Held {
    let mut groups: [Vec<(Sum, u64)>; COUNT] = Default::default();
    let mut sum = Sum::default();
    let mut blocks = Vec::new();
    for block in ledger.live.values().filter(|block| wanted(block)) {
        sum.add(block.bytes, block.requested);
        for (of, group) in groups.iter_mut().zip(block.groups) {
            let at = group as usize;
            if of.len() <= at {
                of.resize(at + 1, (Sum::default(), u64::MAX));
            }
            of[at].0.add(block.bytes, block.requested);
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
        largest: largest(blocks, most, &ledger.groups),
        groups: By::ALL.map(|by| {
            let all = groups[by as usize].iter().enumerate();
            all.filter(|(_, (sum, _))| sum.blocks > 0)
                .map(|(group, (sum, oldest))| Group {
                    name: ledger.groups.name(by, group as u32).to_owned(),
                    sum: *sum,
                    oldest: Some(*oldest),
                })
                .collect()
        }),
    }
}

/// Largest first; of equals the oldest.
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
