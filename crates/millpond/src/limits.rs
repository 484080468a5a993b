//! Limits for tests: the most memory that a piece of work may hold, leave behind, or ask for.
//!
//! What counts is what a *scope* does: the thread that enters it, and the threads that [join](ScopeHandle::join) it; in every
//! pool of the process, of the host and of devices, or in those that are named. A block counts for the scope that it was
//! allocated in, whoever frees it, and wherever. So tests that run beside each other do not disturb each other.
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
//! With the feature `derive` it is an attribute of a test:
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
//! | limit | holds for |
//! |---|---|
//! | [`peak`](Limits::peak) | bytes that are live at once |
//! | [`total`](Limits::total) | bytes of all blocks together |
//! | [`leaked`](Limits::leaked) | bytes that are live at the end: in all; [`leaked_at_one_place`](Limits::leaked_at_one_place): with one tag, from one place |
//! | [`allocations`](Limits::allocations) | blocks that were allocated |
//! | [`temporary`](Limits::temporary) | blocks that were freed as the very next thing that their thread did with memory |
//!
//! - Bytes are those of blocks, which are a little more than was asked for, as in every other report of live blocks. They follow
//!   from the request alone, so that figures are the same on every run.
//! - It takes the [account](crate::Pool::ledger) of live blocks: a pool that keeps none has one as long as there is a scope, of
//!   stacks too where the feature `stacks` is there. An account of some blocks only is no base for limits
//!   ([`LimitsError::Sampled`]). A scope's figures are wrong if the account is [replaced](crate::Pool::track) meanwhile.
//! - Where the program's own allocator is a [`GlobalPool`](crate::GlobalPool), everything that the scope allocates counts.
//! - Memory that comes from no pool ([`Unpooled`](crate::Unpooled), `GlobalPool`'s arena, what libraries take) does not.
//! - A thread keeps no block longer for it. What a pool keeps for later is in nobody's hands, and does not count.
//! - At most 1,024 scopes at once; 512 places are told apart in each, and what more there are is one sum.

mod error;
mod scope;
mod size;
mod usage;

pub use crate::tally::Site;
pub use error::{Exceeded, LimitsError, LimitsExceeded};
pub use scope::{JoinedScope, LimitsScope, ScopeHandle};
pub use size::Size;
pub use usage::{Measured, Usage};

use crate::ledger::{LeakGroup, LeakReport};
use crate::pool::Pool;
use millpond_engine::ParseSizeError;
use std::fmt;
use std::sync::Arc;

/// What is not to count as leaked.
type Filter = Arc<dyn Fn(&LeakGroup) -> bool + Send + Sync>;

/// The most that a piece of work may do with memory. What is not limited is measured.
#[derive(Clone, Default)]
#[must_use = "limits are kept to where they are checked"]
pub struct Limits {
    most: Most,
    /// Those that count; none: all.
    pools: Vec<u64>,
    ignored: Vec<Filter>,
    warm_up: u32,
    /// Beyond the first one.
    more_runs: u32,
    /// The first text that is no size.
    wrong: Option<ParseSizeError>,
}

/// The limits themselves.
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
    /// Without a limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most bytes that may be live at once: a number, or a text as `"24 MiB"`.
    pub fn peak(mut self, bytes: impl Into<Size>) -> Self {
        self.most.peak = self.read(bytes.into());
        self
    }

    /// The most bytes that all blocks together may have, live or not.
    pub fn total(mut self, bytes: impl Into<Size>) -> Self {
        self.most.total = self.read(bytes.into());
        self
    }

    /// The most bytes that may be live at the end. What the work answers is live then. Blocks that were
    /// [leaked](crate::Buffer::leak) on purpose do not count.
    pub fn leaked(mut self, bytes: impl Into<Size>) -> Self {
        self.most.leaked = self.read(bytes.into());
        self
    }

    /// The most bytes that may be live at the end of those that were allocated with one tag and one stack. Without the feature
    /// `stacks` a tag is a place.
    pub fn leaked_at_one_place(mut self, bytes: impl Into<Size>) -> Self {
        self.most.leaked_at_one_place = self.read(bytes.into());
        self
    }

    /// The most blocks that may be allocated.
    pub fn allocations(mut self, blocks: u64) -> Self {
        self.most.allocations = Some(blocks);
        self
    }

    /// The most blocks that may be temporary: freed as the very next thing that their thread does with memory. Loops that
    /// allocate what could be kept are found by them.
    pub fn temporary(mut self, blocks: u64) -> Self {
        self.most.temporary = Some(blocks);
        self
    }

    /// Only what happens in this pool counts, and in others that are named.
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.pools.push(pool.id());
        self
    }

    /// The same of a pool of a device.
    #[cfg(feature = "cuda")]
    pub fn device_pool(mut self, pool: &crate::gpu::DevicePool) -> Self {
        self.pools.push(pool.id());
        self
    }

    /// Groups of blocks that are live at the end and do not count as leaked: those of which this is true.
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

    /// How often the work is done before anything is measured: for caches that fill once. What these runs leave behind is
    /// told apart. Of [`check`](Self::check) and [`assert`](Self::assert).
    pub fn warm_up(mut self, runs: u32) -> Self {
        self.warm_up = runs;
        self
    }

    /// How often it is done and measured; once, where nothing is said. Each run has to keep to the limits.
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

    /// Does the work, as often as was said, and answers what it came to. What it answers itself is dropped after each
    /// run, and is still held when the run is measured.
    ///
    /// # Errors
    /// When a run does not keep to a limit, which ends it there: [`LimitsError::Exceeded`] says who holds what. When nothing can
    /// be measured: before the work is done.
    pub fn check<R>(&self, work: impl FnMut() -> R) -> Result<Measured, LimitsError> {
        self.run(work, |_| true).map(|(_, measured)| measured)
    }

    /// The same for a test: answers what the last run did.
    ///
    /// # Panics
    /// Where [`check`](Self::check) answers an error, with its text.
    #[track_caller]
    pub fn assert<R>(&self, work: impl FnMut() -> R) -> R {
        match self.run(work, |_| true) {
            Ok((answer, _)) => answer,
            Err(error) => panic!("{error}"),
        }
    }

    /// The same of work that can fail. Where it does, that is the answer, and nothing is said of limits.
    ///
    /// # Errors
    /// The first of the work.
    ///
    /// # Panics
    /// Where [`check`](Self::check) answers an error, with its text.
    #[track_caller]
    pub fn assert_ok<R, E>(&self, work: impl FnMut() -> Result<R, E>) -> Result<R, E> {
        match self.run(work, Result::is_ok) {
            Ok((answer, _)) => answer,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`assert`](Self::assert), of work that is done once, and of which `passes` says whether it counts.
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

    /// Runs until an answer says that it is of no use to go on.
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

    /// Holds against the limits what one run came to.
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

    /// Whether a group of live blocks does not count.
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

/// Leaves out what is ignored.
fn counted(limits: &Limits, report: LeakReport) -> LeakReport {
    if limits.ignored.is_empty() {
        return report;
    }
    report.without(|group| limits.ignores(group))
}
