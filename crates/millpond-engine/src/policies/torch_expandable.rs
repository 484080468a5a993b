//! `torch-expandable`: PyTorch's caching allocator with expandable segments.
//!
//! Each stream, size class and private pool has one range of addresses. The range grows by handles of 2 MiB (small) or
//! 20 MiB (large). They are mapped at the lowest address where the request fits into free and unmapped addresses
//! together. The search finds the best fit among the free blocks. A block next to unmapped addresses counts with the
//! size to which it could grow, so it is taken last. When memory runs out, the policy synchronises the device and
//! unmaps every wholly free handle. The range keeps its addresses, so the next growth fills the gaps first.

use super::torch_pools::{PoolKey, Pools};
use super::torch_rules::{MIN_BLOCK, SMALL, SMALL_SEGMENT, allowed_bytes, block_bytes, segment_bytes};
use crate::block::{Block, Request};
use crate::conf::TorchConf;
use crate::error::SourceError;
use crate::index::Entry;
use crate::policy::{Fidelity, Policy, Refusal};
use crate::source::Range;
use crate::space::{BlockId, Piece, State};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// Number of addresses of a range on a device without a limit. No device has this much memory.
const UNLIMITED_RANGE: u64 = 1 << 50;

/// The `torch-expandable` policy. The module describes its rules.
pub struct TorchExpandable {
    conf: TorchConf,
    pools: Pools,
    ranges: Vec<Option<Range>>,
    /// The unmapped blocks of each pool, in address order.
    unmapped: Vec<BTreeMap<u64, BlockId>>,
}

impl TorchExpandable {
    /// Creates the policy with these settings. Expandable segments are always on.
    #[must_use]
    pub fn new(conf: &TorchConf) -> Self {
        Self {
            conf: conf.clone(),
            pools: Pools::new(false),
            ranges: Vec::new(),
            unmapped: Vec::new(),
        }
    }

    fn handle_bytes(&self, number: u32) -> u64 {
        if self.pools.pool(number).key.small {
            SMALL_SEGMENT
        } else {
            self.conf.large_segment
        }
    }

    /// Returns the size to which a free block could grow, in bytes.
    fn expandable_bytes(&self, entry: &Entry) -> u64 {
        let next = self
            .pools
            .space
            .next(entry.id)
            .filter(|n| self.pools.space.state(*n) == State::Unmapped);
        entry.bytes + next.map_or(0, |n| self.pools.space.bytes(n))
    }

    #[inline]
    fn take_free(&mut self, number: u32, bytes: u64) -> Option<BlockId> {
        let free = &self.pools.pool(number).free;
        let mut entry = free.best_fit(bytes)?;
        while let Some(next) = free.after(&entry)
            && self.expandable_bytes(&next) < self.expandable_bytes(&entry)
        {
            entry = next;
        }
        let max_split = self.conf.max_split_size.unwrap_or(u64::MAX);
        let wasted = bytes < max_split && entry.bytes >= max_split;
        let rounded =
            bytes >= max_split && entry.bytes >= bytes.saturating_add(self.conf.max_non_split_rounding);
        if wasted || rounded {
            return None;
        }
        self.pools.unlist(entry.id);
        Some(entry.id)
    }

    /// Returns the lowest place where free and unmapped addresses together have room. Reserves a new range if there is
    /// none.
    fn find_room(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        let space = &self.pools.space;
        let usable = |id: &BlockId| space.state(*id) != State::Live;
        for unmapped in self.unmapped[number as usize].values() {
            let first = space
                .prev(*unmapped)
                .filter(|p| space.state(*p) == State::Free)
                .unwrap_or(*unmapped);
            let mut room = 0;
            let mut at = Some(first);
            while let Some(id) = at.filter(usable) {
                room += space.bytes(id);
                if room >= bytes {
                    return Ok(first);
                }
                at = space.next(id);
            }
        }
        let handle = self.handle_bytes(number);
        let addresses = supply
            .capacity()
            .map_or(UNLIMITED_RANGE, |c| c.saturating_add(c / 8));
        let range = supply.reserve_up_to(addresses, bytes, handle)?;
        let (address, bytes) = (range.address(), range.bytes());
        self.ranges.push(Some(range));
        let segment = self.ranges.len() as u32 - 1;
        let id = self
            .pools
            .space
            .add_segment(address, bytes, segment, number, State::Unmapped);
        self.unmapped[number as usize].insert(address, id);
        Ok(id)
    }

    /// Backs the front of an unmapped block and joins it with its free neighbours. Returns the free block.
    fn map(&mut self, supply: &mut Supply<'_>, id: BlockId, bytes: u64) -> Result<BlockId, SourceError> {
        let space = &mut self.pools.space;
        let (number, address) = (space.owner(id), space.address(id));
        let handle = if self.pools.pool(number).key.small {
            SMALL_SEGMENT
        } else {
            self.conf.large_segment
        };
        let space = &mut self.pools.space;
        let bytes = bytes.next_multiple_of(handle);
        let index = space.segment(id) as usize;
        let Some(range) = &self.ranges[index] else {
            return Err(SourceError::Unsupported {
                operation: "map into a range that was released",
            });
        };
        supply.commit(range, address - range.address(), bytes, handle)?;
        let unmapped = &mut self.unmapped[number as usize];
        unmapped.remove(&address);
        if bytes < space.bytes(id) {
            let rest = space.split(id, bytes);
            unmapped.insert(space.address(rest), rest);
        }
        space.set_state(id, State::Live);
        Ok(self.pools.put_back(id))
    }

    /// Finds room and maps the missing part. Returns an unlisted block.
    fn expand(&mut self, supply: &mut Supply<'_>, number: u32, bytes: u64) -> Result<BlockId, SourceError> {
        allowed_bytes(&self.conf, supply, segment_bytes(bytes, &self.conf))?;
        let mut id = self.find_room(supply, number, bytes)?;
        if self.pools.space.state(id) == State::Unmapped {
            let part = bytes.min(self.pools.space.bytes(id));
            id = self.map(supply, id, part)?;
        }
        while self.pools.space.bytes(id) < bytes {
            let missing = bytes - self.pools.space.bytes(id);
            let next = self
                .pools
                .space
                .next(id)
                .filter(|n| self.pools.space.state(*n) == State::Unmapped);
            let Some(next) = next else {
                return Err(SourceError::AddressSpace { requested: bytes });
            };
            let part = missing.min(self.pools.space.bytes(next));
            id = self.map(supply, next, part)?;
        }
        self.pools.unlist(id);
        Ok(id)
    }

    /// Returns the whole handles inside a free block: the start of its range, and the start and end of the handles.
    fn whole_handles(&self, id: BlockId) -> Option<(u64, u64, u64)> {
        let space = &self.pools.space;
        let handle = self.handle_bytes(space.owner(id));
        let range = self.ranges[space.segment(id) as usize].as_ref();
        let base = range.map(Range::address)?;
        let first = (space.address(id) - base).next_multiple_of(handle) + base;
        let end = (space.end(id) - base) / handle * handle + base;
        (first < end).then_some((base, first, end))
    }

    /// Unmaps the whole handles inside a free block.
    fn unmap(&mut self, supply: &mut Supply<'_>, id: BlockId) {
        let Some((base, first, end)) = self.whole_handles(id) else {
            return;
        };
        let number = self.pools.space.owner(id);
        let index = self.pools.space.segment(id) as usize;
        self.pools.unlist(id);
        let mut id = id;
        if self.pools.space.address(id) < first {
            let after = self.pools.space.split(id, first - self.pools.space.address(id));
            self.pools.list(id);
            id = after;
        }
        if end < self.pools.space.end(id) {
            let after = self.pools.space.split(id, end - first);
            self.pools.list(after);
        }
        if let Some(range) = &self.ranges[index] {
            supply.decommit(range, first - base, end - first);
        }
        let space = &mut self.pools.space;
        let unmapped = &mut self.unmapped[number as usize];
        space.set_state(id, State::Unmapped);
        if let Some(prev) = space.prev(id).filter(|p| space.state(*p) == State::Unmapped) {
            space.merge_next(prev);
            id = prev;
        }
        if let Some(next) = space.next(id).filter(|n| space.state(*n) == State::Unmapped) {
            unmapped.remove(&space.address(next));
            space.merge_next(id);
        }
        unmapped.insert(space.address(id), id);
        if space.is_whole(id) {
            unmapped.remove(&space.address(id));
            space.remove_segment(id);
            if let Some(range) = self.ranges[index].take() {
                supply.release(range);
            }
        }
    }
}

impl Policy for TorchExpandable {
    fn name(&self) -> &'static str {
        "torch-expandable"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::Exact
    }

    fn needs_pages(&self) -> bool {
        true
    }

    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let bytes = block_bytes(request, &self.conf)?;
        let key = PoolKey {
            group: request.group,
            small: bytes <= SMALL,
            stream: request.stream,
        };
        let number = self.pools.number(key);
        if self.unmapped.len() <= number as usize {
            self.unmapped.resize_with(number as usize + 1, BTreeMap::new);
        }
        let id = match self.take_free(number, bytes) {
            Some(id) => id,
            None => match self.expand(supply, number, bytes) {
                Err(error) if error.is_out_of_memory() => {
                    self.release_cached(supply);
                    self.expand(supply, number, bytes)?
                }
                outcome => outcome?,
            },
        };
        let rest = self.pools.space.bytes(id) - bytes;
        Ok(self.pools.hand_out(id, request, bytes, rest >= MIN_BLOCK))
    }

    fn free(&mut self, _supply: &mut Supply<'_>, block: Block) {
        self.pools.put_back(block.key());
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        for block in supply.synchronize() {
            self.pools.put_back(block.key());
        }
        for number in self.pools.default_group() {
            let free: Vec<BlockId> = self
                .pools
                .pool(number)
                .free
                .iter()
                .map(|entry| entry.id)
                .collect();
            for id in free {
                self.unmap(supply, id);
            }
        }
    }

    fn returnable_bytes(&self) -> u64 {
        let free = self.pools.iter().flat_map(|pool| pool.free.iter());
        let whole = free.filter_map(|entry| self.whole_handles(entry.id));
        whole.map(|(_, first, end)| end - first).sum()
    }

    fn expect_blocks(&mut self, blocks: usize) {
        self.pools.space.expect(blocks);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.pools.space.layout(visit);
    }

    fn check(&self) {
        self.pools.check();
        let space = &self.pools.space;
        for (number, unmapped) in self.unmapped.iter().enumerate() {
            for (address, id) in unmapped {
                assert_eq!(space.state(*id), State::Unmapped, "{id:?} is listed and mapped");
                assert_eq!(
                    (space.address(*id), space.owner(*id) as usize),
                    (*address, number)
                );
            }
        }
        let listed: usize = self.unmapped.iter().map(BTreeMap::len).sum();
        let there = space
            .ids()
            .filter(|id| space.state(*id) == State::Unmapped)
            .count();
        assert_eq!(listed, there, "unmapped blocks that no list holds");
    }
}
