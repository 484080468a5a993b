//! What all handles of a pool share: the engine under its lock, what came back, and a request's way.

use super::kept::Kept;
use super::{ALIGN, Held, Terms};
use crate::budget::{Budget, Charge, Refusal};
use crate::cuda::device::CudaDevice;
use crate::cuda::error::CudaError;
use crate::cuda::source::{CudaMemory, CudaSource};
use crate::cuda::stream::CudaStream;
use crate::cuda::{fork, graph, later};
use crate::error::AllocError;
use crate::event::{EventKind, Facts, PoolLabel, Watchers};
use crate::memory::MemoryKind;
use crate::pool::{Charged, Flow, PoolHeap};
use crate::post_mortem::{Lister, PostMortem, Survey};
use millpond_engine::{
    self as engine, Block, Engine, Gauge, Limit, Request, RetainConf, Source, Stats, Stream,
};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

pub(super) type Memory = Engine<Kept<Charged<CudaSource>>>;

/// What is under a pool's lock.
pub(super) struct Core {
    pub(super) memory: Memory,
    /// What callers have asked for and hold: the engine's own account has blocks of the pool's own too.
    pub(super) account: Stats,
}

impl Core {
    fn source(&mut self) -> &mut CudaSource {
        self.memory.source_mut().inner_mut().source_mut()
    }

    /// Bytes held from the device. What a graph keeps the engine has given back.
    pub(super) fn reserved(&self) -> Gauge {
        let mut reserved = self.memory.stats().reserved;
        reserved.set(self.memory.source().inner().source().used_bytes());
        reserved
    }

    pub(super) fn note_stream(&mut self, stream: &CudaStream) {
        self.source().number_of(stream);
    }

    /// Whether blocks may be handed out.
    fn usable(&mut self) -> Result<(), CudaError> {
        self.source().usable()
    }

    fn free(&mut self, block: Block, uses: &[Stream]) {
        self.account.requested.sub(block.requested());
        self.account.allocated.sub(block.bytes());
        self.account.frees += 1;
        self.memory.free(block, uses);
    }
}

/// What a pool is made of.
pub(super) struct Parts {
    pub(super) device: CudaDevice,
    pub(super) memory: CudaMemory,
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) limit: Limit,
    pub(super) engine: Memory,
    pub(super) flow: Arc<Flow>,
    pub(super) budget: Option<Budget>,
    pub(super) reserved: Option<Budget>,
    /// How much is kept, and for how long.
    pub(super) retain: RetainConf,
    pub(super) zero_on_reuse: bool,
    pub(super) direct: bool,
    pub(super) of_graph: bool,
}

pub(super) struct Shared {
    pub(super) parts: Fixed,
    core: Mutex<Core>,
    /// Blocks that came back and the driver was not asked about yet: a drop may happen where it must not be called.
    returned: Mutex<Vec<Returned>>,
    /// Requests that wait for one of those, and what wakes them.
    waiting: AtomicUsize,
    came_back: Condvar,
    watchers: Mutex<Arc<Watchers>>,
    /// Whether anybody watches: nothing else is looked at while nobody does.
    watched: AtomicBool,
    changes: AtomicU64,
    flow: Arc<Flow>,
    pub(super) retain: Mutex<RetainConf>,
    pub(super) zero_on_reuse: AtomicBool,
}

/// What never changes of a pool.
pub(super) struct Fixed {
    pub(super) device: CudaDevice,
    pub(super) memory: CudaMemory,
    pub(super) name: String,
    pub(super) limit: Limit,
    /// Of allocated bytes.
    pub(super) budget: Option<Budget>,
    /// Of reserved bytes.
    pub(super) reserved: Option<Budget>,
    pub(super) direct: bool,
    /// Whether a graph has written down where its blocks are: then nothing of it goes back before its end.
    pub(super) of_graph: bool,
}

/// A block that came back, with the streams other than its own that used it. They live until the driver was asked.
struct Returned {
    block: Block,
    /// The stream it was asked for on: kept so that its number stays its own.
    stream: CudaStream,
    uses: Vec<CudaStream>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every pool of this process that lives.
static POOLS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Those of one device.
fn pools_of(device: u32) -> Vec<Arc<Shared>> {
    let mut pools = lock(&POOLS);
    pools.retain(|pool| pool.strong_count() > 0);
    let living = pools.iter().filter_map(Weak::upgrade);
    living
        .filter(|pool| pool.parts.device.number() == device)
        .collect()
}

/// Says what a pool holds, to whoever was refused.
struct PoolLister(Weak<Shared>);

impl Lister for PoolLister {
    fn list(&self, survey: &mut Survey) {
        if let Some(pool) = self.0.upgrade() {
            pool.survey(survey);
        }
    }
}

/// What the driver said, to somebody who asked for memory.
pub(super) fn refused(error: CudaError) -> AllocError {
    AllocError::Cuda(Box::new(error))
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let label = PoolLabel::new(
            parts.number,
            &parts.name,
            MemoryKind::Device,
            parts.device.number(),
        );
        let shared = Arc::new(Self {
            parts: Fixed {
                device: parts.device,
                memory: parts.memory,
                name: parts.name,
                limit: parts.limit,
                budget: parts.budget,
                reserved: parts.reserved,
                direct: parts.direct,
                of_graph: parts.of_graph,
            },
            core: Mutex::new(Core {
                memory: parts.engine,
                account: Stats::default(),
            }),
            returned: Mutex::default(),
            waiting: AtomicUsize::new(0),
            came_back: Condvar::new(),
            watchers: Mutex::new(Arc::new(Watchers::new(label))),
            watched: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            flow: parts.flow,
            retain: Mutex::new(parts.retain),
            zero_on_reuse: AtomicBool::new(parts.zero_on_reuse),
        });
        let of = &shared.parts;
        let told = of.budget.as_ref().or(of.reserved.as_ref());
        // A graph's is charged to the budget of another pool, which tells.
        if let Some(budget) = told.filter(|_| !of.of_graph) {
            budget.set_lister(Some(Arc::new(PoolLister(Arc::downgrade(&shared)))));
        }
        lock(&POOLS).push(Arc::downgrade(&shared));
        shared
    }

    /// The core, once its engine was told of what has come back; none in a process that was forked.
    pub(super) fn core(&self) -> Result<MutexGuard<'_, Core>, CudaError> {
        fork::check()?;
        let mut core = lock(&self.core);
        let mut returned = std::mem::take(&mut *lock(&self.returned));
        if graph::are_captured() {
            self.leave_captured(&mut returned);
        }
        for Returned { block, uses, .. } in returned {
            let source = core.source();
            let uses: Vec<_> = uses
                .iter()
                .map(|stream| Stream(source.number_of(stream)))
                .collect();
            core.free(block, &uses);
        }
        Ok(core)
    }

    /// Of streams that are captured nobody can say how far they have come: blocks that they use wait. The graph's own memory serves
    /// the stream it is captured from at once, as the work will be done in this order.
    fn leave_captured(&self, returned: &mut Vec<Returned>) {
        let of_graph = self.parts.of_graph;
        let waits = |returned: &Returned| {
            let own = !of_graph && graph::is_captured(returned.stream.raw());
            let by_others = |stream: &CudaStream| stream.is_capturing().unwrap_or(true);
            own || returned.uses.iter().any(by_others)
        };
        let (waiting, free) = std::mem::take(returned).into_iter().partition(waits);
        *returned = free;
        let waiting: Vec<_> = waiting;
        lock(&self.returned).extend(waiting);
    }

    /// Does something with the engine, and tells what went to the device and came from it meanwhile.
    pub(super) fn with_core<R>(&self, work: impl FnOnce(&mut Core) -> R) -> Result<R, CudaError> {
        let answer = work(&mut *self.core()?);
        self.tell_flow();
        Ok(answer)
    }

    /// Hands a block out, and tells whoever watches.
    pub(super) fn allocate(
        &self,
        bytes: u64,
        stream: &CudaStream,
        terms: &Terms,
    ) -> Result<Held, AllocError> {
        let outcome = self.allocate_by(bytes, stream, terms);
        if outcome.is_err() && !fork::is_forked() {
            lock(&self.core).account.refusals += 1;
        }
        if self.watched.load(Ordering::Acquire) {
            let watchers = self.watchers();
            match &outcome {
                Ok(held) => watchers.allocated(&facts(&held.block)),
                Err(_) => watchers.note(
                    EventKind::Refused,
                    &Facts {
                        requested: bytes as usize,
                        align: ALIGN as usize,
                        ..Facts::default()
                    },
                ),
            }
        }
        self.tell_flow();
        outcome
    }

    fn allocate_by(&self, bytes: u64, stream: &CudaStream, terms: &Terms) -> Result<Held, AllocError> {
        let device = &self.parts.device;
        stream.expect_on(device).map_err(refused)?;
        let until = terms.wait.map(|wait| Instant::now() + wait.min(AGES));
        let mut charges = Charges::of(self, terms);
        charges.raise(bytes, until)?;
        let block = self.place(bytes, stream, until)?;
        match charges.raise(block.bytes(), until) {
            Ok(()) => Ok(Held {
                block,
                _charges: charges.taken,
            }),
            Err(error) => {
                if let Ok(mut core) = self.core() {
                    core.free(block, &[]);
                }
                Err(error)
            }
        }
    }

    /// Asks the engine and, where memory is short, again: with what other pools of the device keep, and, as long as the request
    /// may wait, with what comes back.
    fn place(&self, bytes: u64, stream: &CudaStream, until: Option<Instant>) -> Result<Block, AllocError> {
        let error = match self.ask(bytes, stream) {
            Err(error) if error.is_out_of_memory() => error,
            outcome => return outcome,
        };
        let mut outcome = if self.trim_others() {
            self.ask(bytes, stream)
        } else {
            Err(error)
        };
        let Some(until) = until else { return outcome };
        // Others are to say at once that something came back.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while outcome.as_ref().is_err_and(AllocError::is_out_of_memory) && Instant::now() < until {
            self.wait_for_block(until);
            outcome = self.ask(bytes, stream);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    fn ask(&self, bytes: u64, stream: &CudaStream) -> Result<Block, AllocError> {
        let mut core = self.core().map_err(refused)?;
        let number = core.source().number_of(stream);
        core.usable().map_err(refused)?;
        let request = Request {
            align: ALIGN,
            ..Request::new(bytes, Stream(number))
        };
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
                // The engine could not wait just now: the block may be in use.
                Err(error) => {
                    core.free(block, &[]);
                    Err(refused(error))
                }
            };
        }
        let refusal = core.memory.source_mut().inner_mut().take_refusal();
        drop(core);
        outcome.map_err(|why| self.refusal(why, refusal, bytes))
    }

    /// What is said to somebody whom the engine refused.
    fn refusal(&self, why: engine::AllocError, by_budget: Option<Refusal>, bytes: u64) -> AllocError {
        match by_budget {
            Some(refusal) if why.is_out_of_memory() => AllocError::Budget(Box::new(refusal.into_error(None))),
            _ => AllocError::of(why, || self.post_mortem(bytes)),
        }
    }

    /// A block for the pool itself, which no account of callers has.
    pub(super) fn take_own(&self, bytes: u64) -> Result<Block, AllocError> {
        let request = Request {
            align: ALIGN,
            ..Request::new(bytes, Stream::DEFAULT)
        };
        let taken = self.with_core(|core| {
            let taken = core.memory.allocate(request);
            (taken, core.memory.source_mut().inner_mut().take_refusal())
        });
        let (taken, refusal) = taken.map_err(refused)?;
        taken.map_err(|why| self.refusal(why, refusal, bytes))
    }

    /// Waits until a block has come back, or for a while: what the device does nobody tells.
    fn wait_for_block(&self, until: Instant) {
        const LOOK: Duration = Duration::from_millis(2);
        let returned = lock(&self.returned);
        if returned.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let woken = self.came_back.wait_timeout(returned, left.min(LOOK));
            drop(woken.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Has other pools of the device give back what no block uses; answers whether that was anything.
    fn trim_others(&self) -> bool {
        let mut any = false;
        for other in pools_of(self.parts.device.number()) {
            if !std::ptr::eq(&raw const *other, self) && !other.parts.of_graph {
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

    pub(super) fn take_back(&self, held: Held, stream: CudaStream, uses: Vec<CudaStream>) {
        if fork::is_forked() {
            return;
        }
        if self.watched.load(Ordering::Acquire) {
            // The block is its owner's until here, so nothing can be wrong with it.
            let _ = self.watchers().freed(&facts(&held.block));
        }
        lock(&self.returned).push(Returned {
            block: held.block,
            stream,
            uses,
        });
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.came_back.notify_all();
        }
        if self.parts.direct {
            // Nothing is kept: the driver has it now.
            drop(self.core());
            self.tell_flow();
        }
    }

    /// Who holds what, for a request that was refused.
    pub(super) fn post_mortem(&self, requested: u64) -> PostMortem {
        let mut survey = Survey::new(requested);
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

    /// Bytes of the device that are in use and that no pool of this process has: other processes', other libraries', and the
    /// driver's own.
    pub(super) fn elsewhere(&self) -> u64 {
        let Ok(memory) = self.parts.device.memory() else {
            return 0;
        };
        let pools = pools_of(self.parts.device.number());
        let ours: u64 = pools.iter().map(|pool| lock(&pool.core).reserved().current).sum();
        let ours = ours + later::bytes(self.parts.device.number());
        (memory.total - memory.free.min(memory.total)).saturating_sub(ours)
    }

    pub(super) fn watchers(&self) -> Arc<Watchers> {
        Arc::clone(&lock(&self.watchers))
    }

    /// Has others watch.
    pub(super) fn change_watchers<R>(&self, change: impl FnOnce(&Watchers) -> (Watchers, R)) -> R {
        let (before, answer) = {
            let mut now = lock(&self.watchers);
            let (made, answer) = change(&now);
            let number = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
            let before = std::mem::replace(&mut *now, Arc::new(made.of_change(number)));
            self.watched.store(!now.is_empty(), Ordering::Release);
            (before, answer)
        };
        // A subscriber's own code may run: outside every lock.
        drop(before);
        answer
    }

    /// Tells what came from the device and went back to it since this was last told.
    pub(super) fn tell_flow(&self) {
        if !self.watched.load(Ordering::Acquire) {
            return;
        }
        for (kind, bytes) in self.flow.drain() {
            if bytes > 0 {
                let facts = Facts {
                    bytes: bytes as usize,
                    ..Facts::default()
                };
                self.watchers().note(kind, &facts);
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What came back last is told of, with the streams that use it: whoever gives memory back waits for these.
        let Ok(mut core) = self.core() else { return };
        let waiting = std::mem::take(&mut *lock(&self.returned));
        for Returned { stream, uses, .. } in waiting {
            for used in uses.iter().chain([&stream]) {
                core.source().number_of(used);
            }
        }
    }
}

/// Where time ends, waiting does not.
const AGES: Duration = Duration::from_secs(1 << 30);

fn facts(block: &Block) -> Facts {
    Facts {
        address: block.address() as usize,
        requested: block.requested() as usize,
        bytes: block.bytes() as usize,
        align: ALIGN as usize,
    }
}

/// What a block is charged to: before it is placed by what was asked for, and then by what it has.
struct Charges {
    budgets: Vec<Budget>,
    taken: Vec<Charge>,
    bytes: u64,
}

impl Charges {
    fn of(pool: &Shared, terms: &Terms) -> Self {
        let own = pool.parts.budget.as_ref();
        let theirs = terms.budget.as_ref();
        // What reaches the pool's own budget by another is charged to it once.
        let reached = own.filter(|own| !theirs.is_some_and(|theirs| theirs.reaches(own)));
        Self {
            budgets: [theirs, reached].into_iter().flatten().cloned().collect(),
            taken: Vec::new(),
            bytes: 0,
        }
    }

    /// Charges what is missing to so many bytes.
    fn raise(&mut self, bytes: u64, until: Option<Instant>) -> Result<(), AllocError> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        for budget in &self.budgets {
            let charge = match until {
                Some(until) => budget.charge_timeout(more, until.saturating_duration_since(Instant::now())),
                None => budget.charge(more),
            };
            let charge = charge.map_err(|error| AllocError::Budget(Box::new(error)))?;
            self.taken.push(charge);
        }
        self.bytes = bytes;
        Ok(())
    }
}
