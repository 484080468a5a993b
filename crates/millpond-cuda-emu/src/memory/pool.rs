//! Stream-ordered pools.
#![forbid(unsafe_code)]

use super::heap::{ALIGN, Heap, Pending};
use super::{Block, GRANULE, Kind, Memory};
use crate::access::Origin;
use crate::clock::{Clock, Stamp};
use crate::error::{Answer, Code};

/// What a pool takes from its device at once, where there is that much.
const CHUNK: u64 = 32 << 20;

/// A pool. It keeps what is freed up to its threshold; more goes back when the host synchronises.
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
    /// The most it may reserve; 0 for as much as there is.
    pub(crate) max: u64,
    /// Destroyed by its owner, gone when its last block is.
    pub(crate) doomed: bool,
    /// The devices that may touch it besides its own, as bits.
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

/// Who asks for a block, and what is known to be over by then.
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
        if self.pool(handle)?.device != device {
            return Err(Code::INVALID_VALUE);
        }
        self.card_mut(device)?.current = handle;
        Ok(())
    }

    pub(crate) fn create_pool(&mut self, device: u32, max: u64) -> Answer<u64> {
        self.card(device)?;
        let handle = self.new_id();
        // The limit is rounded up to whole chunks as by the real driver: a pool may take a chunk that begins below its limit.
        let max = max.checked_next_multiple_of(CHUNK).unwrap_or(0);
        let pool = Pool {
            max,
            ..Pool::new(device, false)
        };
        self.pools.insert(handle, pool);
        Ok(handle)
    }

    /// The owner is done with it; blocks that are held stay.
    pub(crate) fn destroy_pool(&mut self, handle: u64) -> Answer {
        let pool = self.pool_mut(handle)?;
        if pool.default {
            return Err(Code::INVALID_VALUE);
        }
        pool.doomed = true;
        let device = pool.device;
        let card = self.card_mut(device)?;
        if card.current == handle {
            card.current = card.default;
        }
        Ok(())
    }

    /// A block for a stream, and the work that has to be over before it may be touched, if that is not known by then.
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
                // What another stream still holds serves too, if this one waits for it.
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
        if least > room {
            return Err(Code::OUT_OF_MEMORY);
        }
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

    /// A block goes back in the order of a stream.
    pub(crate) fn pool_free(&mut self, at: u64, task: u64, stamp: Stamp) -> Answer<Block> {
        let block = self.blocks.get(&at).ok_or(Code::INVALID_VALUE)?.clone();
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

    /// Whether a block is a pool's.
    pub(crate) fn is_pooled(&self, at: u64) -> bool {
        self.blocks
            .get(&at)
            .is_some_and(|block| matches!(block.kind, Kind::Pool(_)))
    }

    /// Gives back what is not held until no more than `keep` bytes are reserved.
    pub(crate) fn trim(&mut self, handle: u64, keep: u64, done: &dyn Fn(u64) -> bool) -> Answer {
        let pool = self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
        pool.heap.settle(|pending| done(pending.task));
        for (base, len) in pool.heap.empty_chunks() {
            let pool = self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
            if pool.heap.reserved() < keep + len {
                continue;
            }
            pool.heap.remove_chunk(base);
            self.drop_chunk(base, len);
        }
        Ok(())
    }

    /// The host has synchronised: pools above their threshold give back, and doomed ones that are empty go.
    pub(crate) fn synchronised(&mut self, done: &dyn Fn(u64) -> bool) {
        let over = |(handle, pool): (&u64, &Pool)| {
            let keep = if pool.doomed { 0 } else { pool.threshold };
            (pool.heap.reserved() > keep || pool.doomed).then_some((*handle, keep))
        };
        let handles: Vec<(u64, u64)> = self.pools.iter().filter_map(over).collect();
        for (handle, keep) in handles {
            let _ = self.trim(handle, keep, done);
            if self
                .pools
                .get(&handle)
                .is_some_and(|pool| pool.doomed && pool.heap.reserved() == 0)
            {
                self.pools.remove(&handle);
            }
        }
    }
}

impl Memory {
    /// The pool that a device's graphs draw from: made when the first one does.
    pub(crate) fn graph_pool(&mut self, device: u32) -> Answer<u64> {
        if let Some(pool) = self.card(device)?.graphs {
            return Ok(pool);
        }
        let pool = self.create_pool(device, 0)?;
        // It is nobody's to destroy, and keeps what it has until it is trimmed.
        let made = self.pool_mut(pool)?;
        made.default = true;
        made.threshold = u64::MAX;
        self.card_mut(device)?.graphs = Some(pool);
        Ok(pool)
    }

    /// Whether a block is a graph's: freeing it by hand leaves it where the graph expects it.
    pub(crate) fn is_graphs(&self, at: u64) -> bool {
        self.blocks.get(&at).is_some_and(|block| match block.kind {
            Kind::Pool(pool) => self.cards.iter().any(|card| card.graphs == Some(pool)),
            _ => false,
        })
    }

    /// Blocks of a context go with it, as far as they are not a pool's. Answers what they were.
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
