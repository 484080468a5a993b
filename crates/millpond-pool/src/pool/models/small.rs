//! The small heap of the models. It takes the same steps in the same order as `fast.rs`, `watched.rs`, `slow.rs`, `slow_path_reason.rs`
//! and `upkeep.rs`, with one lock for shelves and engine together. If the order of steps changes there, it must change here too.

use crate::pool::account::Tally;
use crate::pool::biased_lock::{self, Despite};
use crate::pool::cache::{self, Cache, Inside, Popped};
use crate::pool::lifetime::Lifetime;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;

/// The only size of blocks.
pub(super) const CLASS: usize = 0;
pub(super) const BYTES: usize = 64;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic")
}

/// A heap of one size. Its shelf and engine are under one lock.
pub(super) struct Small {
    pub(super) registry: Mutex<Vec<Arc<Cache>>>,
    pub(super) store: Mutex<Store>,
    pub(super) detour: AtomicU32,
    pub(super) lifetime: Lifetime,
    pub(super) line: Mutex<WaitQueue>,
    pub(super) freed: Condvar,
    /// Whether there are observers, from the beginning to the end.
    pub(super) watched: bool,
}

#[derive(Default)]
pub(super) struct Store {
    pub(super) free: Vec<usize>,
    /// Counters of operations that bypass the caches.
    pub(super) tally: Tally,
    pub(super) ended: Tally,
    /// Whether the memory was given back.
    pub(super) gone: bool,
}

pub(super) fn live(registry: &[Arc<Cache>], store: &Store) -> i64 {
    let tallies = registry
        .iter()
        .map(|cache| &cache.tally)
        .chain([&store.tally, &store.ended]);
    tallies.map(|tally| tally.allocated.now()).sum()
}

#[derive(Default)]
pub(super) struct WaitQueue {
    pub(super) tickets: Vec<usize>,
    pub(super) next: usize,
    pub(super) changes: usize,
}

impl Small {
    pub(super) fn new(free: &[usize]) -> Arc<Self> {
        Arc::new(Self::made(free, false))
    }

    pub(super) fn watched(free: &[usize]) -> Arc<Self> {
        Arc::new(Self::made(free, true))
    }

    pub(super) fn made(free: &[usize], watched: bool) -> Self {
        let store = Store {
            free: free.to_vec(),
            ..Store::default()
        };
        Self {
            registry: Mutex::new(Vec::new()),
            store: Mutex::new(store),
            detour: AtomicU32::new(0),
            lifetime: Lifetime::new(),
            line: Mutex::new(WaitQueue::default()),
            freed: Condvar::new(),
            watched,
        }
    }

    pub(super) fn detours(&self) -> bool {
        self.detour.load(Ordering::Relaxed) != 0
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lifetime.is_closed()
    }

    pub(super) fn admit(&self) -> Arc<Cache> {
        self.try_admit().expect("not closed")
    }

    pub(super) fn try_admit(&self) -> Option<Arc<Cache>> {
        let mut registry = lock(&self.registry);
        if self.is_closed() {
            return None;
        }
        let cache = Arc::new(Cache::new());
        if self.detours() {
            cache.claim.slow(true);
        }
        cache.claim.watch(self.watched);
        registry.push(Arc::clone(&cache));
        Some(cache)
    }

    pub(super) fn retire(&self, cache: &Arc<Cache>) {
        let mut registry = lock(&self.registry);
        cache.with(|stacks| stacks.drain(|_, blocks| lock(&self.store).free.extend(blocks), |_| {}));
        registry.retain(|other| !Arc::ptr_eq(other, cache));
        lock(&self.store).ended.absorb(&cache.tally);
    }

    pub(super) fn claim(&self, registry: &[Arc<Cache>], mut work: impl FnMut(&Cache, &mut cache::Stacks)) {
        registry.iter().for_each(|cache| cache.claim.want());
        biased_lock::barrier();
        for cache in registry {
            if self.is_closed() {
                cache.keep_wanted(|stacks| work(cache, stacks));
            } else {
                cache.with_wanted(|stacks| work(cache, stacks));
            }
        }
    }

    pub(super) fn drain_caches(&self) {
        let registry = lock(&self.registry);
        self.claim(&registry, |_, stacks| {
            stacks.drain(|_, blocks| lock(&self.store).free.extend(blocks), |_| {});
        });
    }

    pub(super) fn set_reason(&self, on: bool) {
        let registry = lock(&self.registry);
        let before = self.detour.swap(u32::from(on), Ordering::Relaxed);
        if before != u32::from(on) {
            registry.iter().for_each(|cache| cache.claim.slow(on));
            if on {
                biased_lock::barrier();
            }
        }
    }

    pub(super) fn allocate(&self, cache: &Cache) -> Option<usize> {
        let pop = |despite| cache.pop(BYTES, BYTES, despite, |stacks| stacks.pop(CLASS));
        let mut popped = pop(Despite::Nothing);
        if self.watched {
            assert!(matches!(popped, Popped::Refused), "not told");
            popped = pop(Despite::Watchers);
        }
        let kept = match popped {
            Popped::Block { address, .. } => Some(address),
            Popped::Empty(cache) => self.restock(cache),
            Popped::Refused => cache.enter_slowly().and_then(|cache| self.restock(cache)),
        };
        kept.or_else(|| self.refill(Some(cache)))
    }

    fn restock(&self, mut cache: Inside<'_>) -> Option<usize> {
        let shelf = |batch: &mut [usize]| {
            let mut store = lock(&self.store);
            let count = batch.len().min(store.free.len());
            let blocks = store.free.drain(..count);
            batch
                .iter_mut()
                .zip(blocks)
                .for_each(|(place, address)| *place = address);
            count
        };
        let aside = cache.with(|stacks| stacks.pop_or_recall(CLASS));
        let address = aside.or_else(|| cache.refill(CLASS, shelf))?;
        cache.tally().allocate(BYTES, BYTES);
        Some(address)
    }

    /// Allocates a block outside the cache. A thread has no cache if the pool was closed before its first call.
    pub(super) fn refill(&self, cache: Option<&Cache>) -> Option<usize> {
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

    pub(super) fn free(&self, cache: &Cache, address: usize) {
        self.give(Some(cache), address);
    }

    /// Frees a block. A thread has no cache if the pool was closed before its first call.
    pub(super) fn give(&self, cache: Option<&Cache>, address: usize) {
        let push = |cache: &Cache, despite| {
            let pushed = cache.push(
                BYTES,
                BYTES,
                despite,
                || true,
                |stacks| stacks.push(CLASS, address),
            );
            pushed.is_some()
        };
        if cache.is_some_and(|cache| {
            push(cache, Despite::Nothing) || self.watched && push(cache, Despite::Watchers)
        }) {
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

    pub(super) fn live(&self) -> i64 {
        let registry = lock(&self.registry);
        live(&registry, &lock(&self.store))
    }

    pub(super) fn close(&self) {
        {
            let registry = lock(&self.registry);
            self.lifetime.close();
            registry.iter().for_each(|cache| cache.claim.want());
            biased_lock::barrier();
            for cache in registry.iter() {
                cache.keep_wanted(|stacks| {
                    stacks.drain(|_, blocks| lock(&self.store).free.extend(blocks), |_| {});
                });
            }
        }
        self.end_if_empty();
    }

    pub(super) fn end_if_empty(&self) {
        let registry = lock(&self.registry);
        let mut store = lock(&self.store);
        if self.lifetime.is_idle() && live(&registry, &store) == 0 {
            store.gone = true;
            store.free.clear();
        }
    }

    pub(super) fn tell_line(&self) {
        lock(&self.line).changes += 1;
        self.freed.notify_all();
    }

    /// Allocates a block and waits for it without a timeout. If the thread is not notified, loom reports a deadlock.
    pub(super) fn allocate_patiently(&self, cache: &Cache) -> usize {
        let ticket = {
            let mut line = lock(&self.line);
            let ticket = line.next;
            line.next += 1;
            line.tickets.push(ticket);
            let first = line.tickets.len() == 1;
            drop(line);
            if first {
                self.set_reason(true);
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

    pub(super) fn leave_line(&self, ticket: usize) {
        let mut line = lock(&self.line);
        line.tickets.retain(|other| *other != ticket);
        line.changes += 1;
        let empty = line.tickets.is_empty();
        drop(line);
        self.freed.notify_all();
        if empty {
            let mut awaited = false;
            loop {
                self.set_reason(awaited);
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

    /// Asserts that exactly these blocks are free, each once, and that the counts agree.
    pub(super) fn at_rest(&self, blocks: &[usize]) {
        self.drain_caches();
        let mut free = lock(&self.store).free.clone();
        free.sort_unstable();
        assert_eq!(free, blocks);
        assert_eq!(self.live(), 0);
    }
}
