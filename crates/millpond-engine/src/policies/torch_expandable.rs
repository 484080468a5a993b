//! `torch-expandable`: PyTorch's caching allocator with expandable segments.
//!
//! Each stream, size class and private pool has one range of addresses. The range grows by handles of 2 MiB (small) or
//! 20 MiB (large). They are mapped at the lowest address where the request fits into free and unmapped addresses
//! together. The search finds the best fit among the free blocks. A block next to unmapped addresses counts with the
//! size to which it could grow, so it is taken last. When memory runs out, the policy synchronises the device and
//! unmaps every wholly free handle. The range keeps its addresses, so the next growth fills the gaps first.
//!
//! As in PyTorch, a range has 9/8 of the addresses of the whole device, even if a limit or other programs leave less to
//! the program. If a range is too short for a request, a second one is reserved for the pool.

use super::holes::Holes;
use super::torch_pools::{PoolKey, Pools};
use super::torch_rules::{
    MIN_BLOCK, SMALL, SMALL_SEGMENT, allowed_bytes, block_bytes, is_wasted, segment_bytes,
};
use crate::block::{Block, Request, Stream};
use crate::conf::TorchConf;
use crate::error::SourceError;
use crate::index::Entry;
use crate::policy::{Fidelity, Policy, Refusal};
use crate::source::Range;
use crate::space::{BlockId, Piece, State};
use crate::supply::Supply;

/// Number of addresses of a range on a device of unknown size. No device has this much memory.
const UNKNOWN_RANGE: u64 = 1 << 50;

/// The `torch-expandable` policy. The module describes its rules.
pub struct TorchExpandable {
    conf: TorchConf,
    pools: Pools,
    ranges: Vec<Option<Range>>,
    /// The unmapped blocks of each pool.
    holes: Vec<Holes>,
}

/// Returns the size of a handle in a range for small or for other requests.
fn handle_bytes(conf: &TorchConf, small: bool) -> u64 {
    if small { SMALL_SEGMENT } else { conf.large_segment }
}

impl TorchExpandable {
    /// Creates the policy with these settings. Expandable segments are always on.
    #[must_use]
    pub fn new(conf: &TorchConf) -> Self {
        Self {
            conf: conf.clone(),
            pools: Pools::new(false),
            ranges: Vec::new(),
            holes: Vec::new(),
        }
    }

    /// Returns the bytes mapped for a request that no free block serves or touches, or `None` if no device could serve it.
    #[must_use]
    pub fn segment_bytes(conf: &TorchConf, requested: u64) -> Option<u64> {
        let block = block_bytes(&Request::new(requested, Stream::DEFAULT), conf).ok()?;
        block.checked_next_multiple_of(handle_bytes(conf, block <= SMALL))
    }

    fn handle_bytes(&self, number: u32) -> u64 {
        handle_bytes(&self.conf, self.pools.key(number).small)
    }

    /// Returns the size to which a free block could grow, in bytes.
    fn expandable_bytes(&self, entry: &Entry) -> u64 {
        entry.bytes
            + self
                .hole_after(entry.id)
                .map_or(0, |hole| self.pools.lists.space.bytes(hole))
    }

    /// Returns the hole behind a block.
    fn hole_after(&self, id: BlockId) -> Option<BlockId> {
        let space = &self.pools.lists.space;
        space.next(id).filter(|n| space.state(*n) == State::Unmapped)
    }

    #[inline]
    fn take_free(&mut self, number: u32, bytes: u64) -> Option<BlockId> {
        let free = self.pools.free(number);
        let mut entry = free.best_fit(bytes)?;
        while let Some(next) = free.after(&entry)
            && self.expandable_bytes(&next) < self.expandable_bytes(&entry)
        {
            entry = next;
        }
        if is_wasted(&self.conf, bytes, entry.bytes) {
            return None;
        }
        self.pools.lists.unlist(entry.id);
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
        let space = &self.pools.lists.space;
        let usable = |id: &BlockId| space.state(*id) != State::Live;
        for hole in self.holes[number as usize].iter() {
            let first = space
                .prev(hole)
                .filter(|p| space.state(*p) == State::Free)
                .unwrap_or(hole);
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
            .device_bytes()
            .map_or(UNKNOWN_RANGE, |bytes| bytes.saturating_add(bytes / 8));
        let range = supply.reserve_up_to(addresses, bytes, handle)?;
        let (address, bytes) = (range.address(), range.bytes());
        self.ranges.push(Some(range));
        let segment = self.ranges.len() as u32 - 1;
        let space = &mut self.pools.lists.space;
        let id = space.add_segment(address, bytes, segment, number, State::Unmapped);
        Ok(self.holes[number as usize].add(space, id))
    }

    /// Backs the front of an unmapped block and joins it with its free neighbours. Returns the free block.
    fn map(&mut self, supply: &mut Supply<'_>, id: BlockId, bytes: u64) -> Result<BlockId, SourceError> {
        let space = &self.pools.lists.space;
        let (number, address) = (space.owner(id), space.address(id));
        let handle = self.handle_bytes(number);
        let bytes = bytes.next_multiple_of(handle);
        let index = space.segment(id) as usize;
        let Some(range) = &self.ranges[index] else {
            return Err(SourceError::Unsupported {
                operation: "map into a range that was released",
            });
        };
        supply.commit(range, address - range.address(), bytes, handle)?;
        self.holes[number as usize].remove_front(&mut self.pools.lists.space, id, bytes);
        Ok(self.pools.put_back(id))
    }

    /// Finds room and maps the missing part. Returns an unlisted block.
    fn expand(&mut self, supply: &mut Supply<'_>, number: u32, bytes: u64) -> Result<BlockId, SourceError> {
        allowed_bytes(&self.conf, supply, segment_bytes(bytes, &self.conf))?;
        let mut id = self.find_room(supply, number, bytes)?;
        if self.pools.lists.space.state(id) == State::Unmapped {
            let part = bytes.min(self.pools.lists.space.bytes(id));
            id = self.map(supply, id, part)?;
        }
        while self.pools.lists.space.bytes(id) < bytes {
            let missing = bytes - self.pools.lists.space.bytes(id);
            let Some(next) = self.hole_after(id) else {
                return Err(SourceError::AddressSpace { requested: bytes });
            };
            let part = missing.min(self.pools.lists.space.bytes(next));
            id = self.map(supply, next, part)?;
        }
        self.pools.lists.unlist(id);
        Ok(id)
    }

    /// Returns the whole handles inside a free block: the start of its range, and the start and end of the handles.
    fn whole_handles(&self, id: BlockId) -> Option<(u64, u64, u64)> {
        let space = &self.pools.lists.space;
        let base = self.ranges[space.segment(id) as usize].as_ref()?.address();
        let (first, end) = space.whole_units(id, base, self.handle_bytes(space.owner(id)))?;
        Some((base, first, end))
    }

    /// Unmaps the whole handles inside a free block.
    fn unmap(&mut self, supply: &mut Supply<'_>, id: BlockId) {
        let Some((base, first, end)) = self.whole_handles(id) else {
            return;
        };
        self.pools.lists.unlist(id);
        let (id, rest) = self.pools.lists.space.isolate(id, first, end - first);
        rest.into_iter().flatten().for_each(|part| self.pools.list(part));
        let space = &mut self.pools.lists.space;
        let index = space.segment(id) as usize;
        if let Some(range) = &self.ranges[index] {
            supply.decommit(range, first - base, end - first);
        }
        let holes = &mut self.holes[space.owner(id) as usize];
        let hole = holes.add(space, id);
        if space.is_whole(hole) {
            holes.remove(space, hole);
            space.remove_segment(hole);
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
        if self.holes.len() <= number as usize {
            self.holes.resize_with(number as usize + 1, Holes::default);
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
        let whole = self.pools.lists.space.bytes(id);
        let keep = if whole - bytes >= MIN_BLOCK { bytes } else { whole };
        Ok(self.pools.hand_out(id, request, keep))
    }

    fn free(&mut self, _supply: &mut Supply<'_>, block: Block) {
        self.pools.put_back(block.key());
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        self.free_deferred(supply);
        for number in self.pools.default_group() {
            let free: Vec<BlockId> = self.pools.free(number).iter().map(|entry| entry.id).collect();
            for id in free {
                self.unmap(supply, id);
            }
        }
    }

    fn returnable_bytes(&self) -> u64 {
        let free = self.pools.iter().flat_map(|(_, free)| free.iter());
        let whole = free.filter_map(|entry| self.whole_handles(entry.id));
        whole.map(|(_, first, end)| end - first).sum()
    }

    fn expect_blocks(&mut self, blocks: usize) {
        self.pools.lists.space.expect(blocks);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.pools.lists.space.layout(visit);
    }

    fn check(&self) {
        self.pools.lists.check();
        Holes::check(&self.pools.lists.space, (0..).zip(&self.holes));
    }
}
