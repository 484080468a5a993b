//! What is still held when the process ends.
//!
//! A function that the system calls at `exit`, not a destructor: pools in statics are never dropped, and other threads may
//! still be at work. It reads accounts and writes to standard error; no pool is closed, and none is the worse for it.

use super::fork;
use super::heap::Heap;
use crate::ledger::Ledger;
use crate::os;
use std::panic::catch_unwind;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

/// Has the end of this process told of.
fn watch_exit() {
    // No `Once`: a child of a fork would wait for ever for a thread that was at it.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // Where there is no room for it nothing is told.
        os::at_exit(report);
    }
}

/// Tells what is still held of a pool.
pub(crate) fn tell_leaks(name: &str, ledger: &Ledger) {
    let report = ledger.leak_report();
    if !report.is_empty() {
        os::say(&format!(
            "millpond: when the process ended, pool '{name}' had {report}\n"
        ));
    }
}

impl Heap {
    /// Tells, when this process ends, what is still held of the pool. A child of a fork has blocks that its parent holds as
    /// well, and tells of none.
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
    // Nothing is told then; what a panic carries may panic when it is dropped.
    std::mem::forget(told);
}
