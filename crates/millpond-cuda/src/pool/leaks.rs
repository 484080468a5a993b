//! Reports of leaked blocks at the end of a scope and at the end of the process.

use super::DevicePool;
use super::shared::all_pools;
use millpond_os as os;
use millpond_pool::pool::{LeakCheck, tell_leaks};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

impl DevicePool {
    /// Begins a check for blocks that this thread allocates and does not free, like [`Pool::leak_check`](millpond_pool::Pool::leak_check). If the
    /// pool keeps no account, this begins one of all blocks. That account is kept until [`track`](Self::track) ends it.
    pub fn leak_check(&self) -> LeakCheck {
        LeakCheck::of(self.name(), || self.ledger(), |account| self.track(Some(account)))
    }
}

/// Registers an exit handler that reports the leaks of the pools with a leak report.
pub(super) fn watch_exit() {
    // This is no `Once`, because the child of a fork would wait forever for a thread that was in it.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // If there is no memory for the registration, nothing is reported.
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
