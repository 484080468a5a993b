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
use std::sync::Arc;

/// Whether the models' system can make every thread pass a barrier. Of the standard library: it changes between models only.
static ASYMMETRIC: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(true);
/// One model at a time, because they share that.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

pub(super) fn asymmetric() -> bool {
    ASYMMETRIC.load(std::sync::atomic::Ordering::Relaxed)
}

/// As if the system forbade that in the middle of a program.
static FORBIDS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// The barrier of those who are not the owner, which the system may refuse from now on.
pub(super) fn barrier() {
    if FORBIDS.load(std::sync::atomic::Ordering::Relaxed) {
        ASYMMETRIC.store(false, std::sync::atomic::Ordering::Relaxed);
    }
}

/// What stands between the owner's two steps on the fast path.
pub(super) fn compiler_fence(order: Ordering) {
    if !FORBIDS.load(std::sync::atomic::Ordering::Relaxed) {
        loom::sync::atomic::fence(order);
    }
}

/// Tries every order, on both kinds of system.
fn model(run: impl Fn() + Copy + Sync + Send + 'static) {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for can in [true, false] {
        ASYMMETRIC.store(can, std::sync::atomic::Ordering::Relaxed);
        let mut builder = loom::model::Builder::new();
        // With three, one model takes minutes since owners also say that they are fenced.
        builder.preemption_bound = Some(2);
        // Steps of one order; the longest of ours has some more than the thousand that is loom's own bound.
        builder.max_branches = 5000;
        builder.check(run);
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

#[test]
fn a_cache_is_one_threads_at_a_time() {
    model(|| {
        let heap = Small::new(&[1, 2]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.drain_caches())
        };
        heap.free(&cache, one);
        let again = heap.allocate(&cache).expect("a block");
        heap.free(&cache, again);
        other.join().expect("no panic");
        heap.at_rest(&[1, 2]);
    });
}

#[test]
fn a_watched_cache_is_one_threads_at_a_time() {
    model(|| {
        let heap = Small::watched(&[1, 2]);
        let cache = heap.admit();
        let one = heap.allocate(&cache).expect("a block");
        let other = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || heap.drain_caches())
        };
        heap.free(&cache, one);
        let again = heap.allocate(&cache).expect("a block");
        heap.free(&cache, again);
        other.join().expect("no panic");
        heap.at_rest(&[1, 2]);
    });
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
#[test]
fn owners_are_left_alone_where_the_barrier_is_forbidden_later() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    FORBIDS.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 5000;
    builder.check(|| {
        // Each order begins with a system that has it.
        ASYMMETRIC.store(true, std::sync::atomic::Ordering::Relaxed);
        let heap = Small::new(&[1]);
        let cache = heap.admit();
        let drains = {
            let heap = Arc::clone(&heap);
            thread::spawn(move || {
                heap.drain_caches();
                heap.drain_caches();
            })
        };
        for _ in 0..2 {
            if let Some(address) = heap.allocate(&cache) {
                heap.free(&cache, address);
            }
        }
        drains.join().expect("no panic");
        heap.retire(&cache);
        heap.at_rest(&[1]);
    });
    FORBIDS.store(false, std::sync::atomic::Ordering::Relaxed);
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
