//! Checks whether a piece of work frees the memory that it allocates.

use millpond_account::ledger::{LeakReport, Ledger, LedgerBuilder, Mark, Tracking};
use millpond_os as os;
use std::fmt;
use std::sync::Arc;

/// A check that reports the blocks that the creating thread has allocated since the creation of this value and that are still
/// live. [`finish`](Self::finish) returns the report, and dropping this value prints it on standard error. See
/// [`Pool::leak_check`](crate::Pool::leak_check).
#[must_use = "the check reports leaks when it is dropped"]
pub struct LeakCheck {
    ledger: Arc<Ledger>,
    mark: Mark,
    pool: Box<str>,
    finished: bool,
}

/// Returns the pool's ledger and keeps it alive from now on, even if it was started for an observer only.
fn relied_on(ledger: impl Fn() -> Option<Arc<Ledger>>) -> Option<Arc<Ledger>> {
    loop {
        let found = ledger()?;
        found.set_passing(false);
        // The ledger may have ended before it was marked.
        if ledger().is_some_and(|still| Arc::ptr_eq(&still, &found)) {
            return Some(found);
        }
    }
}

impl LeakCheck {
    /// Starts a check of a pool with this name and ledger. If the pool has no ledger, it starts one.
    #[doc(hidden)]
    pub fn of(
        pool: &str,
        ledger: impl Fn() -> Option<Arc<Ledger>>,
        track: impl FnOnce(LedgerBuilder),
    ) -> Self {
        let ledger = relied_on(&ledger).unwrap_or_else(|| {
            let account = Ledger::builder(Tracking::All).times(true).stacks(true);
            track(account);
            // `None` means that another thread has ended the ledger since. In that case there is nothing to report.
            ledger().unwrap_or_else(|| Arc::new(account.build()))
        });
        Self {
            mark: ledger.mark().on_this_thread(),
            ledger,
            pool: pool.into(),
            finished: false,
        }
    }

    /// Returns the blocks that are still live. Nothing is printed on standard error.
    pub fn finish(mut self) -> LeakReport {
        self.finished = true;
        self.report()
    }

    fn report(&self) -> LeakReport {
        self.ledger.leak_report_since(&self.mark)
    }
}

impl Drop for LeakCheck {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let report = self.report();
        if !report.is_empty() {
            let name = &self.pool;
            os::say(&format!(
                "millpond: at the end of a leak check, pool '{name}' had {report}\n"
            ));
        }
    }
}

impl fmt::Debug for LeakCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeakCheck")
            .field("pool", &self.pool)
            .field("mark", &self.mark)
            .finish_non_exhaustive()
    }
}
