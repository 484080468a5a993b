//! Limits for tests: the maximum memory that a piece of work may hold, leak or allocate.
//!
//! A *scope* consists of the thread that enters it and the threads that [join](ScopeHandle::join) it. It counts their operations
//! in all pools of host and device memory of the process, or in selected pools. A block counts for the scope in which it was
//! allocated, regardless of the thread that frees it. So concurrent tests do not affect each other.
//!
//! ```
//! use millpond::Pool;
//! use millpond::limits::Limits;
//!
//! let pool = Pool::host()?;
//! let limits = Limits::new().peak("2 MiB").leaked(0).allocations(10).warm_up(1).runs(3);
//! let measured = limits.check(|| {
//!     let _scratch = millpond::tag("scratch");
//!     drop(pool.alloc_zeroed::<u8>(1 << 20));
//! })?;
//! assert_eq!((measured.runs.len(), measured.runs[0].peak, measured.runs[0].allocations), (3, 1 << 20, 1));
//!
//! let too_much = limits.check(|| {
//!     let _weights = millpond::tag("weights");
//!     drop(pool.alloc_zeroed::<u8>(3 << 20));
//! });
//! let text = too_much.unwrap_err().to_string();
//! assert!(text.contains("peak: 3.00 MiB, and the limit is 2.00 MiB"), "{text}");
//! assert!(text.contains("3.00 MiB in 1 block: weights"), "{text}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature `derive`, limits can be written as an attribute of a test:
//!
#![cfg_attr(feature = "derive", doc = "```")]
#![cfg_attr(not(feature = "derive"), doc = "```ignore")]
//! #[millpond::limits(peak = "2 MiB", leaked = 0, warm_up = 1, runs = 3)]
//! fn a_step() -> Result<(), millpond::AllocError> {
//!     drop(millpond::alloc_zeroed::<f32>(1000)?);
//!     Ok(())
//! }
//! # a_step().unwrap();
//! ```
//!
//! # What is counted
//!
//! | limit | counts |
//! |---|---|
//! | [`peak`](Limits::peak) | bytes that are live at the same time |
//! | [`total`](Limits::total) | bytes of all blocks together |
//! | [`leaked`](Limits::leaked) | bytes that are live at the end; [`leaked_at_one_place`](Limits::leaked_at_one_place): of one tag and one place |
//! | [`allocations`](Limits::allocations) | allocated blocks |
//! | [`temporary`](Limits::temporary) | blocks that were freed by the next memory operation of their thread |
//!
//! - Bytes are those of blocks, which are slightly larger than requested, as in all reports of live blocks. They depend only on
//!   the request, so the figures are the same on every run.
//! - The figures come from the [account](millpond_pool::Pool::ledger) of live blocks. A pool without an account gets one while a scope
//!   exists, with stacks if the feature `stacks` is enabled. An account that contains only some blocks cannot be used
//!   ([`LimitsError::Sampled`]). A scope's figures are wrong if the account is [replaced](millpond_pool::Pool::track) in the meantime.
//! - If the program's allocator is a [`GlobalPool`](millpond_pool::GlobalPool), all allocations of the scope count.
//! - Memory outside pools does not count: [`Unpooled`](millpond_pool::Unpooled), `GlobalPool`'s arena, and memory that libraries allocate.
//! - Threads do not hold blocks longer because of a scope. Free memory that a pool keeps for later does not count.
//! - There are at most 1,023 scopes at one time. Each distinguishes 512 places. All other places are counted together.

mod error;
mod scope;
mod size;
mod usage;

pub use error::{Exceeded, LimitsError, LimitsExceeded};
pub use millpond_account::tally::Site;
pub use scope::{JoinedScope, LimitsScope, ScopeHandle};
pub use size::Size;
pub use usage::{Measured, Usage};

use millpond_account::ledger::{LeakGroup, LeakReport};
use millpond_engine::ParseSizeError;
use millpond_pool::pool::Pool;
use std::fmt;
use std::sync::Arc;

/// Selects the groups of blocks that do not count as leaked.
type Filter = Arc<dyn Fn(&LeakGroup) -> bool + Send + Sync>;

/// Limits on the memory use of a piece of work. Quantities without a limit are only measured.
#[derive(Clone, Default)]
#[must_use = "limits have no effect until memory use is checked against them"]
pub struct Limits {
    most: Most,
    /// The ids of the pools that count. If it is empty, all pools count.
    pools: Vec<u64>,
    ignored: Vec<Filter>,
    warm_up: u32,
    /// The number of measured runs after the first one.
    more_runs: u32,
    /// The error of the first text that is not a size.
    wrong: Option<ParseSizeError>,
}

/// The limits, or `None` for unlimited quantities.
#[derive(Clone, Copy, Debug, Default)]
struct Most {
    peak: Option<u64>,
    total: Option<u64>,
    leaked: Option<u64>,
    leaked_at_one_place: Option<u64>,
    allocations: Option<u64>,
    temporary: Option<u64>,
}

impl Limits {
    /// Returns limits that limit nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the bytes that are live at the same time, as a number or a text such as `"24 MiB"`.
    pub fn peak(mut self, bytes: impl Into<Size>) -> Self {
        self.most.peak = self.read(bytes.into());
        self
    }

    /// Limits the bytes of all blocks together, live or not.
    pub fn total(mut self, bytes: impl Into<Size>) -> Self {
        self.most.total = self.read(bytes.into());
        self
    }

    /// Limits the bytes that are live at the end. The work's return value is still live then. Blocks that were
    /// [leaked](millpond_pool::Buffer::leak) on purpose do not count.
    pub fn leaked(mut self, bytes: impl Into<Size>) -> Self {
        self.most.leaked = self.read(bytes.into());
        self
    }

    /// Limits the bytes that are live at the end and were allocated with one tag and one stack. Without the feature `stacks`,
    /// blocks are only distinguished by their tags.
    pub fn leaked_at_one_place(mut self, bytes: impl Into<Size>) -> Self {
        self.most.leaked_at_one_place = self.read(bytes.into());
        self
    }

    /// Limits the number of allocated blocks.
    pub fn allocations(mut self, blocks: u64) -> Self {
        self.most.allocations = Some(blocks);
        self
    }

    /// Limits the number of temporary blocks, which are freed by the next memory operation of their thread. Many of them
    /// indicate a loop that could reuse its memory.
    pub fn temporary(mut self, blocks: u64) -> Self {
        self.most.temporary = Some(blocks);
        self
    }

    /// Counts only this pool, and other pools that are added.
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.pools.push(pool.id());
        self
    }

    /// Counts only this pool of device memory, and other pools that are added.
    #[cfg(feature = "cuda")]
    pub fn device_pool(mut self, pool: &millpond_cuda::DevicePool) -> Self {
        self.pools.push(pool.id());
        self
    }

    /// Ignores the groups of live blocks for which `holder` returns true. They do not count as leaked.
    ///
    /// ```
    /// use millpond::Tag;
    /// use millpond::limits::Limits;
    ///
    /// let cache = Tag::new("cache");
    /// let limits = Limits::new().leaked(0).ignore(move |group| group.tag == cache);
    /// let mut kept = None;
    /// limits.check(|| {
    ///     let _scope = cache.enter();
    ///     kept = millpond::alloc_zeroed::<u8>(4096).ok();
    /// })?;
    /// # Ok::<(), millpond::limits::LimitsError>(())
    /// ```
    pub fn ignore(mut self, holder: impl Fn(&LeakGroup) -> bool + Send + Sync + 'static) -> Self {
        self.ignored.push(Arc::new(holder));
        self
    }

    /// Sets the number of runs before the measurement, for example to fill caches. Blocks that these runs leave are reported
    /// separately. It applies to [`check`](Self::check), [`assert`](Self::assert) and [`assert_ok`](Self::assert_ok).
    pub fn warm_up(mut self, runs: u32) -> Self {
        self.warm_up = runs;
        self
    }

    /// Sets the number of measured runs. The default is 1. The limits apply to each run.
    pub fn runs(mut self, runs: u32) -> Self {
        self.more_runs = runs.saturating_sub(1);
        self
    }

    fn read(&mut self, size: Size) -> Option<u64> {
        match size.bytes() {
            Ok(bytes) => Some(bytes),
            Err(wrong) => {
                self.wrong.get_or_insert(wrong);
                None
            }
        }
    }

    /// Runs the work as often as configured and returns the measurements. The work's return value is still held when its run is
    /// measured, and is dropped afterwards.
    ///
    /// # Errors
    /// Returns [`LimitsError::Exceeded`], which lists the holders of memory, if a run exceeds a limit. No further run is made then.
    /// Returns another error if the use cannot be measured, usually before the work runs.
    pub fn check<R>(&self, work: impl FnMut() -> R) -> Result<Measured, LimitsError> {
        self.run(work, |_| true).map(|(_, measured)| measured)
    }

    /// Runs the work in a test and returns the result of the last run.
    ///
    /// # Panics
    /// Panics with the error's text if [`check`](Self::check) would return an error.
    #[track_caller]
    pub fn assert<R>(&self, work: impl FnMut() -> R) -> R {
        match self.run(work, |_| true) {
            Ok((answer, _)) => answer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs work that can fail in a test, and returns the result of the last run. If a run fails, no further run is made, and the
    /// limits of this run are not checked.
    ///
    /// # Errors
    /// Returns the first error of the work.
    ///
    /// # Panics
    /// Panics with the error's text if [`check`](Self::check) would return an error.
    #[track_caller]
    pub fn assert_ok<R, E>(&self, work: impl FnMut() -> Result<R, E>) -> Result<R, E> {
        match self.run(work, Result::is_ok) {
            Ok((answer, _)) => answer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Like [`assert`](Self::assert), for work that runs once. The limits are checked only if `passes` returns true for its result.
    #[cfg(feature = "derive")]
    #[doc(hidden)]
    #[track_caller]
    pub fn __assert_once<R>(&self, work: impl FnOnce() -> R, passes: impl Fn(&R) -> bool) -> R {
        let scope = match self.enter() {
            Ok(scope) => scope,
            Err(error) => panic!("{error}"),
        };
        let answer = work();
        if passes(&answer) {
            scope.assert();
        } else {
            scope.give_up();
        }
        answer
    }

    /// Runs the work as often as configured, or until `go_on` returns false for a result.
    fn run<R>(
        &self,
        mut work: impl FnMut() -> R,
        go_on: impl Fn(&R) -> bool,
    ) -> Result<(R, Measured), LimitsError> {
        let mut measured = Measured::default();
        if self.warm_up > 0 {
            let scope = self.enter()?;
            for _ in 0..self.warm_up {
                let answer = work();
                if !go_on(&answer) {
                    scope.give_up();
                    return Ok((answer, measured));
                }
            }
            measured.warm_up = Some(scope.measure()?.leaked);
        }
        loop {
            let scope = self.enter()?;
            let answer = work();
            if !go_on(&answer) {
                scope.give_up();
                return Ok((answer, measured));
            }
            match self.judge(scope.measure()?) {
                Ok(usage) => measured.runs.push(usage),
                Err(exceeded) => {
                    return Err(LimitsError::Exceeded(Box::new(LimitsExceeded {
                        run: measured.runs.len() + 1,
                        runs: self.more_runs as usize + 1,
                        warm_up: measured.warm_up,
                        ..*exceeded
                    })));
                }
            }
            if measured.runs.len() > self.more_runs as usize {
                return Ok((answer, measured));
            }
        }
    }

    /// Compares the use of one run with the limits.
    fn judge(&self, usage: Usage) -> Result<Usage, Box<LimitsExceeded>> {
        let exceeded = self.exceeded(&usage);
        if exceeded.is_empty() {
            return Ok(usage);
        }
        Err(Box::new(LimitsExceeded {
            exceeded,
            usage,
            run: 1,
            runs: 1,
            warm_up: None,
        }))
    }

    fn exceeded(&self, usage: &Usage) -> Vec<Exceeded> {
        let most = &self.most;
        let largest_group = usage.leaked.groups.iter().map(|group| group.bytes).max();
        let all = [
            (most.peak, usage.peak, Exceeded::peak as fn(u64, u64) -> Exceeded),
            (most.total, usage.total, Exceeded::total),
            (most.leaked, usage.leaked.bytes, Exceeded::leaked),
            (
                most.leaked_at_one_place,
                largest_group.unwrap_or(0),
                Exceeded::leaked_at_one_place,
            ),
            (most.allocations, usage.allocations, Exceeded::allocations),
            (most.temporary, usage.temporary, Exceeded::temporary),
        ];
        all.into_iter()
            .filter_map(|(limit, measured, exceeded)| {
                let limit = limit.filter(|limit| measured > *limit)?;
                Some(exceeded(limit, measured))
            })
            .collect()
    }

    /// Returns whether a group of live blocks does not count.
    fn ignores(&self, group: &LeakGroup) -> bool {
        self.ignored.iter().any(|ignores| ignores(group))
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits")
            .field("most", &self.most)
            .field("pools", &self.pools)
            .field("ignored", &self.ignored.len())
            .field("warm_up", &self.warm_up)
            .field("runs", &(u64::from(self.more_runs) + 1))
            .finish_non_exhaustive()
    }
}

/// Removes the ignored groups from a report.
fn counted(limits: &Limits, report: LeakReport) -> LeakReport {
    if limits.ignored.is_empty() {
        return report;
    }
    report.without(|group| limits.ignores(group))
}
