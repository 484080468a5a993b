//! The state under a pool's lock: the engine, the account of callers and the returned blocks.

use super::ALIGN;
use super::kept::Kept;
use super::shared::lock;
use crate::error::CudaError;
use crate::source::CudaSource;
use crate::stream::{CudaStream, captures};
use millpond_engine::{AllocError, Block, Engine, Gauge, Request, Source, Stats, Stream};
use millpond_os::reentrancy::{Inside, inside};
use millpond_pool::pool::BudgetedSource;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

pub(crate) type Memory = Engine<Kept<BudgetedSource<CudaSource>>>;

/// The state under a pool's lock.
pub(super) struct Core {
    pub(super) memory: Memory,
    /// The blocks that callers have requested and hold. The engine's own account also counts blocks of the pool itself.
    pub(super) account: Stats,
    /// Returned blocks that the engine has not freed yet. Freeing them may call the driver, which is not allowed everywhere that a buffer
    /// is dropped.
    pub(super) returned: Vec<Returned>,
    /// The number of ticks so far.
    pub(super) ticks: u64,
}

impl Core {
    pub(super) fn source(&mut self) -> &mut CudaSource {
        self.memory.source_mut().inner_mut().source_mut()
    }

    /// Returns the bytes held from the device. This includes memory that the engine has given back and a graph still keeps.
    pub(super) fn reserved(&self) -> Gauge {
        let mut reserved = self.memory.stats().reserved;
        reserved.set(self.memory.source().inner().source().used_bytes());
        reserved
    }

    pub(super) fn note_stream(&mut self, stream: &CudaStream) {
        self.source().number_of(stream);
    }

    /// Checks that blocks may be handed out.
    pub(super) fn usable(&mut self) -> Result<(), CudaError> {
        self.source().usable()
    }

    /// Returns the only returned block if the engine would hand it out again. This is the fast path of a loop that allocates and frees.
    #[inline(always)]
    pub(super) fn repeat(&mut self, bytes: u64, stream: &CudaStream) -> Option<Block> {
        let [Returned { block, uses }] = self.returned.as_slice() else {
            return None;
        };
        let source = self.memory.source_mut().inner_mut().source_mut();
        let on = block.stream();
        let same = source.stream_of(on.0).is_some_and(|own| own.is(stream.raw()));
        if !same || uses.is_some() || source.usable().is_err() {
            return None;
        }
        if !self.memory.repeat(block, &request(bytes, on)) {
            return None;
        }
        let block = self.returned.pop()?.block;
        self.account.frees += 1;
        self.account.allocations += 1;
        self.account.hits += 1;
        Some(block)
    }

    /// Frees the returned blocks in the engine. The list's allocation is reused, so that an allocation and a free allocate nothing.
    pub(super) fn free_returned(&mut self) {
        if self.returned.is_empty() {
            return;
        }
        let mut returned = std::mem::take(&mut self.returned);
        for Returned { block, uses } in returned.drain(..) {
            let Some(uses) = uses else {
                self.free(block, &[]);
                continue;
            };
            let source = self.source();
            let uses: Vec<_> = uses
                .iter()
                .map(|stream| Stream(source.number_of(stream)))
                .collect();
            self.free(block, &uses);
        }
        self.returned = returned;
    }

    /// Removes the blocks that captured streams use from the list of returned blocks, and returns them. The progress of a captured stream
    /// cannot be queried. In a graph's pool, the blocks of the captured stream stay in the list: they are available to it at once, because
    /// the captured work will run in this order.
    pub(super) fn take_captured(&mut self, of_graph: bool) -> Vec<Returned> {
        let streams = self.memory.source().inner().source();
        let waits = |returned: &Returned| {
            let own = || streams.stream_of(returned.block.stream().0);
            let captured = !of_graph && own().is_some_and(captures::is_captured);
            let by_others = |stream: &CudaStream| stream.is_capturing().unwrap_or(true);
            captured || returned.uses().any(by_others)
        };
        let returned = std::mem::take(&mut self.returned);
        let (waiting, free) = returned.into_iter().partition(waits);
        self.returned = free;
        waiting
    }

    /// Returns the error for a request that all free memory of the pool and of the device together cannot serve.
    pub(super) fn shortage(&self, requested: u64) -> Option<AllocError> {
        let cached = self.memory.stats().cached();
        let device_free = self.memory.source().free_bytes()?;
        (device_free.saturating_add(cached) < requested).then(|| AllocError::Exhausted {
            requested,
            device_free,
            largest_hole: self.memory.largest_hole(),
            cached,
        })
    }

    pub(super) fn free(&mut self, block: Block, uses: &[Stream]) {
        self.account.requested.sub(block.requested());
        self.account.allocated.sub(block.bytes());
        self.account.frees += 1;
        self.memory.free(block, uses);
    }
}

/// A returned block, and the streams other than its own that used it. These handles keep the streams alive until the driver has been
/// queried about them.
///
/// The block has only the number of its own stream. The number is reused only after all work of the stream is complete, and then the next
/// stream with this number may use the block.
pub(super) struct Returned {
    pub(super) block: Block,
    pub(super) uses: Option<Box<[CudaStream]>>,
}

impl Returned {
    /// Returns the streams other than its own that used the block.
    pub(super) fn uses(&self) -> impl Iterator<Item = &CudaStream> {
        self.uses.iter().flatten()
    }
}

/// The core in its lock. A panic while the core is locked poisons the lock. The engine's tables may then be half changed, and the engine is
/// not used again. The value is `None` only while the pool is dropped.
pub(super) type Cell = Mutex<Option<Core>>;

/// The locked core. Callbacks that the work causes, such as observers of a budget, run after the lock has been released.
pub(super) struct Locked<'a> {
    core: MutexGuard<'a, Option<Core>>,
    /// Declared after the guard, so that it is dropped after the lock has been released.
    _inside: Inside,
}

impl<'a> Locked<'a> {
    /// Waits until the lock is free.
    ///
    /// # Errors
    /// Returns [`CudaError::BrokenPool`] if a panic has broken the pool.
    #[inline(always)]
    pub(super) fn wait(core: &'a Cell) -> Result<Self, CudaError> {
        let inside = inside();
        Ok(Self {
            core: core.lock().map_err(|_| CudaError::BrokenPool)?,
            _inside: inside,
        })
    }

    /// Like [`wait`](Self::wait), but also locks the core of a broken pool. This is only for reading its statistics, which a panic in the
    /// engine leaves intact.
    pub(super) fn for_figures(core: &'a Cell) -> Self {
        let inside = inside();
        Self {
            core: lock(core),
            _inside: inside,
        }
    }

    /// Locks the core unless another thread holds it or the pool is broken.
    #[inline(always)]
    pub(super) fn now(core: &'a Cell) -> Option<Self> {
        let inside = inside();
        let core = core.try_lock().ok()?;
        Some(Self {
            core,
            _inside: inside,
        })
    }
}

impl Deref for Locked<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        let Some(core) = &*self.core else {
            unreachable!("only the drop of a pool takes its core");
        };
        core
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        let Some(core) = &mut *self.core else {
            unreachable!("only the drop of a pool takes its core");
        };
        core
    }
}

/// Returns a request with the alignment of device pools.
pub(super) fn request(bytes: u64, stream: Stream) -> Request {
    Request {
        align: ALIGN,
        ..Request::new(bytes, stream)
    }
}
