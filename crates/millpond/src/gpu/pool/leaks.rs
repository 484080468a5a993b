//! Blocks that were not given back: told at the end of a piece of work, and of the process.

use super::DevicePool;
use super::shared::all_pools;
use crate::os;
use crate::pool::{LeakCheck, tell_leaks};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

impl DevicePool {
    /// Looks from here on for what this thread allocates and does not give back, as [`Pool::leak_check`](crate::Pool::leak_check). A
    /// pool that keeps no account begins one of all blocks, and keeps it until [`track`](Self::track) ends it.
    pub fn leak_check(&self) -> LeakCheck {
        LeakCheck::of(self.name(), || self.ledger(), |account| self.track(Some(account)))
    }
}

/// Has the leaks of the pools that were built to report them reported when the process ends.
pub(super) fn watch_exit() {
    // No `Once`: the child of a fork would wait forever for a thread that was in it.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // If there is no memory for it, nothing is reported.
        os::at_exit(report);
    }
}

extern "C" fn report() {
    let told = catch_unwind(|| {
        for pool in all_pools() {
            if pool.parts.leak_report
                && let Some(ledger) = pool.watchers().ledger()
            {
                tell_leaks(&pool.parts.name, ledger);
            }
            // No pool may end here, because the driver may have ended.
            std::mem::forget(pool);
        }
    });
    // Nothing is reported after a panic. The payload of a panic may panic when it is dropped.
    std::mem::forget(told);
}
