//! An account of live blocks at rest: around a fork its locks are held by a thread that has borrowed nothing to hold them by.

use crate::ledger::{Ledger, Rest};
use std::sync::Arc;

/// An account whose locks are all held, until this is dropped. Invariant: `rest` is of `ledger`, and goes first, because it is declared
/// first.
pub(super) struct StillLedger {
    #[expect(dead_code, reason = "held")]
    rest: Rest<'static>,
    #[expect(dead_code, reason = "held")]
    ledger: Arc<Ledger>,
}

impl StillLedger {
    /// To be made after all locks of the pools are taken.
    pub(super) fn of(ledger: &Arc<Ledger>) -> Self {
        let ledger = Arc::clone(ledger);
        // SAFETY: by the invariant the account outlives all that is borrowed of it here, and it stays in its place when the `Arc` is
        // moved.
        let lasting: &'static Ledger = unsafe { &*Arc::as_ptr(&ledger) };
        Self {
            rest: lasting.rest(),
            ledger,
        }
    }
}
