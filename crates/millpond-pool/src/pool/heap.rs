//! The shared part of a pool: the list of caches, the shelves of small blocks, and the engine.

use super::account::{Tally, Totals};
use super::biased_lock;
use super::cache::{Cache, Stacks};
use super::classes::{CLASSES, LEAST, PAGE, SMALL, class_and_bytes, class_bytes, class_of};
use super::core::{Core, Memory};
use super::fork;
use super::guard::{self, Guard};
use super::lifetime::Lifetime;
use super::shelf::Shelf;
use super::slow_path_reason::{AtRest, SlowPathReason, WaitQueue};
use super::still::StillLedger;
use super::watch::SourceTraffic;
use millpond_account::budget::{Budget, Charge};
use millpond_account::event::PoolLabel;
use millpond_account::ledger::{Filter, Ledger};
use millpond_account::memory::MemoryKind;
use millpond_account::watchers::Watchers;
use millpond_engine::{Limit, RetainConf};
use millpond_os::device::Device;
use millpond_os::ranked::{Locked, Order, Rank, Ranked, SHELVES};
use millpond_os::reentrancy::inside;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawBlock {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

const _: () = assert!(CLASSES <= SHELVES);

/// The caches of all threads, and the counters of threads that ended.
#[derive(Default)]
pub(super) struct CacheRegistry {
    pub(super) caches: Vec<Arc<Cache>>,
    pub(super) ended: Tally,
}

impl CacheRegistry {
    pub(super) fn tallies(&self) -> impl Iterator<Item = &Tally> {
        self.caches.iter().map(|c| &c.tally).chain([&self.ended])
    }
}

/// The shared part of a pool. It is never freed: blocks may outlive every handle of the pool, and are freed through it. Its
/// large parts are freed when the pool has ended, which means that no handle and no block is left.
pub struct Heap {
    number: u64,
    pub(super) lifetime: Lifetime,
    /// Whether at most one thread has ever had a cache.
    alone: AtomicBool,
    pub(super) totals: Totals,
    pub(super) shelves: [Ranked<Shelf>; CLASSES],
    pub(super) core: Ranked<Option<Core>>,
    pub(super) registry: Ranked<CacheRegistry>,
    /// The reasons why calls leave the fast path. Changed under the lock of `registry`.
    pub(super) reasons: AtomicU32,
    pub(super) line: WaitQueue,
    /// The observers, the number of their last change, and the source traffic that was not reported yet.
    pub(super) watchers: Ranked<Arc<Watchers>>,
    pub(super) watch_changes: AtomicU64,
    pub(super) flow: Arc<SourceTraffic>,
    /// The ledgers of live blocks that may still be in use, and the ledger of manually allocated blocks.
    pub(super) ledgers: Ranked<Vec<Arc<Ledger>>>,
    pub(super) hands: OnceLock<Arc<Ledger>>,
    /// The filter of the blocks that may be in a sampled ledger. After this pool has ended, another pool may use it.
    pub(super) filter: OnceLock<&'static Filter>,
    /// The budget that each block is charged to, and the budget of reserved bytes.
    pub(super) budget: Option<Budget>,
    pub(super) reserved: Option<Budget>,
    /// The charges of tenants' blocks, by address.
    pub(super) charges: Ranked<HashMap<usize, Charge>>,
    pub(super) limit: Limit,
    pub(super) name: String,
    pub(super) kind: MemoryKind,
    /// The name of the policy that places blocks.
    pub(super) policy: &'static str,
    /// The settings of retained memory: how much free memory is kept, and for how long.
    pub(super) retain: Ranked<RetainConf>,
    /// The alignment of every address.
    pub(super) align: usize,
    /// The process that reports live blocks when it ends, or 0 if none does.
    pub(super) reports_in: AtomicU32,
    /// The state of guarded blocks, if the pool guards blocks. Does not change during the pool's life.
    pub(super) guard: Option<Guard>,
    /// Allocations, frees and misses that are no longer reported.
    pub(super) forgotten: Ranked<[u64; 3]>,
    /// Whether the blocks are in the [map of pages](super::page_map).
    pub(super) is_mapped: bool,
}

/// The parts of a new pool.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) kind: MemoryKind,
    pub(crate) memory: Memory,
    /// The limit that the memory's source enforces.
    pub(crate) limit: Limit,
    pub(crate) budget: Option<Budget>,
    pub(crate) reserved: Option<Budget>,
    pub(crate) retain: RetainConf,
    pub(crate) align: usize,
    pub(crate) guard: Option<Guard>,
    /// The traffic between the pool and its source.
    pub(crate) flow: Arc<SourceTraffic>,
    /// Whether the blocks are in the map of pages.
    pub(crate) is_mapped: bool,
}

/// A pool that is stopped for a fork: its locks are held, and no thread is inside its cache. Dropping this lets the pool continue.
pub(crate) struct ForkGuard {
    heap: &'static Heap,
    // The fields are in the order in which they are dropped.
    accounts: Vec<StillLedger>,
    line: AtRest,
    ledgers: Locked<'static, Vec<Arc<Ledger>>>,
    _watchers: Locked<'static, Arc<Watchers>>,
    _retain: Locked<'static, RetainConf>,
    _charges: Locked<'static, HashMap<usize, Charge>>,
    _forgotten: Locked<'static, [u64; 3]>,
    _core: Locked<'static, Option<Core>>,
    _guard: Option<guard::GuardLocks>,
    _shelves: Vec<Locked<'static, Shelf>>,
    registry: Locked<'static, CacheRegistry>,
}

impl ForkGuard {
    /// Also takes the locks of the pool's ledgers. Call this after the other locks of all pools are taken.
    pub(super) fn take_accounts(&mut self) {
        let heap = self.heap;
        let ledgers = self.ledgers.iter();
        let ledgers = ledgers
            .chain(heap.hands.get())
            .chain(heap.guard.as_ref().map(Guard::ledger));
        self.accounts = ledgers.map(StillLedger::of).collect();
    }

    /// Forgets the other threads in the child of a fork, because they do not exist there: no thread waits for memory, and no thread is
    /// inside a cache. A cache whose owner [may be inside](biased_lock::BiasedLock::wait) stays inaccessible. This allocates and frees
    /// nothing.
    pub(super) fn forget_others(&mut self) {
        let caches = self.registry.caches.iter();
        caches.for_each(|cache| cache.claim.forget_owner());
        self.line.forget();
        self.heap
            .switch_reason(&self.registry, SlowPathReason::Awaited, false);
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        if !self.heap.is_shut() {
            self.registry
                .caches
                .iter()
                .for_each(|cache| cache.claim.give_up());
        }
    }
}

/// Takes a lock. No panic of this crate can leave its data inconsistent.
pub(super) fn lock<T>(mutex: &Ranked<T>) -> Locked<'_, T> {
    mutex.lock()
}

/// Returns the class of a small block for a request, and the bytes of its blocks.
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

/// Returns the bytes of a larger block for a request, or `None` if the size is too large.
#[inline]
pub(super) fn large(bytes: usize) -> Option<usize> {
    bytes.max(SMALL + 1).checked_next_multiple_of(PAGE)
}

impl RawBlock {
    /// Returns the block at this address that was allocated for a request of this size and alignment. Its size follows from the
    /// request alone.
    #[inline]
    pub(crate) fn of(address: usize, bytes: usize, align: usize) -> Self {
        let bytes = match small(bytes, align) {
            Some((_, bytes)) => bytes,
            None => large(bytes).unwrap_or(bytes),
        };
        Self { address, bytes }
    }
}

/// Returns a number that no other pool of this process ever has.
pub fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

impl Heap {
    /// Creates a pool from the parts that `parts` returns for its number and its lock order.
    pub(crate) fn new<E>(parts: impl FnOnce(u64, Order) -> Result<Parts, E>) -> Result<&'static Self, E> {
        let _inside = inside();
        let number = next_number();
        let order = Order::new();
        let parts = parts(number, order)?;
        let policy = parts.memory.policy().name();
        let label = PoolLabel::new(number, &parts.name, parts.kind, Device::Host).under(policy);
        let heap: &'static Self = Box::leak(Box::new(Self {
            number,
            lifetime: Lifetime::new(),
            alone: AtomicBool::new(true),
            totals: Totals::default(),
            shelves: std::array::from_fn(|class| order.nth(Rank::Shelf, class, Shelf::default())),
            policy,
            core: order.lock(Rank::Core, Some(Core::new(parts.memory))),
            registry: order.lock(Rank::CacheRegistry, CacheRegistry::default()),
            reasons: AtomicU32::new(
                SlowPathReason::Charged.if_so(parts.budget.is_some())
                    | SlowPathReason::Guarded.if_so(parts.guard.is_some()),
            ),
            line: WaitQueue::new(order),
            watchers: order.lock(Rank::Watchers, Arc::new(Watchers::new(label))),
            watch_changes: AtomicU64::new(0),
            flow: parts.flow,
            ledgers: order.lock(Rank::Ledgers, Vec::new()),
            hands: OnceLock::new(),
            filter: OnceLock::new(),
            budget: parts.budget,
            reserved: parts.reserved,
            charges: order.lock(Rank::Charges, HashMap::new()),
            limit: parts.limit,
            name: parts.name,
            kind: parts.kind,
            retain: order.lock(Rank::Retain, parts.retain),
            align: parts.align,
            reports_in: AtomicU32::new(0),
            guard: parts.guard,
            forgotten: order.lock(Rank::Forgotten, [0; 3]),
            is_mapped: parts.is_mapped,
        }));
        fork::register(heap);
        Ok(heap)
    }

    /// Adds the pool to the recording, and starts the recording and the monitor that the environment requests. Their threads allocate, so
    /// the program's pool must already be the one that the global allocator finds.
    pub(crate) fn announce(&'static self) {
        let _inside = inside();
        #[cfg(feature = "record")]
        millpond_record::attach(&self);
        #[cfg(feature = "monitor")]
        millpond_monitor::start_from_environment();
    }

    /// Stops the pool, except for its [ledgers](ForkGuard::take_accounts).
    pub(crate) fn rest(&'static self) -> ForkGuard {
        let registry = lock(&self.registry);
        for cache in &registry.caches {
            cache.claim.want();
        }
        biased_lock::barrier();
        for cache in &registry.caches {
            // No other thread accesses a cache whose owner may be inside, not even in a child of this process.
            let _ = cache.claim.wait();
        }
        let shelves = self.shelves.iter().map(lock).collect();
        let guard = self.guard.as_ref().map(Guard::rest);
        let core = lock(&self.core);
        let watchers = lock(&self.watchers);
        ForkGuard {
            heap: self,
            _shelves: shelves,
            _core: core,
            _watchers: watchers,
            _retain: lock(&self.retain),
            _charges: lock(&self.charges),
            _forgotten: lock(&self.forgotten),
            ledgers: lock(&self.ledgers),
            line: self.line.rest(),
            accounts: Vec::new(),
            _guard: guard,
            registry,
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

    /// Returns true if the pool no longer allocates.
    pub fn is_closed(&self) -> bool {
        self.lifetime.is_closed()
    }

    /// Creates a cache for a thread that has none yet. Returns `None` if the pool is closed or broken.
    pub(crate) fn admit(&self) -> Option<Arc<Cache>> {
        let mut registry = lock(&self.registry);
        if self.is_shut() {
            return None;
        }
        let cache = Arc::new(Cache::new());
        self.send(&cache.claim);
        let alone = registry.caches.is_empty();
        if !alone && self.alone.swap(false, Ordering::Relaxed) {
            // From now on the first thread reports larger changes of its counters instead of every new peak.
            self.claim(&registry, |cache, _| cache.tally.tell(&self.totals, false));
        }
        cache.tally.tell(&self.totals, alone);
        registry.caches.push(Arc::clone(&cache));
        Some(cache)
    }

    /// Takes back the cached blocks and the counters of a thread that ends.
    pub(crate) fn retire(&self, cache: &Arc<Cache>) {
        let _minds = self.mind_panics();
        // While this lock is held, no other thread claims the cache, unless the pool is closed. A closed pool has drained the
        // cache.
        let mut registry = lock(&self.registry);
        let Some(place) = registry.caches.iter().position(|other| Arc::ptr_eq(other, cache)) else {
            // The pool has ended, and has already taken this thread's counters.
            return;
        };
        cache.with(|stacks| self.take_all(stacks));
        cache.tally.tell(&self.totals, false);
        registry.caches.remove(place);
        registry.ended.absorb(&cache.tally);
        drop(registry);
        if self.is_closed() {
            // This may have been the last cache whose owner could still be inside.
            self.end_if_empty();
        }
    }

    pub(super) fn take_all(&self, stacks: &mut Stacks) {
        stacks.drain(
            |class, blocks| lock(&self.shelves[class]).put(class, blocks),
            |blocks| self.free_large(blocks),
        );
    }

    /// Runs `work` on every cache while its owner is outside. Skips caches whose owners [may be
    /// inside](biased_lock::BiasedLock::wait).
    pub(super) fn claim(&self, registry: &CacheRegistry, work: impl FnMut(&Cache, &mut Stacks)) {
        self.claim_these(&registry.caches.iter().collect::<Vec<_>>(), work);
    }

    /// Runs `work` on some of the caches like `claim`. The caller holds the list's lock.
    pub(super) fn claim_these(&self, caches: &[&Arc<Cache>], mut work: impl FnMut(&Cache, &mut Stacks)) {
        if caches.is_empty() {
            return;
        }
        for cache in caches {
            cache.claim.want();
        }
        biased_lock::barrier();
        for cache in caches {
            if self.is_shut() {
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
}
