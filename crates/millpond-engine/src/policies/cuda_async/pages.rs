//! Pages under free lists: the addresses of a pool, some backed by memory.
//!
//! ```text
//!   range   | live | free |     hole     | live |  free  |   hole ...
//!           |page |page |page|              |page |page  |
//! ```
//!
//! Holes consist of whole pages. Blocks need not.

use super::super::free_lists::FreeLists;
use crate::error::SourceError;
use crate::source::Range;
use crate::space::{BlockId, State};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// Bytes of a page and of each handle.
const PAGE: u64 = 2 << 20;
/// Number of addresses reserved at once. Addresses cost nothing.
const RANGE: u64 = 1 << 46;

struct Pool {
    /// The list that owns the holes. It always stays empty.
    unmapped: u32,
    /// The holes in address order.
    holes: BTreeMap<u64, BlockId>,
}

/// The pages and free lists of all pools.
#[derive(Default)]
pub(super) struct Pages {
    pub(super) lists: FreeLists,
    pools: Vec<Pool>,
    /// The pool of each list.
    owners: Vec<usize>,
    /// The ranges, which are never released. Their indices are the segment numbers.
    ranges: Vec<Range>,
}

impl Pages {
    /// Adds an empty pool. Returns its index.
    pub(super) fn add_pool(&mut self) -> usize {
        let pool = self.pools.len();
        let unmapped = self.add_list(pool);
        self.pools.push(Pool {
            unmapped,
            holes: BTreeMap::new(),
        });
        pool
    }

    /// Adds a free list to a pool. Returns its number.
    pub(super) fn add_list(&mut self, pool: usize) -> u32 {
        self.owners.push(pool);
        self.lists.add_list()
    }

    pub(super) fn pool_of(&self, id: BlockId) -> usize {
        self.owners[self.lists.space.owner(id) as usize]
    }

    /// Creates pages for a block. Returns the block, which is not listed.
    pub(super) fn grow(
        &mut self,
        supply: &mut Supply<'_>,
        list: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        let (hole, missing) = self.room(supply, list, bytes)?;
        let id = self.commit(supply, list, hole, missing)?;
        self.lists.unlist(id);
        Ok(id)
    }

    /// Builds a block from the list's free pages, and from new pages as far as the device has memory. Returns the
    /// block, which is not listed.
    pub(super) fn gather(
        &mut self,
        supply: &mut Supply<'_>,
        list: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        let (hole, missing) = self.room(supply, list, bytes)?;
        let free = supply.free_bytes().unwrap_or(0);
        let fresh = (free / PAGE * PAGE).min(missing);
        let spare = self.spare(list, hole);
        let spare_bytes: u64 = spare.iter().map(|(_, first, end)| end - first).sum();
        if fresh + spare_bytes < missing {
            return Err(SourceError::OutOfMemory {
                requested: missing,
                free,
                capacity: supply.capacity().unwrap_or(free),
            });
        }
        let mut at = hole;
        let mut last = None;
        if fresh > 0 {
            last = Some(self.commit(supply, list, at, fresh)?);
            at += fresh;
        }
        for (id, first, end) in spare {
            let part = (end - first).min(hole + missing - at);
            if part == 0 {
                break;
            }
            let Some((from, to)) = self.range_at(first).zip(self.range_at(at)) else {
                return Err(SourceError::AddressSpace { requested: bytes });
            };
            supply.move_pages((from, first - from.address()), (to, at - to.address()), part)?;
            self.unmap(id, first, first + part);
            last = Some(self.map(list, at, part));
            at += part;
        }
        let Some(id) = last else {
            return Err(SourceError::AddressSpace { requested: bytes });
        };
        self.lists.unlist(id);
        Ok(id)
    }

    /// Returns the bytes of the whole pages inside a list's free blocks.
    pub(super) fn spare_bytes(&self, list: u32) -> u64 {
        let spare = self.spare(list, u64::MAX).into_iter();
        spare.map(|(_, first, end)| end - first).sum()
    }

    /// Returns the whole pages inside a list's free blocks to the source.
    pub(super) fn decommit(&mut self, supply: &mut Supply<'_>, list: u32) {
        for (id, first, end) in self.spare(list, u64::MAX) {
            self.unmap(id, first, end);
            if let Some(range) = self.range_at(first) {
                supply.decommit(range, first - range.address(), end - first);
            }
        }
    }

    pub(super) fn check(&self) {
        self.lists.check();
        let space = &self.lists.space;
        let mut holes = 0;
        for pool in &self.pools {
            assert!(
                self.lists.free(pool.unmapped).is_empty(),
                "free blocks among holes"
            );
            for (address, id) in &pool.holes {
                assert_eq!(space.state(*id), State::Unmapped, "{id:?} is listed and mapped");
                assert_eq!((space.address(*id), space.owner(*id)), (*address, pool.unmapped));
                assert!(space.bytes(*id).is_multiple_of(PAGE), "a part of a page");
                holes += 1;
            }
        }
        let there = space.ids().filter(|id| space.state(*id) == State::Unmapped);
        assert_eq!(holes, there.count(), "holes that no pool knows");
    }

    fn range_at(&self, address: u64) -> Option<&Range> {
        let mut ranges = self.ranges.iter();
        ranges.find(|r| (r.address()..r.address() + r.bytes()).contains(&address))
    }

    /// Finds the lowest hole with enough room, including the list's free block before it. Returns the address of the
    /// hole and the bytes of pages that are missing.
    fn room(&mut self, supply: &mut Supply<'_>, list: u32, bytes: u64) -> Result<(u64, u64), SourceError> {
        let pool = self.owners[list as usize];
        let space = &self.lists.space;
        for (address, hole) in &self.pools[pool].holes {
            let before = space.prev(*hole).filter(|p| space.owner(*p) == list);
            let before = before.filter(|p| space.state(*p) == State::Free);
            let missing = bytes - before.map_or(0, |p| space.bytes(p)).min(bytes);
            if missing <= space.bytes(*hole) {
                return Ok((*address, missing.next_multiple_of(PAGE)));
            }
        }
        let range = supply.reserve_up_to(RANGE, bytes, PAGE)?;
        let (address, reserved) = (range.address(), range.bytes());
        self.ranges.push(range);
        let number = self.ranges.len() as u32 - 1;
        let Pool { unmapped, holes } = &mut self.pools[pool];
        let hole = self
            .lists
            .space
            .add_segment(address, reserved, number, *unmapped, State::Unmapped);
        holes.insert(address, hole);
        Ok((address, bytes.next_multiple_of(PAGE)))
    }

    /// Returns the whole pages inside a list's free blocks, lowest first. Leaves out the block that ends at `hole`.
    fn spare(&self, list: u32, hole: u64) -> Vec<(BlockId, u64, u64)> {
        let space = &self.lists.space;
        let free = self.lists.free(list).iter().map(|entry| entry.id);
        let mut spare: Vec<(BlockId, u64, u64)> = free
            .filter(|id| space.end(*id) != hole)
            .filter_map(|id| {
                let base = self.ranges[space.segment(id) as usize].address();
                let first = base + (space.address(id) - base).next_multiple_of(PAGE);
                let end = base + (space.end(id) - base) / PAGE * PAGE;
                (first < end).then_some((id, first, end))
            })
            .collect();
        spare.sort_unstable_by_key(|(_, first, _)| *first);
        spare
    }

    /// Backs the start of a hole with new pages. Returns the free block that the pages join.
    fn commit(
        &mut self,
        supply: &mut Supply<'_>,
        list: u32,
        hole: u64,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        let Some(range) = self.range_at(hole) else {
            return Err(SourceError::AddressSpace { requested: bytes });
        };
        supply.commit(range, hole - range.address(), bytes, PAGE)?;
        Ok(self.map(list, hole, bytes))
    }

    /// Turns the start of a hole into a free block of a list. Returns the block that it joins.
    fn map(&mut self, list: u32, hole: u64, bytes: u64) -> BlockId {
        let holes = &mut self.pools[self.owners[list as usize]].holes;
        let Some(id) = holes.remove(&hole) else {
            debug_assert!(false, "no hole at {hole:#x}");
            return BlockId::NONE;
        };
        let space = &mut self.lists.space;
        if bytes < space.bytes(id) {
            let rest = space.split(id, bytes);
            holes.insert(space.address(rest), rest);
        }
        space.set_owner(id, list);
        self.lists.put_back(id)
    }

    /// Turns whole pages inside a free block into a hole and joins it with its neighbours.
    fn unmap(&mut self, id: BlockId, first: u64, end: u64) {
        let mut id = id;
        self.lists.unlist(id);
        let Pool { unmapped, holes } = &mut self.pools[self.owners[self.lists.space.owner(id) as usize]];
        if end < self.lists.space.end(id) {
            let rest = self.lists.space.split(id, end - self.lists.space.address(id));
            self.lists.relist(rest);
        }
        if self.lists.space.address(id) < first {
            let rest = self.lists.space.split(id, first - self.lists.space.address(id));
            self.lists.relist(id);
            id = rest;
        }
        let space = &mut self.lists.space;
        space.set_state(id, State::Unmapped);
        space.set_owner(id, *unmapped);
        if let Some(next) = space.next(id).filter(|n| space.state(*n) == State::Unmapped) {
            holes.remove(&space.address(next));
            space.merge_next(id);
        }
        if let Some(prev) = space.prev(id).filter(|p| space.state(*p) == State::Unmapped) {
            space.merge_next(prev);
            id = prev;
        }
        holes.insert(space.address(id), id);
    }
}
