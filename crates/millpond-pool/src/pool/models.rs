//! Model checks of a few small programs with `loom`, which tries every order of steps that the memory model allows.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p millpond-pool --release --lib models
//! ```
//!
//! The number of preemptions in each order is limited to two. `LOOM_MAX_PREEMPTIONS=3` tries more orders, and takes most of an hour.
//!
//! The models use the real `BiasedLock`, `Cache` with its stacks and counts, `biased_lock::barrier` and `Lifetime`. Each program runs
//! twice: on a system that can make every thread pass a barrier, and on one that cannot, so that each owner takes the slow path.
//!
//! The heap around them is a smaller copy, [`Small`], because many shelves, an engine and the tables of threads have more orders of
//! steps than can be tried.
//!
//! The models do not include `membarrier` itself, forks, and the slow path of a pool above its limit. A full fence on both sides
//! replaces `membarrier`. In models of a system that forbids `membarrier` later, neither side has a fence.

mod small;

use super::biased_lock::Despite;
use super::cache::{Popped, Stacks};
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use small::{BYTES, CLASS, Small, lock};
use std::cell::Cell;
use std::sync::Arc;

std::thread_local! {
    /// Whether the model's system can make every thread pass a barrier. The threads of a model run on one thread of the system, so
    /// models can run at the same time.
    static ASYMMETRIC: Cell<bool> = const { Cell::new(true) };
    /// Whether the system forbids the barrier while the program runs.
    static FORBIDS: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn asymmetric() -> bool {
    ASYMMETRIC.get()
}

/// The barrier of threads other than the owner. If [`FORBIDS`] is set, the system refuses it from now on.
pub(super) fn barrier() {
    if FORBIDS.get() {
        ASYMMETRIC.set(false);
    }
}

/// The fence between the owner's two steps on the fast path.
pub(super) fn compiler_fence(order: Ordering) {
    if !FORBIDS.get() {
        loom::sync::atomic::fence(order);
    }
}

/// Returns a loom builder with the bounds of all models.
fn builder() -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    // The maximum number of steps in one order. The longest of these models has a few more than loom's default of a thousand.
    builder.max_branches = 5000;
    builder
}

/// Tries every order, on both kinds of system.
fn model(run: impl Fn() + Copy + Sync + Send + 'static) {
    for can in [true, false] {
        ASYMMETRIC.set(can);
        builder().check(run);
    }
}

/// The owner frees a block, or allocates one from its cache, while another thread drains the cache.
fn an_owner_and_one_that_drains(heap: fn(&[usize]) -> Arc<Small>, frees: bool, and_again: bool) {
    model(move || {
        let heap = heap(&[1, 2]);
        let cache = heap.admit();
        let mut block = heap.allocate(&cache);
        if !frees {
            heap.free(&cache, block.take().expect("a block"));
        }
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.drain_caches())
        };
        for _ in 0..1 + usize::from(and_again) {
            match block.take() {
                Some(address) => heap.free(&cache, address),
                None => block = Some(heap.allocate(&cache).expect("a block")),
            }
        }
        other.join().expect("no panic");
        if let Some(address) = block {
            heap.free(&cache, address);
        }
        heap.at_rest(&[1, 2]);
    });
}

#[test]
fn a_cache_has_one_user_at_a_time_while_its_owner_frees_and_allocates() {
    an_owner_and_one_that_drains(Small::new, true, true);
}

#[test]
fn a_cache_has_one_user_at_a_time_while_its_owner_allocates_and_frees() {
    an_owner_and_one_that_drains(Small::new, false, true);
}

// Each operation of a watched heap takes several times as many steps.

#[test]
fn a_watched_cache_has_one_user_at_a_time_while_its_owner_frees() {
    an_owner_and_one_that_drains(Small::watched, true, false);
}

#[test]
fn a_watched_cache_has_one_user_at_a_time_while_its_owner_allocates() {
    an_owner_and_one_that_drains(Small::watched, false, false);
}

#[test]
fn a_thread_that_claims_a_cache_sees_only_whole_operations() {
    model(|| {
        let heap = Small::new(&[1]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        heap.free(&cache, one);
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || {
                let registry = lock(&heap.registry);
                heap.claim(&registry, |cache, stacks| {
                    let out = cache.tally.allocated.now();
                    assert_eq!(stacks.bytes() as i64 + out, BYTES as i64, "moved and not counted");
                });
            })
        };
        let popped = cache.pop(BYTES, BYTES, Despite::Nothing, |stacks| stacks.pop(CLASS));
        if let Popped::Block { address, .. } = popped {
            let keep = |stacks: &mut Stacks| stacks.push(CLASS, address);
            cache.push(BYTES, BYTES, Despite::Nothing, || true, keep);
        }
        other.join().expect("no panic");
    });
}

#[test]
fn two_threads_drain_a_cache_while_its_owner_frees() {
    model(|| {
        let heap = Small::new(&[1, 2]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        let others = [(); 2].map(|()| {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.drain_caches())
        });
        heap.free(&cache, one);
        others
            .into_iter()
            .for_each(|other| other.join().expect("no panic"));
        heap.at_rest(&[1, 2]);
    });
}

#[test]
fn a_thread_frees_a_block_that_another_thread_allocated() {
    model(|| {
        let heap = Small::new(&[1, 2]);
        let mine = heap.admit();
        let one = heap.allocate(&mine).expect("a block");
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || {
                let theirs = heap.admit();
                heap.free(&theirs, one);
                heap.retire(&theirs);
            })
        };
        let two = heap.allocate(&mine).expect("a block");
        heap.free(&mine, two);
        other.join().expect("no panic");
        heap.at_rest(&[1, 2]);
    });
}

#[test]
fn a_thread_ends_while_another_trims() {
    model(|| {
        let heap = Small::new(&[1, 2]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.drain_caches())
        };
        heap.free(&cache, one);
        heap.retire(&cache);
        other.join().expect("no panic");
        heap.at_rest(&[1, 2]);
    });
}

#[test]
fn a_pool_that_closes_while_its_last_block_is_freed_returns_its_memory() {
    model(|| {
        let heap = Small::new(&[1]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.close())
        };
        heap.free(&cache, one);
        heap.retire(&cache);
        other.join().expect("no panic");
        assert!(lock(&heap.store).gone, "the memory was never given back");
        heap.at_rest(&[]);
    });
}

/// An owner without a block requests its first one while another thread drops the last handle. The owner gets a block whose memory is
/// valid, or none, and all memory is returned in the end.
fn closing_against_the_first_block(has_cache: bool, blocks: &'static [usize]) {
    model(move || {
        let heap = Small::new(blocks);
        let cache = has_cache.then(|| heap.admit());
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.close())
        };
        let first = match &cache {
            Some(cache) => heap.allocate(cache),
            None => heap.refill(None),
        };
        if let Some(address) = first {
            assert!(
                !lock(&heap.store).gone,
                "the memory of a block in use was given back"
            );
            heap.give(cache.as_deref(), address);
        }
        other.join().expect("no panic");
        assert!(lock(&heap.store).gone, "the memory was never given back");
    });
}

#[test]
fn a_pool_that_is_closed_waits_for_the_first_block_of_an_empty_owner() {
    closing_against_the_first_block(true, &[1]);
}

#[test]
fn a_pool_that_is_closed_waits_for_the_first_block_of_a_thread_without_a_cache() {
    closing_against_the_first_block(false, &[1]);
}

#[test]
fn a_pool_that_is_closed_ends_after_a_first_request_that_is_refused() {
    closing_against_the_first_block(true, &[]);
}

#[test]
fn a_closed_pool_returns_its_memory_if_two_threads_free_the_last_blocks() {
    model(|| {
        let heap = Small::new(&[1, 2]);
        let cache = heap.admit();
        let [one, two] = [(); 2].map(|()| heap.allocate(&cache).expect("a block"));
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || {
                let theirs = heap.try_admit();
                heap.give(theirs.as_deref(), two);
                theirs.iter().for_each(|theirs| heap.retire(theirs));
            })
        };
        heap.close();
        heap.free(&cache, one);
        other.join().expect("no panic");
        assert!(lock(&heap.store).gone, "the memory was never given back");
    });
}

#[test]
fn a_waiting_request_is_notified_of_a_freed_block() {
    model(|| {
        let heap = Small::new(&[1]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        let waiter = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || {
                let theirs = heap.admit();
                let address = heap.allocate_patiently(&theirs);
                heap.free(&theirs, address);
            })
        };
        heap.free(&cache, one);
        waiter.join().expect("no panic");
        assert!(!heap.detours());
        heap.at_rest(&[1]);
    });
}

#[test]
fn a_waiting_request_is_notified_of_a_freed_block_in_a_watched_pool() {
    model(|| {
        let heap = Small::watched(&[1]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        let waiter = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || {
                let theirs = heap.admit();
                let address = heap.allocate_patiently(&theirs);
                heap.free(&theirs, address);
            })
        };
        heap.free(&cache, one);
        waiter.join().expect("no panic");
        assert!(!heap.detours());
        heap.at_rest(&[1]);
    });
}

#[test]
fn a_request_that_joins_the_queue_as_the_last_one_leaves_is_notified() {
    model(|| {
        let heap = Small::new(&[1]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        // Another request waits already, and gives up.
        {
            let mut line = lock(&heap.line);
            line.tickets.push(0);
            line.next = 1;
        }
        heap.set_reason(true);
        let leaver = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.leave_line(0))
        };
        let waiter = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || {
                let theirs = heap.admit();
                let address = heap.allocate_patiently(&theirs);
                heap.free(&theirs, address);
            })
        };
        heap.free(&cache, one);
        waiter.join().expect("no panic");
        leaver.join().expect("no panic");
        assert!(!heap.detours());
        heap.at_rest(&[1]);
    });
}

/// The system forbids the barrier in the middle of a program. No other thread enters the cache of an owner that has not
/// acknowledged the fence.
fn an_owner_where_the_barrier_is_forbidden_later(rounds: usize, drains: usize) {
    FORBIDS.set(true);
    builder().check(move || {
        // Each order begins on a system that has the barrier.
        ASYMMETRIC.set(true);
        let heap = Small::new(&[1]);
        let cache = heap.admit();
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || (0..drains).for_each(|_| heap.drain_caches()))
        };
        for _ in 0..rounds {
            if let Some(address) = heap.allocate(&cache) {
                heap.free(&cache, address);
            }
        }
        other.join().expect("no panic");
        heap.retire(&cache);
        heap.at_rest(&[1]);
    });
    FORBIDS.set(false);
}

#[test]
fn a_cache_is_not_claimed_before_its_owner_knows_that_barriers_are_forbidden() {
    an_owner_where_the_barrier_is_forbidden_later(2, 1);
}

#[test]
fn a_cache_is_claimed_after_its_owner_knows_that_barriers_are_forbidden() {
    an_owner_where_the_barrier_is_forbidden_later(1, 2);
}

/// A block is charged to its current owner. This copies how `allocate_for` and `free_slowly` handle tenants.
#[test]
fn a_block_that_changes_owners_is_charged_to_its_current_owner() {
    model(|| {
        // The only block while it is free, the charges by address, and the used bytes of each owner.
        let store = Arc::new(Mutex::new(vec![1usize]));
        let charges = Arc::new(Mutex::new(std::collections::HashMap::<usize, usize>::new()));
        let used = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let take = |who: usize, store: &Mutex<Vec<usize>>, charges: &Mutex<_>, used: &[AtomicUsize; 2]| {
            used[who].fetch_add(1, Ordering::Relaxed);
            let Some(address) = lock(store).pop() else {
                used[who].fetch_sub(1, Ordering::Relaxed);
                return None;
            };
            let before: Option<usize> = std::collections::HashMap::insert(&mut *lock(charges), address, who);
            if let Some(before) = before {
                used[before].fetch_sub(1, Ordering::Relaxed);
            }
            Some(address)
        };
        let give =
            |address: usize, store: &Mutex<Vec<usize>>, charges: &Mutex<_>, used: &[AtomicUsize; 2]| {
                let who: Option<usize> = std::collections::HashMap::remove(&mut *lock(charges), &address);
                lock(store).push(address);
                if let Some(who) = who {
                    used[who].fetch_sub(1, Ordering::Relaxed);
                }
            };
        let mine = take(0, &store, &charges, &used).expect("a block");
        let other = {
            let (store, charges, used) = (Arc::clone(&store), Arc::clone(&charges), Arc::clone(&used));
            thread::spawn(move || {
                let taken = take(1, &store, &charges, &used);
                (taken.is_some(), taken)
            })
        };
        give(mine, &store, &charges, &used);
        let (theirs, _) = other.join().expect("no panic");
        let sums = [0, 1].map(|who| used[who].load(Ordering::Relaxed));
        assert_eq!(sums, [0, usize::from(theirs)]);
    });
}
