//! The state that all handles of a pool share, and the path of a request.

use super::charges::Charges;
use super::observe::info;
use super::raw::RawBlocks;
use super::state::{Cell, Core, Locked, Memory, Returned, request};
use super::{DevicePool, Held, Terms};
use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::source::CudaMemory;
use crate::stream::{CudaStream, captures};
use crate::{captured, fork, later};
use millpond_account::budget::{Budget, Charge, Refusal};
use millpond_account::error::AllocError;
use millpond_account::event::PoolLabel;
use millpond_account::memory::MemoryKind;
use millpond_account::post_mortem::{Lister, PostMortem, Survey};
use millpond_account::watchers::Watchers;
use millpond_engine::{self as engine, Block, Limit, RetainConf, Source, SourceError, Stats, Stream};
use millpond_os::device::Device;
use millpond_os::reentrancy::inside;
use millpond_pool::pool::{PoolHeap, SourceTraffic};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The parts from which a pool is made.
pub(super) struct Parts {
    pub(super) device: CudaDevice,
    pub(super) memory: CudaMemory,
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) limit: Limit,
    pub(super) engine: Memory,
    pub(super) flow: Arc<SourceTraffic>,
    pub(super) budget: Option<Budget>,
    pub(super) reserved: Option<Budget>,
    /// The settings that limit how much memory the pool keeps, and for how long.
    pub(super) retain: RetainConf,
    pub(super) zero_on_reuse: bool,
    pub(super) leak_report: bool,
    pub(super) direct: bool,
    pub(super) of_graph: bool,
    pub(super) is_foreign: bool,
}

pub(super) struct Shared {
    pub(super) parts: Fixed,
    core: Cell,
    /// Blocks that were returned while another thread held the core or a request waited for a block, and whether there are any.
    aside: Mutex<Vec<Returned>>,
    any_aside: AtomicBool,
    /// The number of requests that wait for a returned block, and the condition variable that wakes them.
    waiting: AtomicUsize,
    came_back: Condvar,
    pub(super) watchers: Mutex<Arc<Watchers>>,
    /// Whether the pool has watchers. Nothing else is checked while it has none.
    pub(super) watched: AtomicBool,
    pub(super) changes: AtomicU64,
    pub(super) flow: Arc<SourceTraffic>,
    pub(super) retain: Mutex<RetainConf>,
    pub(super) zero_on_reuse: AtomicBool,
    pub(super) raw: OnceLock<RawBlocks>,
    /// The charges of blocks to budgets, by address.
    pub(super) charges: Mutex<HashMap<u64, Vec<Charge>>>,
}

/// The properties of a pool that never change.
pub(super) struct Fixed {
    pub(super) device: CudaDevice,
    pub(super) memory: CudaMemory,
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) limit: Limit,
    /// The budget of allocated bytes.
    pub(super) budget: Option<Budget>,
    /// The budget of reserved bytes.
    pub(super) reserved: Option<Budget>,
    /// Whether live blocks are reported when the process ends.
    pub(super) leak_report: bool,
    pub(super) direct: bool,
    /// Whether a graph has recorded the addresses of the blocks. If so, no memory is given back before the pool ends.
    pub(super) of_graph: bool,
    /// Whether another library captures this graph. Pools do not know its captures, so any stream may be one of them.
    pub(super) is_foreign: bool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) static POOLS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Returns every live pool of this process. The child of a process that uses CUDA has none.
pub(super) fn all_pools() -> Vec<Arc<Shared>> {
    if !fork::is_in_use() {
        return Vec::new();
    }
    // An observer of the program's pool may ask for the pools, so nothing is allocated from it under the lock.
    let _inside = inside();
    let mut pools = lock(&POOLS);
    pools.retain(|pool| pool.strong_count() > 0);
    pools.iter().filter_map(Weak::upgrade).collect()
}

/// Returns the live pools of one device.
pub(super) fn pools_of(device: u32) -> Vec<Arc<Shared>> {
    let mut pools = all_pools();
    pools.retain(|pool| pool.parts.device.number() == device);
    pools
}

/// Lists the memory that a pool holds, for the error of a refused request.
struct PoolLister(Weak<Shared>);

impl Lister for PoolLister {
    fn list(&self, survey: &mut Survey) {
        if let Some(pool) = self.0.upgrade() {
            pool.survey(survey);
        }
    }
}

/// Converts an error of the driver to an allocation error.
pub(crate) fn refused(error: CudaError) -> AllocError {
    AllocError::Cuda(Box::new(error))
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let label = PoolLabel::new(
            parts.number,
            &parts.name,
            MemoryKind::Device,
            Device::Cuda(parts.device.number()),
        )
        .under(parts.engine.policy().name());
        let shared = Arc::new(Self {
            parts: Fixed {
                device: parts.device,
                memory: parts.memory,
                number: parts.number,
                name: parts.name,
                limit: parts.limit,
                budget: parts.budget,
                reserved: parts.reserved,
                leak_report: parts.leak_report,
                direct: parts.direct,
                of_graph: parts.of_graph,
                is_foreign: parts.is_foreign,
            },
            core: Mutex::new(Some(Core {
                memory: parts.engine,
                account: Stats::default(),
                returned: Vec::new(),
                ticks: 0,
            })),
            aside: Mutex::default(),
            any_aside: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            came_back: Condvar::new(),
            watchers: Mutex::new(Arc::new(Watchers::new(label))),
            watched: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            flow: parts.flow,
            retain: Mutex::new(parts.retain),
            zero_on_reuse: AtomicBool::new(parts.zero_on_reuse),
            raw: OnceLock::new(),
            charges: Mutex::default(),
        });
        let of = &shared.parts;
        let told = of.budget.as_ref().or(of.reserved.as_ref());
        // A graph's pool is charged to the budget of another pool, and that pool is its lister.
        if let Some(budget) = told.filter(|_| !of.of_graph) {
            budget.set_lister(Some(Arc::new(PoolLister(Arc::downgrade(&shared)))));
        }
        super::live::provide();
        {
            let _inside = inside();
            let mut pools = lock(&POOLS);
            pools.retain(|pool| pool.strong_count() > 0);
            pools.push(Arc::downgrade(&shared));
        }
        #[cfg(feature = "record")]
        if let Some(sink) = shared.sink() {
            shared.change_watchers(|watchers| (watchers.with_sink(Some(sink)), ()));
        }
        shared
    }

    /// Locks the core and frees returned blocks in the engine. Fails in a forked process, and if a panic has broken the pool.
    pub(super) fn core(&self) -> Result<Locked<'_>, CudaError> {
        let mut core = self.lock_core()?;
        self.settle(&mut core);
        Ok(core)
    }

    /// Locks the core and fetches the blocks that were set aside.
    #[inline(always)]
    fn lock_core(&self) -> Result<Locked<'_>, CudaError> {
        fork::check()?;
        let mut core = Locked::wait(&self.core)?;
        self.fetch(&mut core);
        Ok(core)
    }

    pub(super) fn as_it_is(&self) -> Locked<'_> {
        Locked::for_figures(&self.core)
    }

    /// Moves the blocks that were set aside to the core's list of returned blocks.
    #[inline]
    fn fetch(&self, core: &mut Core) {
        #[cold]
        fn append(pool: &Shared, core: &mut Core) {
            let mut aside = lock(&pool.aside);
            pool.any_aside.store(false, Ordering::Release);
            core.returned.append(&mut aside);
        }
        if self.any_aside.load(Ordering::Acquire) {
            append(self, core);
        }
    }

    /// Frees returned blocks in the engine. During a capture, the blocks that captured streams use stay in the list.
    fn settle(&self, core: &mut Core) {
        if captured::any() {
            let waiting = core.take_captured(self.parts.of_graph);
            core.free_returned();
            core.returned = waiting;
        } else {
            core.free_returned();
        }
    }

    /// Puts a returned block in the core's list if the core is not locked. Otherwise sets it aside.
    fn leave(&self, returned: Returned) {
        // A request that waits checks only the blocks that were set aside.
        if self.waiting.load(Ordering::SeqCst) == 0
            && let Some(mut core) = Locked::now(&self.core)
        {
            core.returned.push(returned);
            return;
        }
        self.set_aside(returned);
    }

    /// Sets a returned block aside for the next holder of the core.
    #[cold]
    fn set_aside(&self, returned: Returned) {
        let mut aside = lock(&self.aside);
        aside.push(returned);
        self.any_aside.store(true, Ordering::Release);
        drop(aside);
        self.came_back.notify_all();
    }

    /// Runs `work` on the core unless another thread holds it, because that thread may be waiting for the device. Does not process returned
    /// blocks, so the driver is not called for them.
    pub(super) fn try_peek<R>(&self, work: impl FnOnce(&mut Core) -> R) -> Option<R> {
        fork::check().ok()?;
        Some(work(&mut *Locked::now(&self.core)?))
    }

    /// Like [`with_core`](Self::with_core), but does nothing if another thread holds the core.
    pub(super) fn try_with_core<R>(&self, work: impl FnOnce(&mut Core) -> R) -> Option<R> {
        let answer = self.try_peek(|core| {
            self.fetch(core);
            self.settle(core);
            work(core)
        });
        self.tell_flow();
        answer
    }

    /// Runs `work` on the core, and reports the bytes that were taken from the device and given back meanwhile.
    pub(super) fn with_core<R>(&self, work: impl FnOnce(&mut Core) -> R) -> Result<R, CudaError> {
        let answer = work(&mut *self.core()?);
        self.tell_flow();
        Ok(answer)
    }

    /// Allocates a block that is charged to budgets, and notifies the watchers.
    #[inline(never)]
    fn allocate_charged(
        &self,
        bytes: u64,
        stream: &CudaStream,
        terms: &Terms,
        until: Option<Instant>,
    ) -> Result<Held, AllocError> {
        let mut charges = Charges::of(self, terms);
        charges.raise(bytes, until)?;
        let block = self.place(bytes, stream, until)?;
        match charges.raise(block.bytes(), until) {
            Ok(()) => {
                self.tell_allocated(&block);
                charges.keep(block.address());
                Ok(Held {
                    block,
                    is_charged: true,
                })
            }
            Err(error) => {
                if let Ok(mut core) = self.core() {
                    core.free(block, &[]);
                }
                Err(error)
            }
        }
    }

    /// Requests a block. If memory is short, this trims other pools, and waits until the deadline.
    #[inline(always)]
    fn place(&self, bytes: u64, stream: &CudaStream, until: Option<Instant>) -> Result<Block, AllocError> {
        match self.ask(bytes, stream) {
            Err(error) if error.is_out_of_memory() => self.place_in_shortage(error, bytes, stream, until),
            outcome => outcome,
        }
    }

    /// Trims other pools and retries. If there is a deadline, this then waits for returned blocks and retries until the deadline.
    #[cold]
    fn place_in_shortage(
        &self,
        error: AllocError,
        bytes: u64,
        stream: &CudaStream,
        until: Option<Instant>,
    ) -> Result<Block, AllocError> {
        let mut outcome = if self.trim_others() {
            self.ask(bytes, stream)
        } else {
            Err(error)
        };
        let Some(until) = until else { return outcome };
        // From here on, other threads set returned blocks aside and wake this one.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut trimmed = Instant::now();
        while outcome.as_ref().is_err_and(AllocError::is_out_of_memory) && Instant::now() < until {
            self.wait_for_block(until);
            if trimmed.elapsed() > ASK_OTHERS {
                self.trim_others();
                trimmed = Instant::now();
            }
            outcome = self.ask(bytes, stream);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    /// Requests a block from the list of returned blocks or from the engine.
    #[inline(always)]
    fn ask(&self, bytes: u64, stream: &CudaStream) -> Result<Block, AllocError> {
        let mut core = self.lock_core().map_err(refused)?;
        if !captured::any()
            && let Some(block) = core.repeat(bytes, stream)
        {
            return Ok(block);
        }
        self.ask_engine(core, bytes, stream)
    }

    /// Frees the returned blocks and requests a block from the engine.
    #[inline(never)]
    fn ask_engine(
        &self,
        mut locked: Locked<'_>,
        bytes: u64,
        stream: &CudaStream,
    ) -> Result<Block, AllocError> {
        let core = &mut *locked;
        self.settle(core);
        let number = core.source().number_of(stream);
        if let Err(error) = core.usable() {
            drop(locked);
            return Err(self.unusable(error, bytes));
        }
        let request = request(bytes, Stream(number));
        let hits = core.memory.stats().hits;
        let outcome = core.memory.allocate(request);
        if let Ok(block) = outcome {
            let hit = core.memory.stats().hits - hits;
            let account = &mut core.account;
            account.requested.add(block.requested());
            account.allocated.add(block.bytes());
            account.allocations += 1;
            account.hits += hit;
            return match core.usable() {
                Ok(()) => Ok(block),
                // The engine could not wait for a stream just now, so the block may still be in use.
                Err(error) => {
                    core.free(block, &[]);
                    drop(locked);
                    Err(self.unusable(error, bytes))
                }
            };
        }
        let refusal = core.memory.source_mut().inner_mut().take_refusal();
        let is_held = matches!(outcome, Err(engine::AllocError::Source(SourceError::Held { .. })));
        // If the end of the capture would not make enough room either, the memory is short.
        let shortage = is_held.then(|| core.shortage(bytes)).flatten();
        drop(locked);
        outcome.map_err(|why| self.refusal(shortage.unwrap_or(why), refusal, bytes))
    }

    /// Returns the error for a request while no block can be handed out. A capture ends eventually, so its error is a shortage of memory,
    /// for which a request may wait. A lost device stays unusable.
    fn unusable(&self, error: CudaError, bytes: u64) -> AllocError {
        match error {
            CudaError::Captured => {
                let held = engine::AllocError::Source(SourceError::Held { requested: bytes });
                self.refusal(held, None, bytes)
            }
            error => refused(error),
        }
    }

    /// Converts a refusal by the engine or by a budget to an allocation error.
    fn refusal(&self, why: engine::AllocError, by_budget: Option<Refusal>, bytes: u64) -> AllocError {
        match by_budget {
            Some(refusal) if why.is_out_of_memory() => AllocError::Budget(Box::new(refusal.into_error(None))),
            _ => AllocError::of(why, || self.post_mortem(bytes)),
        }
    }

    /// Allocates a block for the pool itself, which is not counted in the account of callers.
    pub(super) fn take_own(&self, bytes: u64) -> Result<Block, AllocError> {
        let taken = self.with_core(|core| {
            let taken = core.memory.allocate(request(bytes, Stream::DEFAULT));
            (taken, core.memory.source_mut().inner_mut().take_refusal())
        });
        let (taken, refusal) = taken.map_err(refused)?;
        taken.map_err(|why| self.refusal(why, refusal, bytes))
    }

    /// Waits until a block has been set aside or a short time has passed, because nothing notifies the pool of the device's progress.
    fn wait_for_block(&self, until: Instant) {
        const LOOK: Duration = Duration::from_millis(2);
        let aside = lock(&self.aside);
        if aside.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let woken = self.came_back.wait_timeout(aside, left.min(LOOK));
            drop(woken.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Trims the other pools of the device and those that share a budget with this one. Returns whether memory may have become free.
    fn trim_others(&self) -> bool {
        let mut any = false;
        for other in all_pools() {
            if !std::ptr::eq(&raw const *other, self) && !other.parts.of_graph && self.competes_with(&other) {
                let returned = other.with_core(|core| core.memory.compact().returned());
                any |= returned.is_ok_and(|bytes| bytes > 0);
            }
        }
        if let Some(reserved) = &self.parts.reserved {
            PoolHeap::trim_all_of(reserved);
            any = true;
        }
        any
    }

    fn competes_with(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.parts.reserved, &other.parts.reserved);
        let shares = ours.as_ref().zip(theirs.as_ref());
        self.parts.device.number() == other.parts.device.number()
            || shares.is_some_and(|(ours, theirs)| ours.shares_with(theirs))
    }

    pub(super) fn take_back(&self, held: Held, uses: Option<Box<[CudaStream]>>) {
        if fork::is_forked() {
            return;
        }
        // The charges are refunded last.
        let Held { block, is_charged } = held;
        // Another block may have the address as soon as this one is left.
        let _charges = is_charged.then(|| lock(&self.charges).remove(&block.address()));
        if self.watched.load(Ordering::Acquire) {
            // The block belongs to its owner until here, so the check cannot fail.
            let _ = self.watchers().freed(&info(&block));
        }
        self.leave(Returned { block, uses });
        if self.parts.direct {
            // The pool keeps nothing: this gives the block back to the driver at once.
            drop(self.core());
            self.tell_flow();
        }
    }

    /// Returns a report of the blocks that hold the memory, for a request that was refused.
    pub(super) fn post_mortem(&self, requested: u64) -> PostMortem {
        let mut survey = Survey::new(requested);
        survey.limit(self.parts.limit.bytes(), self.parts.limit.used());
        self.survey(&mut survey);
        survey.elsewhere(self.elsewhere());
        survey.finish()
    }

    fn survey(&self, survey: &mut Survey) {
        if let Ok(core) = self.core() {
            let memory = &core.memory;
            let free = memory.source().free_bytes().unwrap_or(0);
            survey.space(free, memory.largest_hole(), memory.stats().cached());
            memory.policy().layout(&mut |piece| survey.piece(piece));
        }
        match self.watchers().ledger() {
            Some(ledger) => ledger.survey(survey),
            None => survey.no_account(),
        }
    }

    /// Returns the bytes of the device that are in use outside of this process's pools: by other processes, by other libraries and by the
    /// driver itself.
    pub(super) fn elsewhere(&self) -> u64 {
        let Ok(memory) = self.parts.device.memory() else {
            return 0;
        };
        let pools = pools_of(self.parts.device.number());
        let ours: u64 = pools.iter().map(|pool| pool.as_it_is().reserved().current).sum();
        let ours = ours + later::bytes(self.parts.device.number());
        (memory.total - memory.free.min(memory.total)).saturating_sub(ours)
    }
}

impl DevicePool {
    /// Allocates a block for a stream and notifies the watchers. For 0 bytes no block is allocated. Also returns the pool to which the
    /// block is returned. This is the graph's pool while the stream is captured.
    pub(crate) fn allocate(
        &self,
        bytes: usize,
        stream: &CudaStream,
        terms: &Terms,
    ) -> Result<(Self, Option<Held>), AllocError> {
        if bytes == 0 {
            stream.expect_on(self.device()).map_err(refused)?;
            return Ok((self.clone(), None));
        }
        let pool = self.serving(stream)?;
        let shared = &pool.0;
        let (parts, size) = (&shared.parts, bytes as u64);
        let refuse = |error| shared.tell_refusal(error, bytes);
        stream
            .expect_on(&parts.device)
            .map_err(|error| refuse(refused(error)))?;
        let until = terms.wait.map(|wait| Instant::now() + wait.min(AGES));
        let held = if parts.budget.is_some() || terms.budget.is_some() {
            shared.allocate_charged(size, stream, terms, until)
        } else {
            // The functions on the path of a hit are inlined. Otherwise each of them would copy the block through memory.
            shared.place(size, stream, until).map(|block| {
                shared.tell_allocated(&block);
                Held {
                    block,
                    is_charged: false,
                }
            })
        };
        let held = held.map_err(refuse)?;
        Ok((pool, Some(held)))
    }

    /// Returns the pool that serves a stream: a graph's while the stream is captured, otherwise this one.
    fn serving(&self, stream: &CudaStream) -> Result<Self, AllocError> {
        let captured = match captured::any() {
            true => captures::pool_of(stream).map_err(refused)?,
            false => None,
        };
        if self.0.parts.is_foreign {
            return Ok(self.clone());
        }
        // Launches of the graph still write to its free memory.
        if self.0.parts.of_graph && captured != Some(self.id()) {
            return Err(refused(CudaError::OfGraph));
        }
        let of_graph = captured.and_then(|number| {
            let mut pools = all_pools().into_iter();
            pools.find(|pool| pool.parts.number == number)
        });
        Ok(of_graph.map_or_else(|| self.clone(), Self))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.core.is_poisoned() {
            // It is not known which memory of the pool the device still uses, so all of it stays allocated until the process ends.
            std::mem::forget(lock(&self.core).take());
            return;
        }
        // The streams that use the last returned blocks are registered with the source, because it waits for its streams before it gives
        // memory back.
        let Ok(mut core) = self.core() else { return };
        for used in std::mem::take(&mut core.returned).iter().flat_map(Returned::uses) {
            core.source().number_of(used);
        }
    }
}

/// The interval at which a waiting request trims other pools.
const ASK_OTHERS: Duration = Duration::from_millis(50);
/// The longest wait, which keeps the sum with the current time in range.
const AGES: Duration = Duration::from_secs(1 << 30);
