//! Pages under free lists: the addresses of a pool, some backed by memory.
//!
//! ```text
//!   range   | live | free |     hole     | live |  free  |   hole ...
//!           |page |page |page|              |page |page  |
//! ```
//!
//! Holes consist of whole pages. Blocks need not.

use super::super::free_lists::FreeLists;
use super::super::holes::Holes;
use crate::error::SourceError;
use crate::source::Range;
use crate::space::{BlockId, State};
use crate::supply::Supply;

/// Bytes of a page and of each handle.
const PAGE: u64 = 2 << 20;
/// Number of addresses reserved at once. Addresses cost nothing.
const RANGE: u64 = 1 << 46;

struct Pool {
    /// The list that owns the holes. It always stays empty.
    unmapped: u32,
    holes: Holes,
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
            holes: Holes::default(),
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
        Holes::check(space, self.pools.iter().map(|pool| (pool.unmapped, &pool.holes)));
        for pool in &self.pools {
            assert!(
                self.lists.free(pool.unmapped).is_empty(),
                "free blocks among holes"
            );
            let mut holes = pool.holes.iter();
            assert!(
                holes.all(|id| space.bytes(id).is_multiple_of(PAGE)),
                "a part of a page"
            );
        }
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
        for hole in self.pools[pool].holes.iter() {
            let before = space.prev(hole).filter(|p| space.owner(*p) == list);
            let before = before.filter(|p| space.state(*p) == State::Free);
            let missing = bytes - before.map_or(0, |p| space.bytes(p)).min(bytes);
            if missing <= space.bytes(hole) {
                return Ok((space.address(hole), missing.next_multiple_of(PAGE)));
            }
        }
        let range = supply.reserve_up_to(RANGE, bytes, PAGE)?;
        let (address, reserved) = (range.address(), range.bytes());
        self.ranges.push(range);
        let number = self.ranges.len() as u32 - 1;
        let Pool { unmapped, holes } = &mut self.pools[pool];
        let space = &mut self.lists.space;
        let hole = space.add_segment(address, reserved, number, *unmapped, State::Unmapped);
        holes.add(space, hole);
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
                let (first, end) = space.whole_units(id, base, PAGE)?;
                Some((id, first, end))
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
        let Some(id) = holes.at(hole) else {
            debug_assert!(false, "no hole at {hole:#x}");
            return BlockId::NONE;
        };
        let space = &mut self.lists.space;
        holes.remove_front(space, id, bytes);
        space.set_owner(id, list);
        self.lists.put_back(id)
    }

    /// Turns whole pages inside a free block into a hole and joins it with its neighbours.
    fn unmap(&mut self, id: BlockId, first: u64, end: u64) {
        self.lists.unlist(id);
        let (id, rest) = self.lists.space.isolate(id, first, end - first);
        rest.into_iter()
            .flatten()
            .for_each(|part| self.lists.relist(part));
        let space = &mut self.lists.space;
        let Pool { unmapped, holes } = &mut self.pools[self.owners[space.owner(id) as usize]];
        space.set_owner(id, *unmapped);
        holes.add(space, id);
    }
}
