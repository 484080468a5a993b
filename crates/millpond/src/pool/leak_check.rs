//! Whether a piece of work gives back what it takes.

use super::Pool;
use crate::ledger::{LeakReport, Ledger, LedgerBuilder, Mark, Tracking};
use crate::os;
use std::fmt;
use std::sync::Arc;

/// Tells what was allocated since it was made, on the thread that made it, and is still held: as a value by
/// [`finish`](Self::finish), to standard error when it is dropped. See [`Pool::leak_check`].
#[must_use = "it tells when it is dropped"]
pub struct LeakCheck {
    ledger: Arc<Ledger>,
    mark: Mark,
    pool: Box<str>,
    finished: bool,
}

impl Pool {
    /// Looks from here on for what this thread allocates and does not give back. A pool that keeps no account begins one of
    /// all blocks, with stacks where the feature is there, and keeps it until [`track`](Self::track) ends it.
    ///
    /// ```
    /// let pool = millpond::Pool::host()?;
    /// let check = pool.leak_check();
    /// let kept = pool.alloc_zeroed::<f32>(1000)?;
    /// drop(pool.alloc_zeroed::<f32>(1000)?);
    ///
    /// let report = check.finish();
    /// assert_eq!((report.blocks, report.groups[0].largest), (1, 4096));
    /// # drop(kept);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leak_check(&self) -> LeakCheck {
        LeakCheck::of(self.name(), || self.ledger(), |account| self.track(Some(account)))
    }
}

/// A pool's account, which stays from here on though it was begun for somebody who counts.
fn relied_on(ledger: impl Fn() -> Option<Arc<Ledger>>) -> Option<Arc<Ledger>> {
    loop {
        let found = ledger()?;
        found.set_passing(false);
        // It may have ended before that was said.
        if ledger().is_some_and(|still| Arc::ptr_eq(&still, &found)) {
            return Some(found);
        }
    }
}

impl LeakCheck {
    /// Of a pool of this name and account, from here on. Where it keeps none it begins one.
    pub(crate) fn of(
        pool: &str,
        ledger: impl Fn() -> Option<Arc<Ledger>>,
        track: impl FnOnce(LedgerBuilder),
    ) -> Self {
        let ledger = relied_on(&ledger).unwrap_or_else(|| {
            let account = Ledger::builder(Tracking::All).times(true).stacks(true);
            track(account);
            // None where another thread has ended it since: then there is nothing to tell.
            ledger().unwrap_or_else(|| Arc::new(account.build()))
        });
        Self {
            mark: ledger.mark().on_this_thread(),
            ledger,
            pool: pool.into(),
            finished: false,
        }
    }

    /// What is still held. Nothing is written to standard error.
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
