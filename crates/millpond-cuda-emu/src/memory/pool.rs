//! Stream-ordered pools.
#![forbid(unsafe_code)]

use super::heap::{ALIGN, Heap, Pending};
use super::managed::Managed;
use super::{Block, GRANULE, Kind, Memory};
use crate::access::Origin;
use crate::clock::{Clock, Stamp};
use crate::error::{Answer, Code};

/// The amount that a pool allocates from its device at once, if that much is free.
const CHUNK: u64 = 32 << 20;

/// The location of the memory of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Device(u32),
    /// Pinned memory of the host, which all devices may access.
    Host,
    /// Managed memory, which the host and all devices may access.
    Managed,
}

/// A pool. It keeps freed memory up to its threshold. It releases more when the host synchronises.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) heap: Heap,
    pub(crate) place: Place,
    pub(crate) default: bool,
    /// Whether this is the pool of a device's graphs.
    graphs: bool,
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
    pub(crate) fn new(place: Place, default: bool) -> Self {
        Self {
            heap: Heap::default(),
            place,
            default,
            graphs: false,
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

    /// Returns the device whose memory this is. Memory of the host counts as memory of the first device.
    fn device(&self) -> u32 {
        match self.place {
            Place::Device(device) => device,
            Place::Host | Place::Managed => 0,
        }
    }

    pub(crate) fn is_open_to(&self, device: u32) -> bool {
        match self.place {
            Place::Device(own) => own == device || self.peers >> device & 1 != 0,
            Place::Host | Place::Managed => true,
        }
    }

    /// Returns the memory in use. Graphs use all that is reserved for them until it is trimmed.
    pub(crate) fn used(&self) -> u64 {
        if self.graphs {
            self.heap.reserved()
        } else {
            self.heap.used()
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
        Code::INVALID_VALUE.when(self.pool(handle)?.place != Place::Device(device))?;
        self.card_mut(device)?.current = handle;
        Ok(())
    }

    /// Returns the default and the current pool of a place.
    pub(crate) fn pools_of(&mut self, place: Place) -> Answer<(u64, u64)> {
        if let Place::Device(device) = place {
            return Ok((self.default_pool(device)?, self.current_pool(device)?));
        }
        if let Some(pools) = self.elsewhere.get(&place) {
            return Ok(*pools);
        }
        let pool = self.create_pool(place, 0)?;
        self.pool_mut(pool)?.default = true;
        self.elsewhere.insert(place, (pool, pool));
        Ok((pool, pool))
    }

    /// Makes a pool the current one of its place.
    pub(crate) fn set_current(&mut self, place: Place, handle: u64) -> Answer {
        if let Place::Device(device) = place {
            return self.set_current_pool(device, handle);
        }
        Code::INVALID_VALUE.when(self.pool(handle)?.place != place)?;
        let (default, _) = self.pools_of(place)?;
        self.elsewhere.insert(place, (default, handle));
        Ok(())
    }

    pub(super) fn is_host_pool(&self, handle: u64) -> bool {
        self.pools
            .get(&handle)
            .is_some_and(|pool| pool.place == Place::Host)
    }

    pub(crate) fn create_pool(&mut self, place: Place, max: u64) -> Answer<u64> {
        if let Place::Device(device) = place {
            self.card(device)?;
        }
        let handle = self.new_id();
        // The limit is rounded up to whole chunks, as in the real driver. A pool may allocate a chunk that begins below its
        // limit.
        let max = max.checked_next_multiple_of(CHUNK).unwrap_or(0);
        let pool = Pool {
            max,
            ..Pool::new(place, false)
        };
        self.pools.insert(handle, pool);
        Ok(handle)
    }

    /// Destroys a pool. Blocks that are still allocated stay valid.
    pub(crate) fn destroy_pool(&mut self, handle: u64) -> Answer {
        let pool = self.pool_mut(handle)?;
        Code::INVALID_VALUE.when(pool.default)?;
        pool.doomed = true;
        match pool.place {
            Place::Device(device) => {
                let card = self.card_mut(device)?;
                if card.current == handle {
                    card.current = card.default;
                }
            }
            place => {
                let (default, current) = self.pools_of(place)?;
                if current == handle {
                    self.elsewhere.insert(place, (default, default));
                }
            }
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
        let (place, device) = (pool.place, pool.device());
        let (events, opportunistic) = (pool.follow_events, pool.opportunistic);
        let usable = |pending: &Pending| {
            pending.stamp.stream == asker.stream
                || events && asker.clock.covers(pending.stamp)
                || opportunistic && (asker.done)(pending.task)
        };
        let mut found = pool.heap.take(len, usable);
        if found.is_none() {
            let grown = self.grow(handle, len);
            let pool = self.pool_mut(handle)?;
            let internal = pool.internal;
            found = match grown {
                Ok(()) => pool.heap.take(len, usable),
                // A block that is still pending on another stream can be used if this stream waits for it.
                Err(_) if internal => pool.heap.take(len, |_| true),
                Err(_) => None,
            };
        }
        let (at, pending) = found.ok_or(Code::OUT_OF_MEMORY)?;
        let pool = self.pool_mut(handle)?;
        pool.used_high = pool.used_high.max(pool.used());
        let waits = pending
            .filter(|pending| pending.stamp.stream != asker.stream && !asker.clock.covers(pending.stamp));
        let kind = match place {
            Place::Managed => Kind::Managed(Managed::new(bytes, Some(handle))),
            Place::Device(_) | Place::Host => Kind::Pool(handle),
        };
        self.enter(at, bytes, kind, device, origin);
        Ok((at, waits))
    }

    fn grow(&mut self, handle: u64, len: u64) -> Answer {
        let least = len.checked_next_multiple_of(GRANULE).ok_or(Code::OUT_OF_MEMORY)?;
        let pool = self.pool(handle)?;
        let room = match pool.max {
            0 => u64::MAX,
            max => max.saturating_sub(pool.heap.reserved()),
        };
        Code::OUT_OF_MEMORY.when(least > room)?;
        let wished = least.max(CHUNK).min(room / GRANULE * GRANULE);
        let place = pool.place;
        let mut new = |len| match place {
            Place::Device(device) => self.new_chunk(device, len),
            Place::Host | Place::Managed => self.host_chunk(len),
        };
        let (at, len) = match new(wished) {
            Ok(at) => (at, wished),
            Err(_) => (new(least)?, least),
        };
        let pool = self.pool_mut(handle)?;
        pool.heap.add_chunk(at, len);
        pool.reserved_high = pool.reserved_high.max(pool.heap.reserved());
        Ok(())
    }

    /// Frees a block in the order of a stream.
    pub(crate) fn pool_free(&mut self, at: u64, task: u64, stamp: Stamp) -> Answer<Block> {
        let block = self.block_at(at)?.clone();
        let handle = block.pool().ok_or(Code::INVALID_VALUE)?;
        let pool = self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
        pool.heap
            .free(at, Some(Pending { task, stamp }))
            .ok_or(Code::INVALID_VALUE)?;
        self.blocks.remove(&at);
        Ok(block)
    }

    /// Returns whether a block belongs to a pool.
    pub(crate) fn is_pooled(&self, at: u64) -> bool {
        self.block_at(at).is_ok_and(|block| block.pool().is_some())
    }

    /// Returns whether a device may access an address as far as pools decide it.
    pub(crate) fn is_pool_open_to(&self, at: u64, device: u32) -> bool {
        let pool = self.block(at).and_then(|(_, block)| block.pool());
        let pool = pool.and_then(|pool| self.pools.get(&pool));
        pool.is_none_or(|pool| pool.is_open_to(device))
    }

    /// Releases free chunks until no more than `keep` bytes are reserved.
    pub(crate) fn trim(&mut self, handle: u64, keep: u64, done: &dyn Fn(u64) -> bool) -> Answer {
        let pool = self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
        pool.heap.settle(|pending| done(pending.task));
        for (base, len) in pool.heap.empty_chunks() {
            let pool = self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
            if pool.heap.reserved() >= keep + len {
                pool.heap.remove_chunk(base);
                match pool.place {
                    Place::Device(_) => self.drop_chunk(base, len),
                    Place::Host | Place::Managed => self.drop_host_chunk(base, len),
                }
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
        let pool = self.create_pool(Place::Device(device), 0)?;
        // Clients cannot destroy this pool, and it keeps its memory until it is trimmed.
        let made = self.pool_mut(pool)?;
        made.default = true;
        made.graphs = true;
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
            (goes && block.context == context && block.pool().is_none()).then_some(*at)
        };
        let gone: Vec<u64> = self.blocks.iter().filter_map(of).collect();
        gone.into_iter()
            .filter_map(|at| Some((at, self.free(at).ok().or_else(|| self.forget_block(at))?)))
            .collect()
    }
}
