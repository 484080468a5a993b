//! Finds pinned memory that is allocated and freed repeatedly. Pinning and unpinning pages are among the
//! slowest calls of a driver.

use super::super::shown;
use super::{Finding, Lint, Map, WindowEnd, size, who_pools};
use crate::analysis::ledger::{Block, Ledger, Watch};
use millpond_trace::recording::{Kind, Row};

/// The fewest times that memory must have been pinned.
const LEAST_TIMES: u64 = 16;
/// The fewest bytes pinned in all, as a multiple of the most that was pinned at once.
const LEAST_TURNS: u128 = 4;

#[derive(Default)]
pub(super) struct Pinned {
    pools: Map<u32, Turns>,
}

#[derive(Clone, Copy, Default)]
struct Turns {
    /// Memory taken from the source, if it is recorded: times, bytes, and the most at once.
    taken: (u64, u128, u128),
    /// Memory allocated by callers, in the same form.
    handed: (u64, u128, u128),
}

impl Turns {
    /// Returns the operations that pinned memory. A pool pins when it takes memory from its source. Without a
    /// pool each allocation pins.
    fn pinned(&self) -> (u64, u128, u128) {
        if self.taken.0 > 0 { self.taken } else { self.handed }
    }
}

impl Watch for Pinned {
    fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        if !block.is_event || !ledger.groups.is_pinned(block.pool) {
            return;
        }
        let (times, bytes, most) = &mut self.pools.entry(block.pool).or_default().handed;
        *times += 1;
        *bytes += u128::from(block.bytes);
        let now = ledger.pools.get(&block.pool).map_or(0, |pool| pool.bytes);
        *most = (*most).max(now);
    }

    fn row(&mut self, ledger: &Ledger<'_>, row: &Row, _: Option<&str>) {
        if row.kind != Kind::Reserve || !ledger.groups.is_pinned(row.pool) {
            return;
        }
        let (times, bytes, most) = &mut self.pools.entry(row.pool).or_default().taken;
        *times += 1;
        *bytes += u128::from(row.bytes);
        let now = ledger.pools.get(&row.pool).and_then(|pool| pool.reserved);
        *most = (*most).max(now.unwrap_or(0));
    }
}

impl Lint for Pinned {
    fn told(&self, seen: &WindowEnd<'_>) -> Option<Finding> {
        // A pool that reports its reserve only as a gauge keeps the memory that it has pinned.
        let pools_memory = |number: &u32, turns: &Turns| {
            let gauged = seen
                .ledger
                .pools
                .get(number)
                .is_some_and(|pool| pool.reserved.is_some());
            turns.taken.0 == 0 && gauged
        };
        let churned = |turns: &Turns| {
            let (times, bytes, most) = turns.pinned();
            times >= LEAST_TIMES && bytes >= LEAST_TURNS * most.max(1)
        };
        let churning = self
            .pools
            .iter()
            .filter(|(number, turns)| churned(turns) && !pools_memory(number, turns));
        let churning: Vec<(u32, (u64, u128, u128))> = churning
            .map(|(number, turns)| (*number, turns.pinned()))
            .collect();
        if churning.is_empty() {
            return None;
        }
        let times: u64 = churning.iter().map(|(_, (times, ..))| times).sum();
        let bytes: u128 = churning.iter().map(|(_, (_, bytes, _))| bytes).sum();
        let most: u128 = churning.iter().map(|(.., (.., most))| most).sum();
        let pools = churning
            .iter()
            .map(|(number, (times, bytes, _))| (*number, *bytes, *times));
        Some(Finding {
            name: "pinned churn",
            bytes: shown(most),
            evidence: format!(
                "memory is pinned {times} times, {} in total, but never more than {} at once",
                size(bytes),
                size(most),
            ),
            when: None,
            who: who_pools(seen.history, pools),
            remedy: "Keep pinned memory in a pool that does not return it between uses, or stage through slots that stay pinned.",
        })
    }
}
