//! Pools across a fork.
//!
//! A child has only the thread that forked. A lock that another thread held at that moment would be held for ever, and
//! a cache whose owner was at work would be half changed. So around a fork every pool is brought to rest: its locks are
//! taken in their order, and every cache is claimed. The child finds what idle threads' caches hold where `trim` finds
//! it too; nobody stands in its pools' lines.
//!
//! After the fork, in parent and child, the arena's lock is released first, because everything that follows may allocate and
//! free tables.

use super::heap::{Heap, Rest};
use super::keeper;
use crate::budget::{NoBudgets, no_budgets};
use crate::global::{NoTables, inside, no_tables};
use crate::host::locking::{self, Locking};
use crate::ledger::Filter;
use crate::pinned::{NoPinning, no_pinning};
use crate::pools::{NoSets, no_sets};
use crate::profiler::{NoProfiling, no_profiling};
use crate::ranked::{Locked, Rank, Ranked, take_all_of_a_kind};
use crate::tag::{NoNames, no_names};
use crate::tally::{NoCounting, NoScopes, no_counting, no_scopes};
use crate::time::{NoClock, no_clock};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::RwLockWriteGuard;
use std::sync::atomic::{AtomicBool, Ordering};

static LISTS: Ranked<Lists> = Ranked::new(
    Rank::Heaps,
    Lists {
        heaps: Vec::new(),
        filters: Vec::new(),
    },
);

/// What outlives a pool.
struct Lists {
    /// Every pool that has memory.
    heaps: Vec<&'static Heap>,
    /// The tables of 64 KiB that say of most blocks that they are in no account, of all pools there were. One that no account has
    /// is had by the next pool: a late and wrong free may still look into it.
    filters: Vec<&'static Filter>,
}

impl Lists {
    /// A table that no account has, without entries.
    fn spare_filter(&mut self) -> &'static Filter {
        if let Some(spare) = self.filters.iter().find(|filter| filter.holders() == 1) {
            spare.renew();
            return spare;
        }
        let made: &'static Filter = Box::leak(Box::new(Filter::new()));
        self.filters.push(made);
        made
    }
}

/// What is held while a fork is under way, by the thread that forks: last taken, first let go.
struct Held {
    tables: NoTables,
    budgets: NoBudgets,
    _pinning: NoPinning,
    _locking: Locking<RwLockWriteGuard<'static, ()>>,
    _profiling: NoProfiling,
    _scopes: NoScopes,
    heaps: Vec<Rest>,
    _lists: Locked<'static, Lists>,
    #[cfg(feature = "record")]
    _snapshots: crate::recorder::NoSnapshots,
    _counting: NoCounting,
    _keeper: Locked<'static, keeper::State>,
    _names: NoNames,
    _sets: NoSets,
    _clock: NoClock,
    #[cfg(feature = "record")]
    recording: crate::recorder::NoRecording,
    /// Who forks.
    parent: u32,
}

thread_local! {
    /// Without a destructor: a thread may fork at its very end.
    static HELD: Cell<Option<ManuallyDrop<Held>>> = const { Cell::new(None) };
}

fn lists() -> Locked<'static, Lists> {
    LISTS.lock()
}

/// As long as it is held no fork begins, once pools are [watched](watch): for what is set once and without a lock of its own.
/// Comes before every pool's locks.
pub(crate) fn no_forks() -> impl Sized {
    lists()
}

/// Is called around every fork from now on.
pub(crate) fn watch() {
    // No `Once`: a child of a fork would wait for ever for a thread that was at it. Threads that are at it at once register
    // twice, which is no harm.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.load(Ordering::Acquire) {
        crate::os::around_fork(prepare, resume);
        REGISTERED.store(true, Ordering::Release);
    }
}

/// Has a pool looked after from now on.
pub(crate) fn register(heap: &'static Heap) {
    watch();
    lists().heaps.push(heap);
}

/// Every pool that has memory now.
pub(crate) fn all() -> Vec<&'static Heap> {
    // Not from the program's pool: nobody is told of anything under the list's lock.
    let _inside = inside();
    lists().heaps.clone()
}

/// The pool has no memory any more.
pub(crate) fn forget(heap: &Heap) {
    lists().heaps.retain(|other| !std::ptr::eq(*other, heap));
}

/// The table that says of most of a pool's blocks that they are in no account, from the first account of some blocks on.
pub(super) fn filter_of(heap: &Heap) -> Filter {
    let _inside = inside();
    // Under the lock of the lists, so that nobody begins to use a table while it is made empty for another.
    let mut lists = lists();
    Filter::clone(heap.filter.get_or_init(|| lists.spare_filter()))
}

extern "C" fn prepare() {
    let _inside = inside();
    let held = HELD.take();
    if held.is_some() {
        // Registered twice.
        HELD.set(held);
        return;
    }
    take_all_of_a_kind(true);
    #[cfg(feature = "record")]
    let recording = crate::recorder::no_recording();
    let clock = no_clock();
    let sets = no_sets();
    // Before the pools: whoever adds a name may need the program's pool.
    let names = no_names();
    let keeper = keeper::state();
    let counting = no_counting();
    #[cfg(feature = "record")]
    let snapshots = crate::recorder::no_snapshots();
    let lists = lists();
    // The program's own pool is the oldest and comes last: what a source of another pool has dropped goes back to it
    // at the end of a cold path, when the thread may still be in its cache of that other pool.
    let mut heaps: Vec<Rest> = lists.heaps.iter().rev().map(|heap| heap.rest()).collect();
    heaps.iter_mut().for_each(Rest::take_accounts);
    let scopes = no_scopes();
    let profiling = no_profiling();
    let locking = locking::exclusive();
    let pinning = no_pinning();
    let budgets = no_budgets();
    let held = Held {
        tables: no_tables(),
        budgets,
        _pinning: pinning,
        _locking: locking,
        _profiling: profiling,
        _scopes: scopes,
        heaps,
        _lists: lists,
        #[cfg(feature = "record")]
        _snapshots: snapshots,
        _counting: counting,
        _keeper: keeper,
        _names: names,
        _sets: sets,
        _clock: clock,
        #[cfg(feature = "record")]
        recording,
        parent: std::process::id(),
    };
    HELD.set(Some(ManuallyDrop::new(held)));
}

extern "C" fn resume() {
    let _inside = inside();
    if let Some(held) = HELD.take() {
        ManuallyDrop::into_inner(held).let_go();
    }
    take_all_of_a_kind(false);
}

impl Held {
    fn let_go(mut self) {
        // The lock of the tables is released before anything else, because restoring the rest may allocate and releasing it
        // frees.
        drop(self.tables);
        if self.parent != std::process::id() {
            self.heaps.iter_mut().for_each(Rest::forget_others);
            // Wakers are called when this thread is out of all locks.
            self.budgets.forget_others();
            #[cfg(feature = "record")]
            self.recording.forget_in_child();
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::Pool;
    use std::sync::{Arc, Barrier};

    /// Runs `work` in a child process and returns the child's exit status. A child that hangs is killed.
    fn end_of_child(work: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: takes a number.
            unsafe { libc::alarm(10) };
            let fine = work();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made; the status is ours.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        status
    }

    #[test]
    fn handlers_that_are_registered_twice_are_one() {
        watch();
        crate::os::around_fork(prepare, resume);
        assert_eq!(end_of_child(|| Pool::host().is_ok()), 0);
        assert!(Pool::host().is_ok());
    }

    #[test]
    fn a_child_does_not_wait_for_an_owner_that_looked_whether_it_may_enter() {
        let pool = Pool::builder().trim_every(None).host().expect("a pool");
        let (ready, over) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(pool.alloc_zeroed::<u8>(100).expect("room"));
                ready.wait();
                over.wait();
            });
            ready.wait();
            let caches = pool.heap().roll.lock().caches.clone();
            let cache = Arc::clone(&caches[0]);
            assert_eq!(caches.len(), 1);
            drop(caches);
            // The handler of the fork finds that `prepare` was already called.
            prepare();
            cache.claim.begin_to_enter();
            let end = end_of_child(|| {
                let kept = pool.stats().kept;
                pool.trim();
                let second = end_of_child(|| pool.stats().kept == 0);
                kept > 0 && second == 0
            });
            cache.claim.leave();
            over.wait();
            assert_eq!(end, 0);
        });
    }
}
