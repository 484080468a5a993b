//! The contents of the pools of this process: individual blocks if an account or the placement lists them, and sums for
//! the rest.

use super::room::{Held, Room, Sums};
use millpond_account::event::PoolLabel;
use millpond_account::ledger::{Ledger, Record};
use millpond_account::registry::{LivePool, live_pools};
use millpond_account::stats::PoolStats;
use std::sync::Arc;

/// The maximum number of ranges of one pool that are listed.
const RANGES: usize = 1 << 12;

/// The source of the list of a pool's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// An account of all allocations since it began.
    Account,
    /// An account that samples one allocation in the given number.
    Sampled(u64),
    /// The placement, which lists the larger blocks of a host pool and all blocks of a device pool.
    Placement,
    /// Only the sums are known.
    Sums,
}

/// The contents of one pool.
pub(super) struct Seen {
    pub(super) label: PoolLabel,
    pub(super) stats: PoolStats,
    pub(super) known: Known,
    /// The account, from which stacks are read.
    pub(super) ledger: Option<Arc<Ledger>>,
    /// The sums of the listed blocks.
    pub(super) found: Sums,
    /// The start addresses and bytes of the first ranges that the pool has from its source.
    pub(super) ranges: Vec<(u64, u64)>,
    /// The bytes of the other ranges.
    pub(super) elsewhere: u64,
}

impl Seen {
    /// Returns the sums of the blocks that are not listed.
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

/// All pools and their blocks.
pub(super) struct State {
    pub(super) pools: Vec<Seen>,
    pub(super) room: Room,
}

impl State {
    /// Reads all pools and keeps the `most` largest blocks. Returns `None` if memory is short.
    ///
    /// Pools are read one after the other. If the program is idle, the result is one moment. Otherwise blocks may be
    /// allocated and freed in between.
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
        time: record.time.map(millpond_os::time::Time::nanos),
        pool,
        stream: 0,
        thread: record.thread,
        tag: record.tag.number(),
        stack: record.stack_number(),
    }
}
