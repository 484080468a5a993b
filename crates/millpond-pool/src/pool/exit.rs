//! Reports the blocks that are live when the process ends.
//!
//! The report is a function that the system calls at `exit`, not a destructor: pools in static variables are never dropped,
//! and other threads may still be running. It reads ledgers and writes to standard error. It ends no pool, because the
//! driver of a device may have ended already.

use millpond_account::registry::live_pools;
use millpond_os as os;
use millpond_os::reentrancy::quiet;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

/// Registers the report for the end of this process.
pub fn report_leaks_at_exit() {
    // This is not a `Once`: a child of a fork would wait forever for a thread that was initialising it.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // If the system has no room for the function, nothing is reported.
        os::at_exit(report);
    }
}

extern "C" fn report() {
    let told = catch_unwind(|| {
        // The names of functions take tens of megabytes of tables. They are not the program's memory, so no pool that is reported or
        // recorded serves them.
        let _quiet = quiet();
        for pool in live_pools() {
            if pool.reports_leaks()
                && let Some(ledger) = pool.account()
            {
                let report = ledger.leak_report();
                if !report.is_empty() {
                    let name = pool.label().name;
                    os::say(&format!(
                        "millpond: when the process ended, pool '{name}' had {report}\n"
                    ));
                }
            }
            std::mem::forget(pool);
        }
    });
    // After a panic, nothing more is reported. The payload of a panic is not dropped, because its drop may panic.
    std::mem::forget(told);
}
