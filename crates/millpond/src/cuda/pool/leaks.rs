//! Blocks that were not given back: told at the end of a piece of work, and of the process.

use super::DevicePool;
use super::shared::all_pools;
use crate::pool::{LeakCheck, tell_leaks};

impl DevicePool {
    /// Looks from here on for what this thread allocates and does not give back, as [`Pool::leak_check`](crate::Pool::leak_check). A
    /// pool that keeps no account begins one of all blocks, and keeps it until [`track`](Self::track) ends it.
    pub fn leak_check(&self) -> LeakCheck {
        LeakCheck::of(self.name(), || self.ledger(), |account| self.track(Some(account)))
    }
}

/// Reports the leaks of each pool that was built to report them. In the child of a process that uses CUDA there are none.
pub(crate) fn tell_leaks_at_exit() {
    for pool in all_pools() {
        if pool.parts.leak_report
            && let Some(ledger) = pool.watchers().ledger()
        {
            tell_leaks(&pool.parts.name, ledger);
        }
        // No pool is to end here, where the driver may have.
        std::mem::forget(pool);
    }
}
