//! What is still held when the process ends.
//!
//! A function that the system calls at `exit`, not a destructor: pools in statics are never dropped, and other threads may
//! still be at work. It reads accounts and writes to standard error; no pool is closed, and none is the worse for it.

use super::fork;
use super::heap::Heap;
use crate::os;
use std::panic::catch_unwind;
use std::process;
use std::sync::Once;
use std::sync::atomic::Ordering;

impl Heap {
    /// Tells, when this process ends, what is still held of the pool. A child of a fork has blocks that its parent holds as
    /// well, and tells of none.
    pub(super) fn report_at_exit(&self) {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // Where there is no room for it nothing is told.
            os::at_exit(report);
        });
        self.reports_in.store(process::id(), Ordering::Relaxed);
    }

    fn tell_at_exit(&self) {
        if let Some(ledger) = self.ledger() {
            let report = ledger.leak_report();
            if !report.is_empty() {
                let name = &self.name;
                os::say(&format!(
                    "millpond: when the process ended, pool '{name}' had {report}\n"
                ));
            }
        }
    }
}

extern "C" fn report() {
    let told = catch_unwind(|| {
        let here = process::id();
        for heap in fork::all() {
            if heap.reports_in.load(Ordering::Relaxed) == here {
                heap.tell_at_exit();
            }
        }
    });
    // Nothing is told then; what a panic carries may panic when it is dropped.
    std::mem::forget(told);
}
