//! The profiler, which measures in the running process what all threads do with memory between two moments.
//!
//! It is a scope of all threads, while a scope of [`limits`](mod@crate::limits) has some threads. It computes figures by tag and
//! place, with an exact peak, from the accounts of live blocks, which pools keep for the profiler while it is on.

mod report;

pub use report::{PoolUse, ProfilerReport, ProfilerSummary, TagPeak};

use crate::limits::Size;
use crate::pools::PoolsBlocks;
use millpond_account::registry::{Watching, live_pools};
use millpond_account::scope;
use millpond_account::stats::PoolStats;
use millpond_account::tally::{self, Ending, Outcome, ProfileRoom};
use millpond_engine::ParseSizeError;
use millpond_os::fork::Participant;
use millpond_os::ranked::{Locked, Rank, Ranked};
use millpond_os::reentrancy::inside;
use std::sync::Arc;

/// The number of places that are distinguished.
const SITES: usize = 16_384;

/// The current or the last profiling period.
#[derive(Default)]
struct State {
    /// Set while the profiler is on.
    watching: Option<Watching>,
    /// The result of the last period.
    last: Option<Arc<Outcome>>,
    /// The id and statistics of each pool when the profiler was turned on.
    before: Arc<[(u64, PoolStats)]>,
}

/// Locked while the profiler is switched, so that it is either on or off in the child of a fork. The accounts of pools begin before and end
/// after the switch. If another thread was beginning or ending accounts at the time of the fork, the child's pools keep their accounts.
static STATE: Ranked<Option<State>> = Ranked::new(Rank::Profiler, None);

static FORKS: Participant = Participant::new(Rank::Profiler, || Box::new(STATE.lock()));

fn state() -> Locked<'static, Option<State>> {
    FORKS.register();
    STATE.lock()
}

/// The profiler of the process. See [`profiler`].
#[derive(Clone, Copy, Debug)]
pub struct Profiler(());

/// Returns the profiler of the process. It is off until it is [enabled](Profiler::enable).
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
    /// Starts counting the operations of every thread in every pool of the process. Each pool gets an account of live blocks, with
    /// stacks if the feature is enabled. An existing account of only some blocks is used as it is, and the figures are then
    /// estimates. Does nothing if the profiler is on.
    ///
    /// While the profiler is on, an allocation takes as long as the account of live blocks does (up to 2 µs with stacks), and all
    /// threads contend for one lock.
    pub fn enable(&self) {
        let watching = Watching::begin();
        let pools = live_pools();
        let stats = pools.iter().map(|pool| (pool.label().id, pool.stats()));
        let before: Arc<[(u64, PoolStats)]> = stats.collect();
        let room = ProfileRoom::new(SITES);
        let spare = {
            // The lock is held only while the profiler is switched. Nothing is allocated under it.
            let _inside = inside();
            let mut state = state();
            let on = state.as_ref().is_some_and(|state| state.watching.is_some());
            if on {
                (Some(room), Some(watching), None)
            } else {
                let room = tally::begin_profile(room);
                let before = state.replace(State {
                    watching: Some(watching),
                    last: None,
                    before,
                });
                (room, None, before)
            }
        };
        // This is dropped outside the lock, because it may end accounts or free the last measurement.
        let (room, watching, before) = spare;
        room.into_iter().for_each(ProfileRoom::discard);
        drop((watching, before));
    }

    /// Stops counting. The figures can still be [reported](Self::report). The accounts that were started for the profiler end,
    /// unless something else still uses them.
    pub fn disable(&self) {
        let mut ending = Ending::prepare();
        let watching = {
            let _inside = inside();
            let mut state = state();
            ending.end(scope::here().profile);
            state.as_mut().and_then(|state| state.watching.take())
        };
        let ended = ending.outcome().map(Arc::new);
        let before = ended.and_then(|ended| {
            let _inside = inside();
            match &mut *state() {
                Some(state) if state.watching.is_none() => state.last.replace(ended),
                // Another thread has turned the profiler on again.
                _ => Some(ended),
            }
        });
        drop((watching, before));
    }

    /// Returns whether the profiler is on.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        scope::here().profile != 0
    }

    /// Returns the figures since the profiler was turned on. If it is off, returns those of the last period, which are empty if it
    /// was never on.
    #[must_use]
    pub fn report(&self) -> ProfilerReport {
        let now = tally::so_far(scope::here().profile).map(Arc::new);
        let (last, before) = match &*state() {
            Some(state) => (state.last.clone(), Some(Arc::clone(&state.before))),
            None => (None, None),
        };
        ProfilerReport::new(now.or(last).as_deref(), before.as_deref().unwrap_or_default())
    }

    /// Returns the largest live blocks of all pools of the process, with their call sites, at most `n`. Pools without an account
    /// are listed. While the profiler is on, there are none.
    #[must_use]
    pub fn largest(&self, n: usize) -> PoolsBlocks {
        let mut all = PoolsBlocks::of(live_pools(), |ledger| ledger.largest(n));
        all.blocks.truncate(n);
        all
    }

    /// Returns the live blocks of more than `bytes` bytes in all pools of the process, largest first. The size is a number, or a
    /// text such as `"100 MB"`.
    ///
    /// # Errors
    /// Returns an error for a text that is not a size.
    pub fn larger_than(&self, bytes: impl Into<Size>) -> Result<PoolsBlocks, ParseSizeError> {
        let bytes = usize::try_from(bytes.into().bytes()?).unwrap_or(usize::MAX);
        Ok(PoolsBlocks::of(live_pools(), |ledger| ledger.larger_than(bytes)))
    }
}
