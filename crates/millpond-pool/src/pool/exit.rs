//! Reports the blocks that are live when the process ends.
//!
//! The report is a function that the system calls at `exit`, not a destructor: pools in static variables are never dropped,
//! and other threads may still be running. It reads ledgers and writes to standard error. It closes no pool.

use super::fork;
use super::heap::Heap;
use millpond_account::ledger::Ledger;
use millpond_os as os;
use std::panic::catch_unwind;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

/// Registers the report for the end of this process.
fn watch_exit() {
    // This is not a `Once`: a child of a fork would wait forever for a thread that was initialising it.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // If the system has no room for the function, nothing is reported.
        os::at_exit(report);
    }
}

/// Reports the live blocks of a pool.
pub fn tell_leaks(name: &str, ledger: &Ledger) {
    let report = ledger.leak_report();
    if !report.is_empty() {
        os::say(&format!(
            "millpond: when the process ended, pool '{name}' had {report}\n"
        ));
    }
}

impl Heap {
    /// Reports the pool's live blocks when this process ends. The child of a fork shares its live blocks with the parent,
    /// and reports none.
    pub(super) fn report_at_exit(&self) {
        watch_exit();
        self.reports_in.store(process::id(), Ordering::Relaxed);
    }
}

extern "C" fn report() {
    let told = catch_unwind(|| {
        let here = process::id();
        for heap in fork::all() {
            if heap.reports_in.load(Ordering::Relaxed) == here
                && let Some(ledger) = heap.ledger()
            {
                tell_leaks(&heap.name, &ledger);
            }
        }
    });
    // In that case nothing is reported. The payload of a panic may panic when it is dropped.
    std::mem::forget(told);
}
