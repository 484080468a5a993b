//! What is under a pool's lock: the engine, the account of callers, and what came back.

use super::ALIGN;
use super::kept::Kept;
use super::shared::lock;
use crate::gpu::error::CudaError;
use crate::gpu::graph;
use crate::gpu::source::CudaSource;
use crate::gpu::stream::CudaStream;
use crate::pool::Charged;
use crate::reentrancy::{Inside, inside};
use millpond_engine::{Block, Engine, Gauge, Request, Stats, Stream};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

pub(super) type Memory = Engine<Kept<Charged<CudaSource>>>;

/// What is under a pool's lock.
pub(super) struct Core {
    pub(super) memory: Memory,
    /// What callers have asked for and hold: the engine's own account has blocks of the pool's own too.
    pub(super) account: Stats,
    /// Blocks that came back and the driver was not asked about yet: a drop may happen where it must not be called.
    pub(super) returned: Vec<Returned>,
    /// How often time has passed.
    pub(super) ticks: u64,
}

impl Core {
    pub(super) fn source(&mut self) -> &mut CudaSource {
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
    pub(super) fn usable(&mut self) -> Result<(), CudaError> {
        self.source().usable()
    }

    /// The block that has come back, if the engine would give it again: so a pair of an allocation and its free goes in a loop.
    pub(super) fn repeat(&mut self, bytes: u64, stream: &CudaStream) -> Option<Block> {
        let [Returned { block, uses }] = self.returned.as_slice() else {
            return None;
        };
        let source = self.memory.source_mut().inner_mut().source_mut();
        let on = block.stream();
        let same = source.stream_of(on.0).is_some_and(|own| own.is(stream.raw()));
        if !same || !uses.is_empty() || source.usable().is_err() {
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

    /// Tells the engine of what has come back. The list is kept, so that a pair of calls makes none.
    pub(super) fn free_returned(&mut self) {
        if self.returned.is_empty() {
            return;
        }
        let mut returned = std::mem::take(&mut self.returned);
        for Returned { block, uses } in returned.drain(..) {
            if uses.is_empty() {
                self.free(block, &[]);
                continue;
            }
            let source = self.source();
            let uses: Vec<_> = uses
                .iter()
                .map(|stream| Stream(source.number_of(stream)))
                .collect();
            self.free(block, &uses);
        }
        self.returned = returned;
    }

    /// Of streams that are captured nobody can say how far they have come: blocks that they use wait, and are answered. The
    /// graph's own memory serves the stream it is captured from at once, as the work will be done in this order.
    pub(super) fn take_captured(&mut self, of_graph: bool) -> Vec<Returned> {
        let streams = self.memory.source().inner().source();
        let waits = |returned: &Returned| {
            let own = || streams.stream_of(returned.block.stream().0);
            let captured = !of_graph && own().is_some_and(graph::is_captured);
            let by_others = |stream: &CudaStream| stream.is_capturing().unwrap_or(true);
            captured || returned.uses.iter().any(by_others)
        };
        let returned = std::mem::take(&mut self.returned);
        let (waiting, free) = returned.into_iter().partition(waits);
        self.returned = free;
        waiting
    }

    pub(super) fn free(&mut self, block: Block, uses: &[Stream]) {
        self.account.requested.sub(block.requested());
        self.account.allocated.sub(block.bytes());
        self.account.frees += 1;
        self.memory.free(block, uses);
    }
}

/// A block that came back, with the streams other than its own that used it. They live until the driver was asked.
///
/// Of its own stream the number is enough: that is given on once all the stream had to do is done, which is when whoever has the
/// number next may have the block.
pub(super) struct Returned {
    pub(super) block: Block,
    pub(super) uses: Vec<CudaStream>,
}

/// The core in its lock. A panic while the core is locked poisons the lock: the engine's tables may then be half changed, and
/// the engine is not used again. The value is `None` only while the pool is dropped.
pub(super) type Cell = Mutex<Option<Core>>;

/// The core under its lock. Whoever its work concerns, such as those told of a budget, is called when that is let go.
pub(super) struct Locked<'a> {
    core: MutexGuard<'a, Option<Core>>,
    /// Ends after that.
    _inside: Inside,
}

impl<'a> Locked<'a> {
    /// Waits for whoever has it.
    ///
    /// # Errors
    /// [`CudaError::BrokenPool`] if a panic has broken the pool.
    pub(super) fn wait(core: &'a Cell) -> Result<Self, CudaError> {
        let inside = inside();
        Ok(Self {
            core: core.lock().map_err(|_| CudaError::BrokenPool)?,
            _inside: inside,
        })
    }

    /// Like [`wait`](Self::wait), but also locks the core of a broken pool. This is only for reading its figures, which a panic
    /// in the engine leaves intact.
    pub(super) fn for_figures(core: &'a Cell) -> Self {
        let inside = inside();
        Self {
            core: lock(core),
            _inside: inside,
        }
    }

    /// Locks the core unless another thread holds it or the pool is broken.
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

/// A request as pools of devices make it.
pub(super) fn request(bytes: u64, stream: Stream) -> Request {
    Request {
        align: ALIGN,
        ..Request::new(bytes, stream)
    }
}
