//! The scope itself: entered by a thread, joined by others, and ended.

use super::usage::Usage;
use super::{Limits, LimitsError, counted};
use crate::ledger::LeakReport;
use crate::os;
use crate::registry::{Watching, sampled};
use crate::scope::{self, Entered};
use crate::tally::{self, Outcome};
use std::fmt;
use std::thread;

/// Places that are told apart.
const SITES: usize = 512;

/// What its thread does with memory while it lives, and what threads do that join it, is held against limits. Made by
/// [`Limits::enter`]; stays on its thread.
///
/// Dropped without [`end`](Self::end) or [`assert`](Self::assert) it says on standard error which limits were exceeded; but not
/// in a panic.
#[must_use = "what happens after it is dropped does not count"]
pub struct LimitsScope {
    limits: Limits,
    number: u32,
    /// None when it has ended.
    entered: Option<Entered>,
    _watching: Watching,
}

/// Has other threads take part in a scope. Cloned and sent freely.
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

/// While it lives, its thread takes part in a scope. Stays on that thread. It may outlive the scope: then nothing counts.
#[derive(Debug)]
#[must_use = "the thread takes part until it is dropped"]
pub struct JoinedScope(#[expect(dead_code, reason = "held")] Entered);

impl ScopeHandle {
    /// This thread takes part until the answer is dropped.
    pub fn join(&self) -> JoinedScope {
        JoinedScope(scope::enter(self.0))
    }
}

impl Limits {
    /// Measures what this thread does from here on, until the answer is [ended](LimitsScope::end). Scopes may be in each other:
    /// what happens in the inner one counts for the outer one too.
    ///
    /// On an executor that runs several tasks in one thread, do not hold one across an `await`: what the tasks do would count.
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
    /// [`LimitsError::Size`] where a limit is a text that is no size, [`LimitsError::Sampled`] where a pool keeps an account of
    /// some blocks only, [`LimitsError::TooMany`] where there are 1,023 scopes.
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
    /// What other threads take part by.
    #[must_use]
    pub fn handle(&self) -> ScopeHandle {
        ScopeHandle(self.number)
    }

    /// Ends it, and answers what it came to.
    ///
    /// # Errors
    /// [`LimitsError::Exceeded`] where it has not kept to a limit; [`LimitsError::Sampled`] as with [`Limits::enter`].
    pub fn end(self) -> Result<Usage, LimitsError> {
        let limits = self.limits.clone();
        limits.judge(self.measure()?).map_err(LimitsError::Exceeded)
    }

    /// The same for a test.
    ///
    /// # Panics
    /// Where [`end`](Self::end) answers an error, with its text.
    #[track_caller]
    pub fn assert(self) -> Usage {
        match self.end() {
            Ok(usage) => usage,
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends it, whatever it came to.
    pub(super) fn measure(mut self) -> Result<Usage, LimitsError> {
        let outcome = self.leave().ok_or(LimitsError::TooMany)?;
        self.limits.refuse_samples()?;
        Ok(usage(&self.limits, outcome))
    }

    /// Ends it and says nothing.
    pub(super) fn give_up(mut self) {
        drop(self.leave());
    }

    fn leave(&mut self) -> Option<Outcome> {
        drop(self.entered.take()?);
        tally::end(self.number)
    }
}

/// What a scope came to.
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
