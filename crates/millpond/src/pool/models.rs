//! Every order of steps that the memory model allows, for a few small programs (`loom`).
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p millpond --release --lib models
//! ```
//!
//! *Ours, as they are*: [`Claim`](super::claim::Claim), [`Cache`] with its stacks and counts, `claim::barrier`, [`Lifetime`]. Each
//! program runs twice: as where the system can make every thread pass a barrier, and as where it cannot and each owner
//! goes the slow way.
//!
//! *Drawn small*: the heap around them ([`Small`]), because forty shelves, an engine and threads' tables have more orders
//! of steps than can be tried. It takes the same steps in the same order as `heap.rs`, `watched.rs`, `slow.rs`, `detour.rs`
//! and `upkeep.rs`, with one lock for shelves and engine together. Whoever changes an order there changes it here.
//!
//! *Not modelled*: `membarrier` itself (a full fence stands for it, on both sides), forks, the limit's detour. Where it is forbidden
//! later nothing stands for it, on either side.

use super::account::Tally;
use super::cache::Cache;
use super::claim::{self, Despite};
use super::lifetime::Lifetime;
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;
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

/// The barrier of threads other than the owner, which the system may refuse from now on.
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

/// A run of loom with the bounds of all models.
fn builder() -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    // Steps of one order. The longest of these models has some more than the thousand that is loom's own bound.
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

/// One size of blocks.
const CLASS: usize = 0;
const BYTES: usize = 64;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic")
}

/// A heap of one size, its shelf and engine under one lock.
struct Small {
    roll: Mutex<Vec<Arc<Cache>>>,
    store: Mutex<Store>,
    detour: AtomicU32,
    lifetime: Lifetime,
    line: Mutex<Line>,
    freed: Condvar,
    /// Whether someone watches, from the beginning to the end.
    watched: bool,
}

#[derive(Default)]
struct Store {
    free: Vec<usize>,
    /// Counted past the caches.
    tally: Tally,
    ended: Tally,
    /// Given back for good.
    gone: bool,
}

fn live(roll: &[Arc<Cache>], store: &Store) -> i64 {
    let tallies = roll
        .iter()
        .map(|cache| &cache.tally)
        .chain([&store.tally, &store.ended]);
    tallies.map(|tally| tally.allocated.now()).sum()
}

#[derive(Default)]
struct Line {
    tickets: Vec<usize>,
    next: usize,
    changes: usize,
}

impl Small {
    fn new(free: &[usize]) -> Arc<Self> {
        Arc::new(Self::made(free, false))
    }

    fn watched(free: &[usize]) -> Arc<Self> {
        Arc::new(Self::made(free, true))
    }

    fn made(free: &[usize], watched: bool) -> Self {
        let store = Store {
            free: free.to_vec(),
            ..Store::default()
        };
        Self {
            roll: Mutex::new(Vec::new()),
            store: Mutex::new(store),
            detour: AtomicU32::new(0),
            lifetime: Lifetime::new(),
            line: Mutex::new(Line::default()),
            freed: Condvar::new(),
            watched,
        }
    }

    fn detours(&self) -> bool {
        self.detour.load(Ordering::Relaxed) != 0
    }

    fn is_closed(&self) -> bool {
        self.lifetime.is_closed()
    }

    fn admit(&self) -> Arc<Cache> {
        self.try_admit().expect("not closed")
    }

    fn try_admit(&self) -> Option<Arc<Cache>> {
        let mut roll = lock(&self.roll);
        if self.is_closed() {
            return None;
        }
        let cache = Arc::new(Cache::new());
        if self.detours() {
            cache.claim.slow(true);
        }
        cache.claim.watch(self.watched);
        roll.push(Arc::clone(&cache));
        Some(cache)
    }

    fn retire(&self, cache: &Arc<Cache>) {
        let mut roll = lock(&self.roll);
        cache.with(|stacks| stacks.drain(|_, blocks| lock(&self.store).free.extend(blocks), |_| {}));
        roll.retain(|other| !Arc::ptr_eq(other, cache));
        lock(&self.store).ended.absorb(&cache.tally);
    }

    fn claim(&self, roll: &[Arc<Cache>], mut work: impl FnMut(&Cache, &mut super::cache::Stacks)) {
        roll.iter().for_each(|cache| cache.claim.want());
        claim::barrier();
        for cache in roll {
            if self.is_closed() {
                cache.keep_wanted(|stacks| work(cache, stacks));
            } else {
                cache.with_wanted(|stacks| work(cache, stacks));
            }
        }
    }

    fn drain_caches(&self) {
        let roll = lock(&self.roll);
        self.claim(&roll, |_, stacks| {
            stacks.drain(|_, blocks| lock(&self.store).free.extend(blocks), |_| {});
        });
    }

    fn set_detour(&self, on: bool) {
        let roll = lock(&self.roll);
        let before = self.detour.swap(u32::from(on), Ordering::Relaxed);
        if before != u32::from(on) {
            roll.iter().for_each(|cache| cache.claim.slow(on));
            if on {
                claim::barrier();
            }
        }
    }

    fn allocate(&self, cache: &Cache) -> Option<usize> {
        if let Some(done) = cache.pop(CLASS, BYTES, BYTES, Despite::Nothing) {
            assert!(!self.watched, "not told");
            return Some(done.what);
        }
        if self.watched
            && let Some(done) = cache.pop(CLASS, BYTES, BYTES, Despite::Watchers)
        {
            return Some(done.what);
        }
        let kept = cache.with(|stacks| {
            let address = stacks.pop(CLASS)?;
            cache.tally.allocate(BYTES, BYTES);
            Some(address)
        });
        kept.flatten().or_else(|| self.refill(Some(cache)))
    }

    /// A thread has no cache where the pool was closed before it came.
    fn refill(&self, cache: Option<&Cache>) -> Option<usize> {
        self.lifetime.begin();
        let found = lock(&self.store).free.pop();
        let found = found.or_else(|| {
            self.drain_caches();
            lock(&self.store).free.pop()
        });
        if found.is_some() {
            match cache {
                Some(cache) => cache.tally.allocate(BYTES, BYTES),
                None => lock(&self.store).tally.allocate(BYTES, BYTES),
            };
        }
        if self.lifetime.finish() {
            self.end_if_empty();
        }
        found
    }

    fn free(&self, cache: &Cache, address: usize) {
        self.give(Some(cache), address);
    }

    /// A thread has no cache where the pool was closed before it came.
    fn give(&self, cache: Option<&Cache>, address: usize) {
        if cache.is_some_and(|cache| {
            cache
                .push(CLASS, address, BYTES, BYTES, Despite::Nothing, || true)
                .is_some()
        }) {
            return;
        }
        let beside = |cache: &Cache| {
            self.watched
                && cache
                    .push(CLASS, address, BYTES, BYTES, Despite::Watchers, || true)
                    .is_some()
        };
        if cache.is_some_and(beside) {
            return;
        }
        let past = self.detours();
        let keep = |cache: &Cache| {
            let kept = cache.with(|stacks| {
                assert!(stacks.push(CLASS, address));
                cache.tally.free(BYTES, BYTES);
            });
            kept.is_some()
        };
        if past || !cache.is_some_and(keep) {
            {
                let mut store = lock(&self.store);
                store.free.push(address);
                store.tally.free(BYTES, BYTES);
            }
            if self.is_closed() {
                self.end_if_empty();
            }
        }
        if self.detours() {
            self.tell_line();
        }
    }

    fn live(&self) -> i64 {
        let roll = lock(&self.roll);
        live(&roll, &lock(&self.store))
    }

    fn close(&self) {
        {
            let roll = lock(&self.roll);
            self.lifetime.close();
            roll.iter().for_each(|cache| cache.claim.want());
            claim::barrier();
            for cache in roll.iter() {
                cache.keep_wanted(|stacks| {
                    stacks.drain(|_, blocks| lock(&self.store).free.extend(blocks), |_| {});
                });
            }
        }
        self.end_if_empty();
    }

    fn end_if_empty(&self) {
        let roll = lock(&self.roll);
        let mut store = lock(&self.store);
        if self.lifetime.is_idle() && live(&roll, &store) == 0 {
            store.gone = true;
            store.free.clear();
        }
    }

    fn tell_line(&self) {
        lock(&self.line).changes += 1;
        self.freed.notify_all();
    }

    /// Waits without a time limit: where nobody is told, the model stands still, and says so.
    fn allocate_patiently(&self, cache: &Cache) -> usize {
        let ticket = {
            let mut line = lock(&self.line);
            let ticket = line.next;
            line.next += 1;
            line.tickets.push(ticket);
            let first = line.tickets.len() == 1;
            drop(line);
            if first {
                self.set_detour(true);
            }
            ticket
        };
        let address = loop {
            let changes = lock(&self.line).changes;
            let is_first = lock(&self.line).tickets.first() == Some(&ticket);
            if is_first && let Some(address) = self.allocate(cache) {
                break address;
            }
            let mut line = lock(&self.line);
            while line.changes == changes {
                line = self.freed.wait(line).expect("no panic");
            }
        };
        self.leave_line(ticket);
        address
    }

    fn leave_line(&self, ticket: usize) {
        let mut line = lock(&self.line);
        line.tickets.retain(|other| *other != ticket);
        line.changes += 1;
        let empty = line.tickets.is_empty();
        drop(line);
        self.freed.notify_all();
        if empty {
            let mut awaited = false;
            loop {
                self.set_detour(awaited);
                if awaited {
                    self.tell_line();
                }
                let now = !lock(&self.line).tickets.is_empty();
                if now == awaited {
                    return;
                }
                awaited = now;
            }
        }
    }

    /// Shows that just these blocks are free, each once, and that the counts say so.
    fn at_rest(&self, blocks: &[usize]) {
        self.drain_caches();
        let mut free = lock(&self.store).free.clone();
        free.sort_unstable();
        assert_eq!(free, blocks);
        assert_eq!(self.live(), 0);
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
fn who_claims_a_cache_sees_whole_operations() {
    model(|| {
        let heap = Small::new(&[1]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        heap.free(&cache, one);
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || {
                let roll = lock(&heap.roll);
                heap.claim(&roll, |cache, stacks| {
                    let out = cache.tally.allocated.now();
                    assert_eq!(stacks.bytes() as i64 + out, BYTES as i64, "moved and not counted");
                });
            })
        };
        if let Some(done) = cache.pop(CLASS, BYTES, BYTES, Despite::Nothing) {
            cache.push(CLASS, done.what, BYTES, BYTES, Despite::Nothing, || true);
        }
        other.join().expect("no panic");
    });
}

#[test]
fn two_that_claim_and_an_owner() {
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
fn one_frees_what_another_has_allocated() {
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
fn the_last_block_goes_while_the_pool_is_closed() {
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

/// An owner without a block asks for its first one while another thread drops the last handle: it has a block whose memory is there, or
/// none, and the memory goes in the end.
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
fn the_last_two_blocks_go_at_once_after_the_pool() {
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
fn who_waits_is_told_of_the_one_block_that_comes_back() {
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
fn who_waits_is_told_of_a_block_that_comes_back_and_is_watched() {
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
fn who_joins_the_line_as_the_last_one_leaves_is_told() {
    model(|| {
        let heap = Small::new(&[1]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        // Somebody waits already, and gives up.
        {
            let mut line = lock(&heap.line);
            line.tickets.push(0);
            line.next = 1;
        }
        heap.set_detour(true);
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

/// The system forbids the barrier in the middle of a program: an owner that has not said that it is fenced is left alone, and
/// nobody meets it in its cache.
fn an_owner_where_the_barrier_is_forbidden_later(rounds: usize, drains: usize) {
    FORBIDS.set(true);
    builder().check(move || {
        // Each order begins with a system that has the barrier.
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
fn owners_are_left_alone_where_the_barrier_is_forbidden_later() {
    an_owner_where_the_barrier_is_forbidden_later(2, 1);
}

#[test]
fn owners_that_have_seen_that_the_barrier_is_forbidden_are_waited_for() {
    an_owner_where_the_barrier_is_forbidden_later(1, 2);
}

/// A block is charged to whoever has it: what `allocate_for` and `free_slowly` do about tenants.
#[test]
fn a_block_that_changes_hands_is_charged_to_who_has_it() {
    model(|| {
        // Who is charged for the one block, and by how much each is.
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
