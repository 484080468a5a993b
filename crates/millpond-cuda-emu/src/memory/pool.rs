//! Stream-ordered pools.
#![forbid(unsafe_code)]

use super::heap::{ALIGN, Heap, Pending};
use super::{Block, GRANULE, Kind, Memory};
use crate::access::Origin;
use crate::clock::{Clock, Stamp};
use crate::error::{Answer, Code};

/// The amount that a pool allocates from its device at once, if that much is free.
const CHUNK: u64 = 32 << 20;

/// A pool. It keeps freed memory up to its threshold. It releases more when the host synchronises.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) heap: Heap,
    pub(crate) device: u32,
    pub(crate) default: bool,
    pub(crate) threshold: u64,
    pub(crate) follow_events: bool,
    pub(crate) opportunistic: bool,
    pub(crate) internal: bool,
    pub(crate) reserved_high: u64,
    pub(crate) used_high: u64,
    /// The most it may reserve. 0 means no limit.
    pub(crate) max: u64,
    /// Whether its owner has destroyed it. It is removed with its last block.
    pub(crate) doomed: bool,
    /// The devices that may access it in addition to its own, as bits.
    pub(crate) peers: u64,
}

impl Pool {
    pub(crate) fn new(device: u32, default: bool) -> Self {
        Self {
            heap: Heap::default(),
            device,
            default,
            threshold: 0,
            follow_events: true,
            opportunistic: true,
            internal: true,
            reserved_high: 0,
            used_high: 0,
            max: 0,
            doomed: false,
            peers: 0,
        }
    }
}

/// The stream that requests a block, and the work that is known to be complete.
pub(crate) struct Asker<'a> {
    pub(crate) stream: u64,
    pub(crate) clock: &'a Clock,
    pub(crate) done: &'a dyn Fn(u64) -> bool,
}

impl Memory {
    pub(crate) fn pool(&self, handle: u64) -> Answer<&Pool> {
        self.pools
            .get(&handle)
            .filter(|pool| !pool.doomed)
            .ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn pool_mut(&mut self, handle: u64) -> Answer<&mut Pool> {
        self.pools
            .get_mut(&handle)
            .filter(|pool| !pool.doomed)
            .ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn current_pool(&self, device: u32) -> Answer<u64> {
        Ok(self.card(device)?.current)
    }

    pub(crate) fn default_pool(&self, device: u32) -> Answer<u64> {
        Ok(self.card(device)?.default)
    }

    pub(crate) fn set_current_pool(&mut self, device: u32, handle: u64) -> Answer {
        Code::INVALID_VALUE.when(self.pool(handle)?.device != device)?;
        self.card_mut(device)?.current = handle;
        Ok(())
    }

    pub(crate) fn create_pool(&mut self, device: u32, max: u64) -> Answer<u64> {
        self.card(device)?;
        let handle = self.new_id();
        // The limit is rounded up to whole chunks, as in the real driver. A pool may allocate a chunk that begins below its
        // limit.
        let max = max.checked_next_multiple_of(CHUNK).unwrap_or(0);
        let pool = Pool {
            max,
            ..Pool::new(device, false)
        };
        self.pools.insert(handle, pool);
        Ok(handle)
    }

    /// Destroys a pool. Blocks that are still allocated stay valid.
    pub(crate) fn destroy_pool(&mut self, handle: u64) -> Answer {
        let pool = self.pool_mut(handle)?;
        Code::INVALID_VALUE.when(pool.default)?;
        pool.doomed = true;
        let device = pool.device;
        let card = self.card_mut(device)?;
        if card.current == handle {
            card.current = card.default;
        }
        Ok(())
    }

    /// Allocates a block for a stream. Also returns the work that must be complete before it is accessed, if that is not known
    /// yet.
    pub(crate) fn pool_allocate(
        &mut self,
        handle: u64,
        bytes: u64,
        asker: &Asker<'_>,
        origin: Origin,
    ) -> Answer<(u64, Option<Pending>)> {
        let len = bytes.checked_next_multiple_of(ALIGN).ok_or(Code::OUT_OF_MEMORY)?;
        let pool = self.pool_mut(handle)?;
        let device = pool.device;
        let (events, opportunistic) = (pool.follow_events, pool.opportunistic);
        let usable = |pending: &Pending| {
            pending.stamp.stream == asker.stream
                || events && asker.clock.covers(pending.stamp)
                || opportunistic && (asker.done)(pending.task)
        };
        let mut found = pool.heap.take(len, usable);
        if found.is_none() {
            let grown = self.grow(handle, device, len);
            let pool = self.pool_mut(handle)?;
            let internal = pool.internal;
            found = match grown {
                Ok(()) => pool.heap.take(len, usable),
                // A block that another stream still holds also serves, if this stream waits for it.
                Err(_) if internal => pool.heap.take(len, |_| true),
                Err(_) => None,
            };
        }
        let (at, pending) = found.ok_or(Code::OUT_OF_MEMORY)?;
        let pool = self.pool_mut(handle)?;
        pool.used_high = pool.used_high.max(pool.heap.used());
        let waits = pending
            .filter(|pending| pending.stamp.stream != asker.stream && !asker.clock.covers(pending.stamp));
        self.enter(at, bytes, Kind::Pool(handle), device, origin);
        Ok((at, waits))
    }

    fn grow(&mut self, handle: u64, device: u32, len: u64) -> Answer {
        let least = len.checked_next_multiple_of(GRANULE).ok_or(Code::OUT_OF_MEMORY)?;
        let pool = self.pool(handle)?;
        let room = match pool.max {
            0 => u64::MAX,
            max => max.saturating_sub(pool.heap.reserved()),
        };
        Code::OUT_OF_MEMORY.when(least > room)?;
        let wished = least.max(CHUNK).min(room / GRANULE * GRANULE);
        let (at, len) = match self.new_chunk(device, wished) {
            Ok(at) => (at, wished),
            Err(_) => (self.new_chunk(device, least)?, least),
        };
        let pool = self.pool_mut(handle)?;
        pool.heap.add_chunk(at, len);
        pool.reserved_high = pool.reserved_high.max(pool.heap.reserved());
        Ok(())
    }

    /// Frees a block in the order of a stream.
    pub(crate) fn pool_free(&mut self, at: u64, task: u64, stamp: Stamp) -> Answer<Block> {
        let block = self.block_at(at)?.clone();
        let Kind::Pool(handle) = block.kind else {
            return Err(Code::INVALID_VALUE);
        };
        let pool = self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
        pool.heap
            .free(at, Some(Pending { task, stamp }))
            .ok_or(Code::INVALID_VALUE)?;
        self.blocks.remove(&at);
        Ok(block)
    }

    /// Returns whether a block belongs to a pool.
    pub(crate) fn is_pooled(&self, at: u64) -> bool {
        matches!(self.block_at(at), Ok(block) if matches!(block.kind, Kind::Pool(_)))
    }

    /// Releases free chunks until no more than `keep` bytes are reserved.
    pub(crate) fn trim(&mut self, handle: u64, keep: u64, done: &dyn Fn(u64) -> bool) -> Answer {
        let pool = self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
        pool.heap.settle(|pending| done(pending.task));
        for (base, len) in pool.heap.empty_chunks() {
            let pool = self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
            if pool.heap.reserved() >= keep + len {
                pool.heap.remove_chunk(base);
                self.drop_chunk(base, len);
            }
        }
        Ok(())
    }

    /// Releases memory after the host has synchronised: pools above their threshold shrink, and empty destroyed pools are
    /// removed.
    pub(crate) fn synchronised(&mut self, done: &dyn Fn(u64) -> bool) {
        let over = |(handle, pool): (&u64, &Pool)| {
            let keep = if pool.doomed { 0 } else { pool.threshold };
            (pool.heap.reserved() > keep || pool.doomed).then_some((*handle, keep))
        };
        let handles: Vec<(u64, u64)> = self.pools.iter().filter_map(over).collect();
        for (handle, keep) in handles {
            let _ = self.trim(handle, keep, done);
        }
        self.pools
            .retain(|_, pool| !pool.doomed || pool.heap.reserved() > 0);
    }
}

impl Memory {
    /// Returns the pool for a device's graphs. The first graph with memory creates it.
    pub(crate) fn graph_pool(&mut self, device: u32) -> Answer<u64> {
        if let Some(pool) = self.card(device)?.graphs {
            return Ok(pool);
        }
        let pool = self.create_pool(device, 0)?;
        // Nobody can destroy this pool, and it keeps its memory until it is trimmed.
        let made = self.pool_mut(pool)?;
        made.default = true;
        made.threshold = u64::MAX;
        self.card_mut(device)?.graphs = Some(pool);
        Ok(pool)
    }

    /// Returns whether a block belongs to a graph. An explicit free leaves it where the graph expects it.
    pub(crate) fn is_graphs(&self, at: u64) -> bool {
        self.blocks.get(&at).is_some_and(|block| match block.kind {
            Kind::Pool(pool) => self.cards.iter().any(|card| card.graphs == Some(pool)),
            _ => false,
        })
    }

    /// Frees the plain, managed and opened blocks of a context, and returns them.
    pub(crate) fn context_gone(&mut self, context: u64) -> Vec<(u64, Block)> {
        let of = |(at, block): (&u64, &Block)| {
            let goes = matches!(block.kind, Kind::Plain | Kind::Managed(_) | Kind::Opened(_));
            (goes && block.context == context).then_some(*at)
        };
        let gone: Vec<u64> = self.blocks.iter().filter_map(of).collect();
        gone.into_iter()
            .filter_map(|at| Some((at, self.free(at).ok().or_else(|| self.forget_block(at))?)))
            .collect()
    }
}
