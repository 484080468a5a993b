//! Pools across a fork.
//!
//! Around a [fork](millpond_os::fork) every pool is stopped: its locks are taken in their order, and every cache is claimed, because a
//! cache that its owner is just changing would be inconsistent in the child. In the child, the caches of the parent's threads are used like
//! those of idle threads, and no request waits for memory.

use super::heap::{ForkGuard, Heap};
use millpond_account::ledger::Filter;
use millpond_os::fork::{Participant, Resting};
use millpond_os::ranked::{Locked, Rank, Ranked};
use millpond_os::reentrancy::inside;

static LISTS: Ranked<Lists> = Ranked::new(
    Rank::Heaps,
    Lists {
        heaps: Vec::new(),
        filters: Vec::new(),
    },
);

/// The lists that outlive a pool.
struct Lists {
    /// Every pool that has memory.
    heaps: Vec<&'static Heap>,
    /// The tables of 64 KiB that exclude most blocks from the lookup in a sampled ledger, of all pools so far. The next pool
    /// reuses a table without a ledger. A table is never freed, because a wrong free after the end of its pool may still read it.
    filters: Vec<&'static Filter>,
}

impl Lists {
    /// Returns an empty table that no ledger uses.
    fn spare_filter(&mut self) -> &'static Filter {
        if let Some(spare) = self.filters.iter().find(|filter| filter.holders() == 1) {
            spare.renew();
            return spare;
        }
        let made: &'static Filter = Box::leak(Box::new(Filter::empty()));
        self.filters.push(made);
        made
    }
}

static FORKS: Participant = Participant::new(Rank::Heaps, || Box::new(NoCalls::begin()));

/// The locks of all pools. While they are held during a fork, no other thread is in a pool. The first field is dropped first.
struct NoCalls {
    heaps: Vec<ForkGuard>,
    _lists: Locked<'static, Lists>,
}

impl NoCalls {
    fn begin() -> Self {
        let lists = LISTS.lock();
        // The program's own pool is the oldest and is stopped last. When a slow path of another pool ends, memory that this
        // pool's source has dropped is returned to the program's pool, and the thread may still be in its cache of this pool.
        let mut heaps: Vec<ForkGuard> = lists.heaps.iter().rev().map(|heap| heap.rest()).collect();
        heaps.iter_mut().for_each(ForkGuard::take_accounts);
        Self { heaps, _lists: lists }
    }
}

impl Resting for NoCalls {
    fn forget_others(&mut self) {
        self.heaps.iter_mut().for_each(ForkGuard::forget_others);
    }
}

fn lists() -> Locked<'static, Lists> {
    FORKS.register();
    LISTS.lock()
}

/// Adds a pool to the list.
pub(crate) fn register(heap: &'static Heap) {
    super::live::provide();
    lists().heaps.push(heap);
}

/// Returns every pool that has memory now.
pub(crate) fn all() -> Vec<&'static Heap> {
    // The list must not be allocated from the program's pool: nothing may be reported under the list's lock.
    let _inside = inside();
    lists().heaps.clone()
}

/// Removes a pool that has no memory any more.
pub(crate) fn forget(heap: &Heap) {
    lists().heaps.retain(|other| !std::ptr::eq(*other, heap));
}

/// Returns the table that excludes most of a pool's blocks from the lookup in a sampled ledger. It is created for the first
/// sampled ledger.
pub(super) fn filter_of(heap: &Heap) -> Filter {
    let _inside = inside();
    // The lock of the lists ensures that no other pool starts to use a table while it is emptied for this one.
    let mut lists = lists();
    Filter::clone(heap.filter.get_or_init(|| lists.spare_filter()))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::Pool;
    use millpond_os::end_of_child;
    use millpond_os::fork::{prepare, resume};
    use std::sync::{Arc, Barrier};

    #[test]
    fn registering_the_fork_handlers_twice_has_no_effect() {
        FORKS.register();
        millpond_os::around_fork(prepare, resume);
        assert_eq!(end_of_child(|| Pool::host().is_ok()), 0);
        assert!(Pool::host().is_ok());
    }

    #[test]
    fn a_child_does_not_wait_for_an_owner_that_was_about_to_enter_its_cache() {
        let pool = Pool::builder().trim_every(None).host().expect("a pool");
        let (ready, over) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(pool.alloc_zeroed::<u8>(100).expect("room"));
                ready.wait();
                over.wait();
            });
            ready.wait();
            let caches = pool.heap().registry.lock().caches.clone();
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
