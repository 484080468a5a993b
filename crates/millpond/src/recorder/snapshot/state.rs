//! What the pools of this process hold: block by block where an account tells or the placement knows, and in sums for the rest.

use super::room::{Held, Room, Sums};
use crate::event::PoolLabel;
use crate::ledger::{Ledger, Record};
use crate::registry::{LivePool, live_pools};
use crate::stats::PoolStats;
use std::sync::Arc;

/// Ranges of one pool that are told apart.
const RANGES: usize = 1 << 12;

/// Where a pool's blocks are known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// An account of all that was allocated since it began.
    Account,
    /// An account of one allocation in so many.
    Sampled(u64),
    /// Where they were placed: the larger ones of a host, all of a device.
    Placement,
    /// Their sums only.
    Sums,
}

/// One pool, as it was found.
pub(super) struct Seen {
    pub(super) label: PoolLabel,
    pub(super) stats: PoolStats,
    pub(super) known: Known,
    /// Its account, for the stacks.
    pub(super) ledger: Option<Arc<Ledger>>,
    /// What was found block by block.
    pub(super) found: Sums,
    /// First addresses and bytes of what it has from its source, the first so many.
    pub(super) ranges: Vec<(u64, u64)>,
    /// Bytes in other ranges.
    pub(super) elsewhere: u64,
}

impl Seen {
    /// What it holds beside the blocks that were found.
    pub(super) fn unlisted(&self) -> Sums {
        let live = self.stats.allocations.saturating_sub(self.stats.frees);
        Sums {
            requested: self.stats.requested.current.saturating_sub(self.found.requested),
            bytes: self.stats.allocated.current.saturating_sub(self.found.bytes),
            blocks: live.saturating_sub(self.found.blocks),
        }
    }

    fn range(&mut self, address: u64, bytes: u64) {
        if let Some((start, length)) = self.ranges.last_mut()
            && start.saturating_add(*length) == address
        {
            *length = length.saturating_add(bytes);
        } else if self.ranges.len() < RANGES {
            self.ranges.push((address, bytes));
        } else {
            self.elsewhere = self.elsewhere.saturating_add(bytes);
        }
    }
}

/// All pools, and their blocks.
pub(super) struct State {
    pub(super) pools: Vec<Seen>,
    pub(super) room: Room,
}

impl State {
    /// Looks at all pools, of which the `most` largest blocks are kept apart; none where there is no memory to do it in.
    ///
    /// Each pool is looked at for itself. At rest that is one moment; of a program at work blocks may come and go meanwhile.
    pub(super) fn look(most: usize) -> Option<Self> {
        let pools = live_pools();
        let count = |pool: &dyn LivePool| match pool.account() {
            Some(ledger) => ledger.blocks(),
            None => {
                let stats = pool.stats();
                stats.allocations.saturating_sub(stats.frees)
            }
        };
        let blocks = pools
            .iter()
            .map(|pool| count(&**pool))
            .fold(0, u64::saturating_add);
        let mut room = Room::new(blocks, most)?;
        let pools = pools.iter().enumerate();
        let seen = pools
            .map(|(at, pool)| look_at(&**pool, at as u32, &mut room))
            .collect();
        room.finish();
        Some(Self { pools: seen, room })
    }
}

fn look_at(pool: &dyn LivePool, at: u32, room: &mut Room) -> Seen {
    let ledger = pool.account();
    let mut found = Sums::default();
    let known = match &ledger {
        Some(ledger) => {
            ledger.each(|address, record| {
                let held = of_account(address, record, at);
                found.add(held.requested, held.bytes, 1);
                room.add(&held);
            });
            match ledger.weight() {
                1 => Known::Account,
                weight => Known::Sampled(weight),
            }
        }
        None => {
            let any = pool.each_placed(&mut |address, bytes, stream| {
                found.add(bytes, bytes, 1);
                room.add(&Held {
                    address,
                    requested: bytes,
                    bytes,
                    pool: at,
                    stream,
                    ..Held::default()
                });
            });
            if any { Known::Placement } else { Known::Sums }
        }
    };
    let mut seen = Seen {
        label: pool.label(),
        stats: pool.stats(),
        known,
        ledger,
        found,
        ranges: Vec::new(),
        elsewhere: 0,
    };
    pool.each_range(&mut |address, bytes| seen.range(address, bytes));
    seen
}

fn of_account(address: usize, record: &Record, pool: u32) -> Held {
    Held {
        address: address as u64,
        requested: record.requested as u64,
        bytes: record.bytes as u64,
        time: record.time.map(crate::time::Time::nanos),
        pool,
        stream: 0,
        thread: record.thread,
        tag: record.tag.number(),
        stack: record.stack_number(),
    }
}
