//! The shared part of a pool: the list of caches, the shelves of small blocks, the engine.

use super::account::{Tally, Totals};
use super::cache::{Cache, Done, Free, Stacks};
use super::claim::{self, Despite};
use super::classes::{CLASSES, KEPT, LEAST, PAGE, SMALL, class_and_bytes, class_bytes, class_of};
use super::core::{Core, Memory};
use super::detour::{AtRest, Detour, Line};
use super::fork;
use super::guard::{self, Guard};
use super::local;
use super::shelf::Shelf;
use super::slow::Ask;
use super::watch::Flow;
use crate::budget::{Budget, Charge};
use crate::error::AllocError;
use crate::event::{PoolLabel, Watchers};
use crate::global::inside;
use crate::ledger::{self, Ledger};
use crate::memory::MemoryKind;
use millpond_engine::{Limit, RetainConf};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A block in a caller's hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

/// The caches of all threads, and the account of those of threads that ended.
#[derive(Default)]
pub(super) struct Roll {
    pub(super) caches: Vec<Arc<Cache>>,
    pub(super) ended: Tally,
}

impl Roll {
    pub(super) fn tallies(&self) -> impl Iterator<Item = &Tally> {
        self.caches.iter().map(|c| &c.tally).chain([&self.ended])
    }
}

/// See the module. Never freed: blocks may outlive every handle of the pool, and find their way back by it.
pub(crate) struct Heap {
    number: u64,
    pub(super) closed: AtomicBool,
    /// Whether one thread at most has ever had a cache.
    alone: AtomicBool,
    pub(super) totals: Totals,
    pub(super) shelves: [Mutex<Shelf>; CLASSES],
    pub(super) core: Mutex<Option<Core>>,
    pub(super) roll: Mutex<Roll>,
    /// Why calls leave the fast way; changed under the lock of the roll.
    pub(super) detours: AtomicU32,
    pub(super) line: Line,
    /// Those who watch, how often they have changed, and what they were not told yet.
    pub(super) watchers: Mutex<Arc<Watchers>>,
    pub(super) watch_changes: AtomicU64,
    pub(super) flow: Arc<Flow>,
    /// Accounts of live blocks that were ever kept, and that of blocks handed out by hand.
    pub(super) ledgers: Mutex<Vec<&'static Arc<Ledger>>>,
    pub(super) hands: OnceLock<Ledger>,
    /// What each block is charged to, and what is reserved.
    pub(super) budget: Option<Budget>,
    pub(super) reserved: Option<Budget>,
    /// Blocks that tenants have, by address.
    pub(super) charges: Mutex<HashMap<usize, Charge>>,
    pub(super) limit: Limit,
    pub(super) name: String,
    pub(super) kind: MemoryKind,
    /// How much free memory is kept, and for how long.
    pub(super) retain: Mutex<RetainConf>,
    /// What every address is a multiple of.
    pub(super) align: usize,
    /// The process at whose end it is told what is still held, if it is.
    pub(super) reports_in: AtomicU32,
    /// What it has for guarded blocks, if blocks are guarded: for life.
    pub(super) guard: Option<Guard>,
    /// Allocations, frees and misses that are not told any more.
    pub(super) forgotten: Mutex<[u64; 3]>,
}

/// What a pool is made of.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) kind: MemoryKind,
    pub(crate) memory: Memory,
    /// The limit that the memory's source keeps to.
    pub(crate) limit: Limit,
    pub(crate) budget: Option<Budget>,
    pub(crate) reserved: Option<Budget>,
    pub(crate) retain: RetainConf,
    pub(crate) align: usize,
    pub(crate) guard: Option<Guard>,
    /// What goes through the memory's gate.
    pub(crate) flow: Arc<Flow>,
}

/// A pool at rest: its locks are held and no thread is inside its cache. Ends when dropped.
pub(crate) struct Rest {
    heap: &'static Heap,
    // In the order in which they are let go.
    line: AtRest,
    _ledgers: Vec<ledger::Rest<'static>>,
    _watchers: MutexGuard<'static, Arc<Watchers>>,
    _retain: MutexGuard<'static, RetainConf>,
    _charges: MutexGuard<'static, HashMap<usize, Charge>>,
    _forgotten: MutexGuard<'static, [u64; 3]>,
    _core: MutexGuard<'static, Option<Core>>,
    _guard: Option<guard::Rest>,
    _shelves: Vec<MutexGuard<'static, Shelf>>,
    roll: MutexGuard<'static, Roll>,
}

impl Rest {
    /// In a child of a fork: those who waited were other threads, which it does not have.
    pub(super) fn forget_line(&mut self) {
        self.line.forget();
        self.heap.turn_detour(&self.roll, Detour::Awaited, false);
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        if !self.heap.is_closed() {
            self.roll.caches.iter().for_each(|cache| cache.claim.give_up());
        }
    }
}

/// A lock whose data no panic of ours can leave half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The class of a small block for a request, and the bytes of its blocks.
#[inline]
pub(super) fn small(bytes: usize, align: usize) -> Option<(usize, usize)> {
    if bytes > SMALL || align > LEAST {
        return small_aligned(bytes, align);
    }
    Some(class_and_bytes(bytes.max(1)))
}

#[cold]
fn small_aligned(bytes: usize, align: usize) -> Option<(usize, usize)> {
    if bytes > SMALL || align > PAGE {
        return None;
    }
    let first = class_of(bytes.max(align));
    let class = (first..CLASSES).find(|class| class_bytes(*class).is_multiple_of(align))?;
    Some((class, class_bytes(class)))
}

/// Bytes of a larger block for a request; none where there are no such sizes.
#[inline]
pub(super) fn large(bytes: usize) -> Option<usize> {
    bytes.max(SMALL + 1).checked_next_multiple_of(PAGE)
}

impl Taken {
    /// The block that a request of this shape was given at this address: what it takes follows from the request alone.
    #[inline]
    pub(crate) fn of(address: usize, bytes: usize, align: usize) -> Self {
        let bytes = match small(bytes, align) {
            Some((_, bytes)) => bytes,
            None => large(bytes).unwrap_or(bytes),
        };
        Self { address, bytes }
    }
}

impl Heap {
    /// A pool of what `parts` answers for its number.
    pub(crate) fn new<E>(parts: impl FnOnce(u64) -> Result<Parts, E>) -> Result<&'static Self, E> {
        let _inside = inside();
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let parts = parts(number)?;
        let heap = Box::leak(Box::new(Self {
            number,
            closed: AtomicBool::new(false),
            alone: AtomicBool::new(true),
            totals: Totals::default(),
            shelves: std::array::from_fn(|_| Mutex::default()),
            core: Mutex::new(Some(Core::new(parts.memory))),
            roll: Mutex::default(),
            detours: AtomicU32::new(
                Detour::Charged.if_so(parts.budget.is_some()) | Detour::Guarded.if_so(parts.guard.is_some()),
            ),
            line: Line::default(),
            watchers: Mutex::new(Arc::new(Watchers::new(PoolLabel::new(
                number,
                &parts.name,
                parts.kind,
                0,
            )))),
            watch_changes: AtomicU64::new(0),
            flow: parts.flow,
            ledgers: Mutex::default(),
            hands: OnceLock::new(),
            budget: parts.budget,
            reserved: parts.reserved,
            charges: Mutex::default(),
            limit: parts.limit,
            name: parts.name,
            kind: parts.kind,
            retain: Mutex::new(parts.retain),
            align: parts.align,
            reports_in: AtomicU32::new(0),
            guard: parts.guard,
            forgotten: Mutex::default(),
        }));
        fork::register(heap);
        Ok(heap)
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
        let shelves = self.shelves.iter().map(lock).collect();
        let guard = self.guard.as_ref().map(Guard::rest);
        let core = lock(&self.core);
        let watchers = lock(&self.watchers);
        let ledgers: Vec<&'static Arc<Ledger>> = lock(&self.ledgers).clone();
        let ledgers = ledgers
            .into_iter()
            .map(|ledger| &**ledger)
            .chain(self.hands.get())
            .chain(self.guard.as_ref().map(Guard::scribe));
        Rest {
            heap: self,
            _shelves: shelves,
            _core: core,
            // Under these nothing else is locked.
            _forgotten: lock(&self.forgotten),
            _charges: lock(&self.charges),
            _retain: lock(&self.retain),
            _watchers: watchers,
            _ledgers: ledgers.map(Ledger::rest).collect(),
            line: self.line.rest(),
            _guard: guard,
            roll,
        }
    }

    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.kind
    }

    #[inline]
    pub(crate) fn align(&self) -> usize {
        self.align
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
        self.send(&cache.claim);
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

    pub(super) fn take_all(&self, stacks: &mut Stacks) {
        stacks.drain(
            |class, blocks| lock(&self.shelves[class]).put(blocks),
            |blocks| self.free_large(blocks),
        );
    }

    /// Runs `work` on every cache while its owner is out.
    pub(super) fn claim(&self, roll: &Roll, work: impl FnMut(&Cache, &mut Stacks)) {
        self.claim_these(&roll.caches.iter().collect::<Vec<_>>(), work);
    }

    /// The same, on some of the caches; the list's lock is held.
    pub(super) fn claim_these(&self, caches: &[&Arc<Cache>], mut work: impl FnMut(&Cache, &mut Stacks)) {
        if caches.is_empty() {
            return;
        }
        for cache in caches {
            cache.claim.want();
        }
        claim::barrier();
        for cache in caches {
            if self.is_closed() {
                cache.keep_wanted(|stacks| work(cache, stacks));
            } else {
                cache.with_wanted(|stacks| work(cache, stacks));
            }
        }
    }

    #[inline]
    pub(super) fn alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed)
    }

    /// Hands a block out.
    #[inline]
    pub(crate) fn allocate(&'static self, bytes: usize, align: usize) -> Result<Taken, AllocError> {
        match self.allocate_hot(bytes, align) {
            Some(taken) => Ok(taken),
            None => self.allocate_slowly(Ask::new(bytes, align)),
        }
    }

    /// Hands a block out that this thread keeps, if there is one and nothing else to do.
    #[inline]
    pub(crate) fn allocate_hot(&'static self, requested: usize, align: usize) -> Option<Taken> {
        self.allocate_despite(Despite::Nothing, requested, align)
    }

    /// The same, in spite of this.
    #[inline]
    pub(super) fn allocate_despite(
        &'static self,
        despite: Despite,
        requested: usize,
        align: usize,
    ) -> Option<Taken> {
        if align > LEAST {
            return None;
        }
        if requested <= SMALL {
            let (class, bytes) = class_and_bytes(requested.max(1));
            return local::with_last(self, |cache| {
                let Done { what: address, tell } = cache.pop(class, requested, bytes, despite)?;
                if tell {
                    self.tell(cache);
                }
                Some(Taken { address, bytes })
            });
        }
        if requested <= KEPT {
            let bytes = requested.next_multiple_of(PAGE);
            return local::with_last(self, |cache| {
                let Done { what: block, tell } = cache.pop_large(bytes, requested, despite)?;
                if tell {
                    self.tell(cache);
                }
                let address = block.address;
                Some(Taken { address, bytes })
            });
        }
        None
    }

    /// Takes a block back; `requested` is what was asked for.
    #[inline]
    pub(crate) fn free(&'static self, taken: Taken, requested: usize) {
        self.free_as(taken, requested, 0);
    }

    /// The same, of a caller who names size and alignment, so that they can be wrong; an alignment of 0 is not named.
    #[inline]
    pub(crate) fn free_as(&'static self, taken: Taken, requested: usize, align: usize) {
        if !self.free_hot(taken, requested) {
            self.free_slowly(taken, requested, align);
        }
    }

    /// Keeps a block in this thread, if there is room and nothing else to do.
    #[inline]
    pub(crate) fn free_hot(&'static self, taken: Taken, requested: usize) -> bool {
        self.free_despite(Despite::Nothing, taken, requested)
    }

    /// The same, in spite of this.
    #[inline]
    pub(super) fn free_despite(&'static self, despite: Despite, taken: Taken, requested: usize) -> bool {
        let Taken { address, bytes } = taken;
        let kept = local::with_last(self, |cache| {
            let Done { tell, .. } = if bytes <= SMALL {
                cache.push(class_of(bytes), address, requested, bytes, despite)?
            } else if bytes <= KEPT {
                cache.push_large(Free { address, bytes }, requested, despite)?
            } else {
                return None;
            };
            if tell {
                self.tell(cache);
            }
            Some(())
        });
        kept.is_some()
    }

    #[cold]
    #[inline(never)]
    pub(super) fn tell(&self, cache: &Cache) {
        cache.tally.tell(&self.totals, self.alone());
    }
}
