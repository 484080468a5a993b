//! Finds memory that a pool keeps and never uses again.

use super::super::shown;
use super::{Finding, Lint, Map, WindowEnd, size, who_pools};
use crate::analysis::ledger::{Block, Ledger, Watch};
use millpond_trace::recording::Row;

/// The fewest unused bytes that are reported.
const LEAST_BYTES: u128 = 4 << 20;
/// The smallest reported share: one part in this many of the pool's memory at the end.
const ONE_IN: u128 = 10;
/// The fewest allocations of the pool in that time. Without allocations, the memory could not have been used.
const LEAST_ALLOCATIONS: u64 = 100;

#[derive(Default)]
pub(super) struct Unused {
    pools: Map<u32, Stretch>,
}

/// The time since the pool had the most memory.
#[derive(Clone, Copy, Default)]
struct Stretch {
    most: u128,
    /// The minimum of the pool's unused memory since then.
    unused: u128,
    since: u64,
    allocations: u64,
}

impl Unused {
    fn look(&mut self, ledger: &Ledger<'_>, pool: u32) {
        let Some(state) = ledger.pools.get(&pool) else {
            return;
        };
        let Some(reserved) = state.reserved else { return };
        let free = reserved.saturating_sub(state.bytes + state.parked);
        let stretch = self.pools.entry(pool).or_default();
        if reserved > stretch.most {
            *stretch = Stretch {
                most: reserved,
                unused: free,
                since: ledger.time,
                allocations: 0,
            };
        }
        stretch.unused = stretch.unused.min(free);
    }
}

impl Watch for Unused {
    fn begins(&mut self, ledger: &Ledger<'_>) {
        let known: Vec<u32> = ledger.pools.keys().copied().collect();
        for pool in known {
            self.look(ledger, pool);
        }
    }

    fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        self.look(ledger, block.pool);
        if let Some(stretch) = self.pools.get_mut(&block.pool) {
            stretch.allocations += 1;
        }
    }

    fn row(&mut self, ledger: &Ledger<'_>, row: &Row, _: Option<&str>) {
        self.look(ledger, row.pool);
    }
}

impl Lint for Unused {
    fn told(&self, seen: &WindowEnd<'_>) -> Option<Finding> {
        let kept = |(number, stretch): (&u32, &Stretch)| {
            let reserved = seen.ledger.pools.get(number)?.reserved?;
            let matters = stretch.unused >= LEAST_BYTES && stretch.unused * ONE_IN >= reserved;
            (matters && stretch.allocations >= LEAST_ALLOCATIONS).then_some((*number, *stretch))
        };
        let kept: Vec<(u32, Stretch)> = self.pools.iter().filter_map(kept).collect();
        let unused: u128 = kept.iter().map(|(_, stretch)| stretch.unused).sum();
        let allocations: u64 = kept.iter().map(|(_, stretch)| stretch.allocations).sum();
        let since = kept.iter().map(|(_, stretch)| stretch.since).min()?;
        let pools = kept.iter().map(|(number, stretch)| (*number, stretch.unused, 0));
        Some(Finding {
            name: "reserve never used again",
            bytes: shown(unused),
            evidence: format!(
                "{} stay reserved after the peak of reserved memory, and none of the {allocations} allocations since then used them",
                size(unused),
            ),
            when: Some((since, seen.summary.to)),
            who: who_pools(seen.history, pools),
            remedy: "Trim the pool after the program has warmed up, or let it return memory by itself (decay, trim-every).",
        })
    }
}
