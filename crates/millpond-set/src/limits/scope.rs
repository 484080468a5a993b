//! The scope: it is entered by a thread, joined by others, and ended.

use super::usage::Usage;
use super::{Limits, LimitsError, counted};
use millpond_account::ledger::LeakReport;
use millpond_account::registry::{Watching, sampled};
use millpond_account::scope::{self, Entered};
use millpond_account::tally::{self, Outcome};
use millpond_os as os;
use std::fmt;
use std::thread;

/// The number of places that are distinguished.
const SITES: usize = 512;

/// A scope whose memory use is compared with limits. It counts the use of its thread while it exists, and the use of the threads
/// that join it. [`Limits::enter`] creates it. It cannot be sent to another thread.
///
/// If it is dropped without [`end`](Self::end) or [`assert`](Self::assert), it reports exceeded limits on standard error, except
/// during a panic.
#[must_use = "memory use is counted until it is dropped"]
pub struct LimitsScope {
    limits: Limits,
    number: u32,
    /// `None` after the scope has ended.
    entered: Option<Entered>,
    _watching: Watching,
}

/// A handle by which other threads join a scope. It can be cloned and sent.
///
/// ```
/// use millpond::limits::Limits;
///
/// let scope = Limits::new().allocations(2).enter()?;
/// let handle = scope.handle();
/// std::thread::scope(|threads| {
///     threads.spawn(|| {
///         let _joined = handle.join();
///         drop(millpond::alloc_zeroed::<f32>(1000));
///     });
/// });
/// assert_eq!(scope.end()?.allocations, 1);
/// # Ok::<(), millpond::limits::LimitsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ScopeHandle(u32);

/// A guard by which its thread takes part in a scope. It cannot be sent to another thread. It may outlive the scope, and then
/// nothing is counted.
#[derive(Debug)]
#[must_use = "the thread takes part until it is dropped"]
pub struct JoinedScope(#[expect(dead_code, reason = "held")] Entered);

impl ScopeHandle {
    /// Makes this thread take part until the result is dropped.
    pub fn join(&self) -> JoinedScope {
        JoinedScope(scope::enter(self.0))
    }
}

impl Limits {
    /// Measures this thread from now on, until the result is [ended](LimitsScope::end). Scopes may be nested. The use of the inner
    /// one also counts for the outer one.
    ///
    /// On an executor that runs several tasks on one thread, do not hold a scope across an `await`, because the use of the other
    /// tasks would be counted.
    ///
    /// ```
    /// use millpond::limits::Limits;
    ///
    /// let scope = Limits::new().peak("1 MiB").leaked(0).enter()?;
    /// drop(millpond::alloc_zeroed::<f32>(1024)?);
    /// let usage = scope.end()?;
    /// assert_eq!((usage.peak, usage.allocations, usage.temporary), (4096, 1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`LimitsError::Size`] if a limit is a text that is not a size, [`LimitsError::Sampled`] if a pool has an account of
    /// only some blocks, and [`LimitsError::TooMany`] if there are 1,023 scopes.
    pub fn enter(&self) -> Result<LimitsScope, LimitsError> {
        if let Some(wrong) = &self.wrong {
            return Err(LimitsError::Size(wrong.clone()));
        }
        let watching = Watching::begin();
        self.refuse_samples()?;
        let number = tally::begin(scope::current(), &self.pools, SITES).ok_or(LimitsError::TooMany)?;
        Ok(LimitsScope {
            limits: self.clone(),
            number,
            entered: Some(scope::enter(number)),
            _watching: watching,
        })
    }

    fn refuse_samples(&self) -> Result<(), LimitsError> {
        let pools = sampled(&self.pools);
        if pools.is_empty() {
            return Ok(());
        }
        Err(LimitsError::Sampled { pools })
    }
}

impl LimitsScope {
    /// Returns a handle for other threads.
    #[must_use]
    pub fn handle(&self) -> ScopeHandle {
        ScopeHandle(self.number)
    }

    /// Ends the scope and returns its measurements.
    ///
    /// # Errors
    /// Returns [`LimitsError::Exceeded`] if a limit was exceeded, and [`LimitsError::Sampled`] as [`Limits::enter`] does.
    pub fn end(self) -> Result<Usage, LimitsError> {
        let limits = self.limits.clone();
        limits.judge(self.measure()?).map_err(LimitsError::Exceeded)
    }

    /// Ends the scope in a test.
    ///
    /// # Panics
    /// Panics with the error's text if [`end`](Self::end) returns an error.
    #[track_caller]
    pub fn assert(self) -> Usage {
        match self.end() {
            Ok(usage) => usage,
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends the scope without comparing its use with the limits.
    pub(super) fn measure(mut self) -> Result<Usage, LimitsError> {
        let outcome = self.leave().ok_or(LimitsError::TooMany)?;
        self.limits.refuse_samples()?;
        Ok(usage(&self.limits, outcome))
    }

    /// Ends the scope without a report.
    pub(super) fn give_up(mut self) {
        drop(self.leave());
    }

    fn leave(&mut self) -> Option<Outcome> {
        drop(self.entered.take()?);
        tally::end(self.number)
    }
}

/// Returns the measurements of a scope.
fn usage(limits: &Limits, outcome: Outcome) -> Usage {
    let reports = outcome.accounts.iter();
    let reports = reports.map(|account| account.leak_report_of(&outcome.family));
    let leaked = LeakReport::all(reports.chain([outcome.elsewhere]));
    let figures = outcome.figures;
    Usage {
        peak: figures.peak.bytes,
        total: figures.total.bytes,
        allocations: figures.total.blocks,
        temporary: figures.temporary,
        leaked: counted(limits, leaked),
        sites: outcome.sites,
    }
}

impl Drop for LimitsScope {
    fn drop(&mut self) {
        let Some(outcome) = self.leave() else { return };
        if thread::panicking() {
            return;
        }
        if let Err(exceeded) = self.limits.judge(usage(&self.limits, outcome)) {
            os::say(&format!("millpond: {exceeded}\n"));
        }
    }
}

impl fmt::Debug for LimitsScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitsScope")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
