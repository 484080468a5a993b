//! The shared part of a pool: the list of caches, the shelves of small blocks, the engine.

use super::account::{Tally, Totals, bump};
use super::cache::{Cache, Free, Stacks, most_kept};
use super::claim;
use super::classes::{CLASSES, KEPT, LEAST, PAGE, SMALL, bin_of, class_bytes, class_of};
use super::core::{Core, Memory};
use super::fork;
use super::local;
use super::shelf::Shelf;
use super::stats::PoolStats;
use crate::error::AllocError;
use crate::post_mortem::{PostMortem, Survey};
use millpond_engine::{self as engine, Compaction, Gauge};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Small blocks that move between a thread and a shelf at once, at most.
const BATCH: usize = 32;

/// A block in a caller's hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

/// The caches of all threads, and the account of those of threads that ended.
#[derive(Default)]
struct Roll {
    caches: Vec<Arc<Cache>>,
    ended: Tally,
}

impl Roll {
    fn tallies(&self) -> impl Iterator<Item = &Tally> {
        self.caches.iter().map(|c| &c.tally).chain([&self.ended])
    }
}

/// See the module. Never freed: blocks may outlive every handle of the pool, and find their way back by it.
pub(crate) struct Heap {
    number: u64,
    closed: AtomicBool,
    /// Whether one thread at most has ever had a cache.
    alone: AtomicBool,
    totals: Totals,
    shelves: [Mutex<Shelf>; CLASSES],
    core: Mutex<Option<Core>>,
    roll: Mutex<Roll>,
}

/// A pool at rest: its locks are held and no thread is inside its cache. Ends when dropped.
pub(crate) struct Rest {
    heap: &'static Heap,
    // In the order in which they are let go.
    _core: MutexGuard<'static, Option<Core>>,
    _shelves: Vec<MutexGuard<'static, Shelf>>,
    roll: MutexGuard<'static, Roll>,
}

impl Drop for Rest {
    fn drop(&mut self) {
        if !self.heap.is_closed() {
            self.roll.caches.iter().for_each(|cache| cache.claim.give_up());
        }
    }
}

/// A lock whose data no panic of ours can leave half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn small_class(bytes: usize, align: usize) -> Option<usize> {
    if bytes > SMALL || align > PAGE {
        return None;
    }
    if align <= LEAST {
        return Some(class_of(bytes.max(1)));
    }
    let first = class_of(bytes.max(align));
    (first..CLASSES).find(|class| class_bytes(*class).is_multiple_of(align))
}

/// Bytes of a larger block for a request; none where there are no such sizes.
#[inline]
fn room(bytes: usize) -> Option<usize> {
    bytes.max(SMALL + 1).checked_next_multiple_of(PAGE)
}

impl Taken {
    /// The block that a request of this shape was given at this address: what it takes follows from the request alone.
    pub(crate) fn of(address: usize, bytes: usize, align: usize) -> Self {
        let bytes = match small_class(bytes, align) {
            Some(class) => class_bytes(class),
            None => room(bytes).unwrap_or(bytes),
        };
        Self { address, bytes }
    }
}

impl Heap {
    pub(crate) fn new(memory: Memory) -> &'static Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let heap = Box::leak(Box::new(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            closed: AtomicBool::new(false),
            alone: AtomicBool::new(true),
            totals: Totals::default(),
            shelves: std::array::from_fn(|_| Mutex::default()),
            core: Mutex::new(Some(Core::new(memory))),
            roll: Mutex::default(),
        }));
        fork::register(heap);
        heap
    }

    /// Brings the pool to rest.
    pub(crate) fn rest(&'static self) -> Rest {
        let roll = lock(&self.roll);
        for cache in &roll.caches {
            cache.claim.want();
        }
        claim::barrier();
        for cache in &roll.caches {
            cache.claim.wait();
        }
        Rest {
            heap: self,
            _shelves: self.shelves.iter().map(lock).collect(),
            _core: lock(&self.core),
            roll,
        }
    }

    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A cache for a thread that has none yet; none once the pool is closed.
    pub(crate) fn admit(&self) -> Option<Arc<Cache>> {
        let mut roll = lock(&self.roll);
        if self.is_closed() {
            return None;
        }
        let cache = Arc::new(Cache::new());
        let alone = roll.caches.is_empty();
        if !alone && self.alone.swap(false, Ordering::Relaxed) {
            // From now on the first thread tells what it gains and loses, not its peaks.
            self.claim(&roll, |cache, _| cache.tally.tell(&self.totals, false));
        }
        cache.tally.tell(&self.totals, alone);
        roll.caches.push(Arc::clone(&cache));
        Some(cache)
    }

    /// Takes back what a thread that ends has kept, and its part of the account.
    pub(crate) fn retire(&self, cache: &Arc<Cache>) {
        // Under this lock nobody else wants the cache, but for a pool that is closed: that has drained it.
        let mut roll = lock(&self.roll);
        cache.with(|stacks| self.take_all(stacks));
        cache.tally.tell(&self.totals, false);
        roll.caches.retain(|other| !Arc::ptr_eq(other, cache));
        roll.ended.absorb(&cache.tally);
    }

    fn take_all(&self, stacks: &mut Stacks) {
        stacks.drain(
            |class, blocks| lock(&self.shelves[class]).put(blocks),
            |blocks| self.free_large(blocks),
        );
    }

    /// Runs `work` on every cache while its owner is out.
    fn claim(&self, roll: &Roll, mut work: impl FnMut(&Cache, &mut Stacks)) {
        for cache in &roll.caches {
            cache.claim.want();
        }
        claim::barrier();
        for cache in &roll.caches {
            if self.is_closed() {
                cache.keep_wanted(|stacks| work(cache, stacks));
            } else {
                cache.with_wanted(|stacks| work(cache, stacks));
            }
        }
    }

    #[inline]
    fn alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    /// Hands a block out.
    #[inline]
    pub(crate) fn allocate(&'static self, bytes: usize, align: usize) -> Result<Taken, AllocError> {
        if let Some(class) = small_class(bytes, align) {
            let taken = class_bytes(class);
            let found = local::with(self, |cache| {
                let address = cache.with(|stacks| stacks.pop(class))??;
                if cache.tally.allocate(bytes, taken) {
                    cache.tally.tell(&self.totals, self.alone());
                }
                Some(address)
            });
            return match found.flatten() {
                Some(address) => Ok(Taken {
                    address,
                    bytes: taken,
                }),
                None => self.refill(class, bytes),
            };
        }
        if bytes <= KEPT && align <= PAGE {
            let room = bytes.max(SMALL + 1).next_multiple_of(PAGE);
            let found = local::with(self, |cache| {
                let block = cache.with(|stacks| stacks.pop_large(bin_of(room), room))??;
                if cache.tally.allocate(bytes, room) {
                    cache.tally.tell(&self.totals, self.alone());
                }
                Some(block.address)
            });
            if let Some(address) = found.flatten() {
                return Ok(Taken { address, bytes: room });
            }
        }
        self.allocate_large(bytes, align)
    }

    /// Takes a block back; `requested` is what was asked for.
    #[inline]
    pub(crate) fn free(&'static self, taken: Taken, requested: usize) {
        let Taken { address, bytes } = taken;
        if bytes <= SMALL {
            let class = class_of(bytes);
            let kept = local::with(self, |cache| {
                cache.with(|stacks| {
                    if !stacks.push(class, address) {
                        self.spill(stacks, class, address);
                    }
                    self.count_free(cache, requested, bytes);
                })
            });
            if kept.flatten().is_none() {
                self.free_outside(taken, requested);
            }
            return;
        }
        let kept = local::with(self, |cache| {
            cache.with(|stacks| {
                let block = Free { address, bytes };
                if bytes > KEPT {
                    self.free_large(&[block]);
                } else if !stacks.push_large(bin_of(bytes), block) {
                    self.spill_large(stacks, block);
                }
                self.count_free(cache, requested, bytes);
            })
        });
        if kept.flatten().is_none() {
            self.free_outside(taken, requested);
        }
    }

    /// Counts inside the claim: whoever has closed the pool and been through the caches has the whole account.
    #[inline]
    fn count_free(&self, cache: &Cache, requested: usize, bytes: usize) {
        if cache.tally.free(requested, bytes) {
            cache.tally.tell(&self.totals, self.alone());
        }
    }

    /// Makes room in a full stack and keeps the block.
    #[cold]
    #[inline(never)]
    fn spill(&self, stacks: &mut Stacks, class: usize, address: usize) {
        stacks.older_half(class, |blocks| lock(&self.shelves[class]).put(blocks));
        stacks.push(class, address);
    }

    #[cold]
    #[inline(never)]
    fn spill_large(&self, stacks: &mut Stacks, block: Free) {
        let bin = bin_of(block.bytes);
        stacks.spill_large(bin, block.bytes, |blocks| self.free_large(blocks));
        stacks.push_large(bin, block);
    }

    /// A small block from the shelf, and more of them for the thread.
    #[cold]
    #[inline(never)]
    fn refill(&'static self, class: usize, requested: usize) -> Result<Taken, AllocError> {
        let bytes = class_bytes(class);
        let mut batch = [0; BATCH];
        let want = (most_kept(class) / 2).clamp(1, BATCH);
        let mut missed = false;
        let mut count = lock(&self.shelves[class]).take(class, &mut batch[..want]);
        if count == 0 {
            let (address, length, called) = self.ask(requested, |core| core.add_span(class))?;
            missed = called;
            let mut shelf = lock(&self.shelves[class]);
            shelf.add_span(class, address, length);
            count = shelf.take(class, &mut batch[..want]);
        }
        let [first, rest @ ..] = &batch;
        let rest = &rest[..count.saturating_sub(1)];
        let counted = local::with(self, |cache| {
            let kept = cache.with(|stacks| rest.iter().take_while(|more| stacks.push(class, **more)).count());
            let kept = kept.unwrap_or(0);
            if kept < rest.len() {
                lock(&self.shelves[class]).put(&rest[kept..]);
            }
            if missed {
                bump(&cache.tally.misses);
            }
            if cache.tally.allocate(requested, bytes) {
                cache.tally.tell(&self.totals, self.alone());
            }
        });
        if counted.is_none() {
            lock(&self.shelves[class]).put(rest);
            self.count_outside(|core| {
                core.tally.allocate(requested, bytes);
                if missed {
                    bump(&core.tally.misses);
                }
            });
        }
        Ok(Taken {
            address: *first,
            bytes,
        })
    }

    /// Asks the engine and, where memory is short, once more with all that the threads and the shelves hold.
    fn ask<R>(
        &self,
        requested: usize,
        mut work: impl FnMut(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, AllocError> {
        match self.with_core(requested, &mut work) {
            Err(error) if error.is_out_of_memory() => {}
            outcome => return outcome.map_err(|error| self.refuse(requested, error)),
        }
        self.drain_caches();
        self.release_spans();
        self.with_core(requested, work)
            .map_err(|error| self.refuse(requested, error))
    }

    #[cold]
    #[inline(never)]
    fn allocate_large(&'static self, requested: usize, align: usize) -> Result<Taken, AllocError> {
        let bytes = room(requested).ok_or_else(|| {
            let limit = isize::MAX as u64;
            let requested = requested as u64;
            self.refuse(
                requested as usize,
                engine::AllocError::TooLarge { requested, limit },
            )
        })?;
        let (address, missed) = self.ask(requested, |core| core.allocate(bytes, align))?;
        let counted = local::with(self, |cache| {
            if missed {
                bump(&cache.tally.misses);
            }
            if cache.tally.allocate(requested, bytes) {
                cache.tally.tell(&self.totals, self.alone());
            }
        });
        if counted.is_none() {
            self.count_outside(|core| {
                core.tally.allocate(requested, bytes);
                if missed {
                    bump(&core.tally.misses);
                }
            });
        }
        Ok(Taken { address, bytes })
    }

    fn with_core<R>(
        &self,
        requested: usize,
        work: impl FnOnce(&mut Core) -> Result<R, engine::AllocError>,
    ) -> Result<R, engine::AllocError> {
        let mut core = lock(&self.core);
        let Some(core) = core.as_mut() else {
            return Err(engine::AllocError::TooLarge {
                requested: requested as u64,
                limit: 0,
            });
        };
        work(core)
    }

    /// Counts a refusal, and says who holds what.
    #[cold]
    fn refuse(&self, requested: usize, why: engine::AllocError) -> AllocError {
        if let Some(core) = lock(&self.core).as_mut() {
            core.refusals += 1;
        }
        AllocError::of(why, || self.post_mortem(requested))
    }

    /// Who holds what, for a request that was refused. Under the pool's lock, and nothing is allocated.
    fn post_mortem(&self, requested: usize) -> PostMortem {
        let mut survey = Survey::new(requested as u64);
        if let Some(core) = lock(&self.core).as_ref() {
            core.survey(&mut survey);
        }
        survey.finish()
    }

    fn free_large(&self, blocks: &[Free]) {
        if let Some(core) = lock(&self.core).as_mut() {
            for block in blocks {
                core.free(block.address);
            }
        }
    }

    fn count_outside(&self, work: impl FnOnce(&mut Core)) {
        if let Some(core) = lock(&self.core).as_mut() {
            work(core);
            if !self.alone() {
                core.tally.tell(&self.totals, false);
            }
        }
    }

    /// Takes a block back where the thread has no cache: at its end, or while another thread looks into it.
    #[cold]
    #[inline(never)]
    fn free_outside(&self, taken: Taken, requested: usize) {
        if taken.bytes <= SMALL {
            lock(&self.shelves[class_of(taken.bytes)]).put(&[taken.address]);
        }
        self.count_outside(|core| {
            if taken.bytes > SMALL {
                core.free(taken.address);
            }
            core.tally.free(requested, taken.bytes);
        });
        if self.is_closed() {
            self.end_if_empty();
        }
    }

    /// Takes back what all threads keep; answers the bytes.
    fn drain_caches(&self) -> usize {
        let roll = lock(&self.roll);
        let mut bytes = 0;
        self.claim(&roll, |_, stacks| {
            bytes += stacks.bytes();
            self.take_all(stacks);
        });
        bytes
    }

    /// Gives the engine every span of which no block is in use.
    fn release_spans(&self) {
        for (class, shelf) in self.shelves.iter().enumerate() {
            let mut shelf = lock(shelf);
            if let Some(core) = lock(&self.core).as_mut() {
                let spans = core.spans_of(class);
                for span in shelf.take_whole_spans(class, &spans) {
                    core.free_span(span);
                }
            }
        }
    }

    /// Gives everything that no block uses back to the source.
    pub(crate) fn trim(&self) {
        self.drain_caches();
        self.release_spans();
        if let Some(core) = lock(&self.core).as_mut() {
            core.memory.release_cached();
        }
    }

    /// The same, with the account of it.
    pub(crate) fn compact(&self) -> Compaction {
        self.drain_caches();
        self.release_spans();
        let mut core = lock(&self.core);
        core.as_mut()
            .map(|core| core.memory.compact())
            .unwrap_or_default()
    }

    /// The last handle is gone: memory goes back now, or with the last block.
    pub(crate) fn close(&self) {
        {
            let roll = lock(&self.roll);
            self.closed.store(true, Ordering::Release);
            // Wanted for ever: from now on every thread frees past its cache.
            for cache in &roll.caches {
                cache.claim.want();
            }
            claim::barrier();
            for cache in &roll.caches {
                cache.keep_wanted(|stacks| self.take_all(stacks));
            }
        }
        self.end_if_empty();
    }

    fn end_if_empty(&self) {
        // Nothing is handed out any more: what is zero stays so. Every address is forgotten before the memory goes.
        if self.live() == (0, 0) {
            for shelf in &self.shelves {
                *lock(shelf) = Shelf::default();
            }
            // Dropped outside the lock.
            let core = lock(&self.core).take();
            drop(core);
            fork::forget(self);
        }
    }

    /// Requested and allocated bytes in callers' hands.
    fn live(&self) -> (u64, u64) {
        let roll = lock(&self.roll);
        let core = lock(&self.core);
        let tallies = roll.tallies().chain(core.as_ref().map(|c| &c.tally));
        tallies.fold((0, 0), |(requested, allocated): (u64, u64), tally| {
            (
                requested.wrapping_add(tally.requested.now()),
                allocated.wrapping_add(tally.allocated.now()),
            )
        })
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let roll = lock(&self.roll);
        let mut kept = 0;
        self.claim(&roll, |_, stacks| kept += stacks.bytes() as u64);
        let core = lock(&self.core);
        let mut stats = PoolStats {
            kept,
            ..PoolStats::default()
        };
        let tallies = roll.tallies();
        let (mut requested, mut allocated, mut misses) = (0u64, 0u64, 0u64);
        for tally in tallies.chain(core.as_ref().map(|c| &c.tally)) {
            requested = requested.wrapping_add(tally.requested.now());
            allocated = allocated.wrapping_add(tally.allocated.now());
            stats.allocations += tally.allocations.load(Ordering::Relaxed);
            stats.frees += tally.frees.load(Ordering::Relaxed);
            misses += tally.misses.load(Ordering::Relaxed);
        }
        let gauge = |current: u64, peak: u64| Gauge {
            current,
            peak: peak.max(current),
        };
        stats.hits = stats.allocations - misses.min(stats.allocations);
        stats.requested = gauge(requested, self.totals.requested.peak());
        stats.allocated = gauge(allocated, self.totals.allocated.peak());
        if let Some(core) = core.as_ref() {
            stats.reserved = core.memory.stats().reserved;
            stats.refusals = core.refusals;
        }
        stats
    }

    pub(crate) fn reset_peaks(&self) {
        let (requested, allocated) = self.live();
        self.totals.requested.set_peak(requested);
        self.totals.allocated.set_peak(allocated);
        let roll = lock(&self.roll);
        let alone = self.alone();
        self.claim(&roll, |cache, _| cache.tally.tell(&self.totals, alone));
        if let Some(core) = lock(&self.core).as_mut() {
            core.memory.reset_peaks();
        }
    }

    /// Asserts that the engine's account and the pool's agree, at rest.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let shelves: usize = self
            .shelves
            .iter()
            .enumerate()
            .map(|(c, s)| lock(s).bytes(c))
            .sum();
        let stats = self.stats();
        let core = lock(&self.core);
        let Some(core) = core.as_ref() else { return };
        core.memory.check();
        let below = core.memory.stats().allocated.current;
        assert!(
            stats.allocated.current + stats.kept + shelves as u64 <= below,
            "{stats:?} and {shelves} on shelves, above the engine's {below}"
        );
    }
}
