//! `torch-native`: PyTorch's caching allocator with its default, unexpandable segments.
//!
//! The search is best fit among the free blocks of the same stream, size class and private pool. A block is split if
//! the remainder is large enough to keep. It is joined with its free neighbours when it is freed. Segments are returned
//! to the driver only when it refuses a new one. When memory runs out:
//!
//! 1. If the garbage collection threshold is exceeded, unsplit blocks older than the mean age are returned.
//! 2. The policy requests a segment from the driver.
//! 3. Of the blocks that are too large to be split, enough are returned for the request, and the policy requests a
//!    segment again.
//! 4. The device is synchronised, every unsplit cached block is returned, and the policy requests a segment for the
//!    last time.
//!
//! As in the original, the pool is not searched again after step 4.

use super::torch_pools::{PoolKey, Pools};
use super::torch_rules::{MIN_BLOCK, SMALL, allowed_bytes, block_bytes, is_wasted, segment_bytes};
use crate::block::{Block, Group, Request, Stream};
use crate::conf::TorchConf;
use crate::error::SourceError;
use crate::index::Entry;
use crate::policy::{Adopted, Fidelity, Policy, Refusal};
use crate::space::{BlockId, Piece};
use crate::supply::Supply;

/// The `torch-native` policy. The module describes its rules.
pub struct TorchNative {
    conf: TorchConf,
    pools: Pools,
}

impl TorchNative {
    /// Creates the policy with these settings. It ignores `expandable_segments`.
    #[must_use]
    pub fn new(conf: &TorchConf) -> Self {
        // PyTorch collects garbage only under a memory fraction.
        let collects = conf.memory_fraction.is_some() && conf.garbage_collection_threshold > 0.0;
        let mut conf = conf.clone();
        if !collects {
            conf.garbage_collection_threshold = 0.0;
        }
        Self {
            conf,
            pools: Pools::new(collects),
        }
    }

    /// Returns the size of the block that serves a request under these settings, or `None` if no device could serve it.
    /// The size does not include a remainder that is too small to be split off.
    #[must_use]
    pub fn block_bytes(conf: &TorchConf, requested: u64) -> Option<u64> {
        block_bytes(&Request::new(requested, Stream::DEFAULT), conf).ok()
    }

    /// Returns the bytes taken from the device for a request that no free block serves, or `None` if no device could
    /// serve it.
    #[must_use]
    pub fn segment_bytes(conf: &TorchConf, requested: u64) -> Option<u64> {
        Self::block_bytes(conf, requested).map(|block| segment_bytes(block, conf))
    }

    /// Takes the best fit, unless it would waste an oversize block on a small request or round up too far.
    #[inline]
    fn take_free(&mut self, number: u32, bytes: u64) -> Option<BlockId> {
        let entry = self.pools.free(number).best_fit(bytes)?;
        if is_wasted(&self.conf, bytes, entry.bytes) {
            return None;
        }
        self.pools.lists.unlist(entry.id);
        Some(entry.id)
    }

    fn new_segment(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        allowed_bytes(&self.conf, supply, bytes)?;
        let segment = supply.take(bytes)?;
        Ok(self.pools.lists.add_segment(segment, number))
    }

    /// Takes a new segment. If memory is short, it returns cached memory to the source first.
    fn grow(&mut self, supply: &mut Supply<'_>, number: u32, block: u64) -> Result<BlockId, SourceError> {
        if self.conf.garbage_collection_threshold > 0.0 {
            self.collect_garbage(supply);
        }
        let bytes = segment_bytes(block, &self.conf);
        match self.new_segment(supply, number, bytes) {
            Err(error) if error.is_out_of_memory() => {}
            outcome => return outcome,
        }
        if self.release_oversize(supply, number, block) {
            match self.new_segment(supply, number, bytes) {
                Err(error) if error.is_out_of_memory() => {}
                outcome => return outcome,
            }
        }
        self.release_cached(supply);
        self.new_segment(supply, number, bytes)
    }

    /// Returns unsplit blocks of the large class to the source, oldest first, until the threshold is met.
    fn collect_garbage(&mut self, supply: &mut Supply<'_>) {
        let allowed = self
            .conf
            .memory_fraction
            .zip(supply.capacity())
            .map(|(f, c)| f * c as f64);
        let Some(allowed) = allowed else { return };
        let threshold = (self.conf.garbage_collection_threshold * allowed.floor()) as u64;
        let Some(target) = supply.reserved().checked_sub(threshold).filter(|t| *t > 0) else {
            return;
        };
        let mut candidates: Vec<(Entry, u64)> = self
            .pools
            .iter()
            .filter(|(key, _)| !key.small && key.group == Group::default())
            .flat_map(|(_, free)| free.iter())
            .filter(|entry| self.pools.lists.space.is_whole(entry.id))
            .map(|entry| (entry, self.pools.age(entry.id)))
            .collect();
        let mut total_age: u64 = candidates.iter().map(|(_, age)| age).sum();
        let mut reclaimed = 0;
        let mut progress = true;
        while reclaimed < target && progress && !candidates.is_empty() {
            let mean = total_age as f64 / candidates.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) =
                candidates.into_iter().partition(|(_, age)| *age as f64 >= mean);
            progress = !old.is_empty();
            for (entry, age) in old {
                reclaimed += entry.bytes;
                total_age -= age;
                self.pools.lists.release_segment(supply, entry.id);
            }
            candidates = young;
        }
    }

    /// Returns just enough unsplittable blocks to the source for the request. Returns whether there were enough.
    fn release_oversize(&mut self, supply: &mut Supply<'_>, number: u32, block: u64) -> bool {
        let Some(max_split) = self.conf.max_split_size else {
            return false;
        };
        let wanted = block.max(max_split);
        // An oversize block is never split, so it is a whole segment.
        if let Some(entry) = self.pools.free(number).best_fit(wanted) {
            self.pools.lists.release_segment(supply, entry.id);
            return true;
        }
        let mut released = 0;
        while released < wanted {
            let largest = self.pools.free(number).largest();
            let Some(entry) = largest.filter(|e| e.bytes >= max_split) else {
                break;
            };
            released += entry.bytes;
            self.pools.lists.release_segment(supply, entry.id);
        }
        released >= wanted
    }
}

impl Policy for TorchNative {
    fn name(&self) -> &'static str {
        "torch-native"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::Exact
    }

    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let bytes = block_bytes(request, &self.conf)?;
        let small = bytes <= SMALL;
        let key = PoolKey {
            group: request.group,
            small,
            stream: request.stream,
        };
        let number = self.pools.number(key);
        self.pools.searched(key);
        let id = match self.take_free(number, bytes) {
            Some(id) => id,
            None => self.grow(supply, number, bytes)?,
        };
        let whole = self.pools.lists.space.bytes(id);
        let rest = whole - bytes;
        let split = if small {
            rest >= MIN_BLOCK
        } else {
            bytes < self.conf.max_split_size.unwrap_or(u64::MAX) && rest > SMALL
        };
        let keep = if split { bytes } else { whole };
        Ok(self.pools.hand_out(id, request, keep))
    }

    fn free(&mut self, _supply: &mut Supply<'_>, block: Block) {
        self.pools.put_back(block.key());
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        self.free_deferred(supply);
        for number in self.pools.default_group() {
            let space = &self.pools.lists.space;
            let free = self.pools.free(number).iter().map(|entry| entry.id);
            let whole: Vec<BlockId> = free.filter(|id| space.is_whole(*id)).collect();
            for id in whole {
                self.pools.lists.release_segment(supply, id);
            }
        }
    }

    fn release_segment(&mut self, supply: &mut Supply<'_>, address: u64) -> bool {
        let space = &self.pools.lists.space;
        let whole = |entry: &Entry| entry.address == address && space.is_whole(entry.id);
        let found = self.pools.iter().flat_map(|(_, free)| free.iter()).find(whole);
        if let Some(entry) = found {
            self.pools.lists.release_segment(supply, entry.id);
        }
        found.is_some()
    }

    fn adopt(&mut self, adopted: Adopted<'_>) -> Option<Vec<Block>> {
        let number = self.pools.number(PoolKey {
            group: adopted.group,
            small: adopted.small,
            stream: adopted.stream,
        });
        // The unlisted remainder after the last block so far.
        let mut rest = Some(self.pools.lists.add_segment(adopted.segment, number));
        let mut blocks = Vec::with_capacity(adopted.blocks.len());
        for &(address, bytes, requested) in adopted.blocks {
            let space = &mut self.pools.lists.space;
            let (id, [before, after]) = space.isolate(rest?, address, bytes);
            if let Some(before) = before {
                self.pools.list(before);
            }
            rest = after;
            let request = Request {
                bytes: requested,
                align: 1,
                stream: adopted.stream,
                group: adopted.group,
            };
            blocks.push(self.pools.hand_out(id, &request, bytes));
        }
        if let Some(rest) = rest {
            self.pools.list(rest);
        }
        Some(blocks)
    }

    fn expect_blocks(&mut self, blocks: usize) {
        self.pools.lists.space.expect(blocks);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.pools.lists.space.layout(visit);
    }

    fn check(&self) {
        self.pools.lists.check();
    }
}
