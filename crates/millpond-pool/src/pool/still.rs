//! A stopped ledger of live blocks. During a fork, the forking thread holds its locks without a borrow of the ledger.

use millpond_account::ledger::{Ledger, LedgerLocks};
use std::sync::Arc;

/// A ledger whose locks are all held until this is dropped. Invariant: `rest` borrows from `ledger`, and is dropped first,
/// because it is declared first.
pub(super) struct StillLedger {
    #[expect(dead_code, reason = "held")]
    rest: LedgerLocks<'static>,
    #[expect(dead_code, reason = "held")]
    ledger: Arc<Ledger>,
}

impl StillLedger {
    /// Takes all locks of a ledger. Call this after all locks of the pools are taken.
    pub(super) fn of(ledger: &Arc<Ledger>) -> Self {
        let ledger = Arc::clone(ledger);
        // SAFETY: by the invariant the ledger outlives everything that is borrowed from it here, and it stays in its place
        // when the `Arc` is moved.
        let lasting: &'static Ledger = unsafe { &*Arc::as_ptr(&ledger) };
        Self {
            rest: lasting.rest(),
            ledger,
        }
    }
}
