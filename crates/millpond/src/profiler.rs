//! The profiler: what all threads do with memory between two moments, in the process that does it.
//!
//! It is a scope of every thread, as [`limits`](mod@crate::limits) has one of some: figures by tag and place with an exact peak,
//! over the accounts of live blocks, which pools keep for it as long as it is on.

mod report;

pub use report::{PoolUse, ProfilerReport, ProfilerSummary, TagPeak};

use crate::fork::Participant;
use crate::limits::Size;
use crate::pools::PoolsBlocks;
use crate::ranked::{Locked, Rank, Ranked};
use crate::reentrancy::inside;
use crate::registry::{Watching, live_pools};
use crate::scope;
use crate::stats::PoolStats;
use crate::tally::{self, Outcome};
use millpond_engine::ParseSizeError;
use std::sync::Arc;

/// Places that are told apart.
const SITES: usize = 16_384;

/// A time of profiling, under way or the last one.
#[derive(Default)]
struct State {
    /// As long as it is on.
    watching: Option<Watching>,
    /// What it came to, when it was on last.
    last: Option<Arc<Outcome>>,
    /// Each pool's number and figures when it was turned on.
    before: Arc<[(u64, PoolStats)]>,
}

/// Locked while the profiler is turned on or off, so that the child of a fork has it either on or off.
static STATE: Ranked<Option<State>> = Ranked::new(Rank::Profiler, None);

static FORKS: Participant = Participant::new(Rank::Profiler, || Box::new(STATE.lock()));

fn state() -> Locked<'static, Option<State>> {
    FORKS.register();
    STATE.lock()
}

/// The process's profiler. See [`profiler`].
#[derive(Clone, Copy, Debug)]
pub struct Profiler(());

/// The process's profiler: off until it is [turned on](Profiler::enable).
///
/// ```
/// use millpond::{Pool, profiler};
///
/// let pool = Pool::builder().name("steps").host()?;
/// profiler().enable();
/// let weights = {
///     let _scope = millpond::tag("weights");
///     pool.alloc_zeroed::<f32>(1 << 20)?
/// };
/// for _ in 0..100 {
///     let _scope = millpond::tag("scratch");
///     drop(pool.alloc_zeroed::<u8>(64 << 10)?);
/// }
/// let report = profiler().report();
/// println!("{}", report.summary());
/// assert_eq!((report.by_tag()[0].tag.name(), report.by_tag()[0].peak), ("weights", 4 << 20));
/// assert_eq!((report.most_temporary(1)[0].tag.name(), report.temporary), ("scratch", 100));
/// assert_eq!(profiler().larger_than("1 MiB")?.blocks[0].block.requested, 4 << 20);
/// profiler().disable();
/// # drop(weights);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn profiler() -> Profiler {
    Profiler(())
}

impl Profiler {
    /// Counts from here on what every thread does in every pool of the process. Each pool keeps an account of live blocks for it,
    /// with stacks where the feature is there; one of some blocks is taken as it is, and figures are estimates then. Does
    /// nothing where it is on.
    ///
    /// While it is on an allocation takes as long as the account of live blocks does (with stacks up to 2 µs), and all threads meet
    /// at one lock for each.
    pub fn enable(&self) {
        let watching = Watching::begin();
        let pools = live_pools();
        let stats = pools.iter().map(|pool| (pool.label().id, pool.stats()));
        let before: Arc<[(u64, PoolStats)]> = stats.collect();
        let spare = {
            // Nothing is allocated from the program's pool under the lock.
            let _inside = inside();
            let mut state = state();
            let on = state.as_ref().is_some_and(|state| state.watching.is_some());
            if on {
                Err((watching, before))
            } else {
                tally::begin_profile(SITES);
                Ok(state.replace(State {
                    watching: Some(watching),
                    last: None,
                    before,
                }))
            }
        };
        // Outside the lock: accounts end with it, or the last measurement does.
        drop(spare);
    }

    /// Ends that. What was counted can still be [reported](Self::report). The accounts that were begun for it end, unless somebody
    /// else relies on them.
    pub fn disable(&self) {
        let gone = {
            let _inside = inside();
            let mut state = state();
            let ended = tally::end(scope::here().profile).map(Arc::new);
            state.as_mut().map(|state| {
                let before = ended.and_then(|ended| state.last.replace(ended));
                (state.watching.take(), before)
            })
        };
        drop(gone);
    }

    /// Whether it is on.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        scope::here().profile != 0
    }

    /// What was counted since it was turned on, until it was turned off: of the last time, if it is off. Empty where it never
    /// was on.
    #[must_use]
    pub fn report(&self) -> ProfilerReport {
        let (now, last, before) = {
            let _inside = inside();
            let state = state();
            let now = tally::so_far(scope::here().profile).map(Arc::new);
            match &*state {
                Some(state) => (now, state.last.clone(), Some(Arc::clone(&state.before))),
                None => (now, None, None),
            }
        };
        ProfilerReport::new(now.or(last).as_deref(), before.as_deref().unwrap_or_default())
    }

    /// The largest live blocks of all pools of the process, with the place of each, at most `n`. Pools that keep no account are
    /// named; while the profiler is on, there are none.
    #[must_use]
    pub fn largest(&self, n: usize) -> PoolsBlocks {
        let mut all = PoolsBlocks::of_all_pools(|ledger| ledger.largest(n));
        all.blocks.truncate(n);
        all
    }

    /// The live blocks of more bytes than that in all pools of the process, largest first: a number, or a text as `"100 MB"`.
    ///
    /// # Errors
    /// When it is a text that is no size.
    pub fn larger_than(&self, bytes: impl Into<Size>) -> Result<PoolsBlocks, ParseSizeError> {
        let bytes = usize::try_from(bytes.into().bytes()?).unwrap_or(usize::MAX);
        Ok(PoolsBlocks::of_all_pools(|ledger| ledger.larger_than(bytes)))
    }
}
