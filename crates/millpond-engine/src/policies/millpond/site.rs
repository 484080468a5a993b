//! Chooses the place for a request that no free block serves.

use super::pages::Pages;
use super::{Area, Held, Millpond};
use crate::error::SourceError;
use crate::index::Entry;
use crate::space::{BlockId, State};
use crate::supply::Supply;

/// Number of the largest free blocks, and of the holes that fit best, that are examined for a place.
const LOOK: usize = 64;
/// Number of addresses of a range if the device has no limit.
const UNLIMITED_RANGE: u64 = 1 << 46;
/// Maximum number of pages of a range. Pages are counted in 32 bits.
const RANGE_PAGES: u64 = 1 << 30;

/// Free memory that is being collected for one request: an unlisted block that grows into the adjacent addresses
/// without memory.
///
/// ```text
///   |live| block |      hole      | beyond |live|     upward: pages go to the hole's low end
///   |live| beyond |     hole      | block |live|      downward: to its high end
/// ```
///
/// When the hole is full, `beyond` is joined with the block.
pub(super) struct Site {
    pub(super) list: u32,
    pub(super) block: Option<BlockId>,
    pub(super) hole: Option<BlockId>,
    /// The free block on the other side of the hole. It is unlisted as well, so that its pages stay there.
    pub(super) beyond: Option<BlockId>,
    /// Whether the block lies below the hole and grows up. Otherwise it lies above the hole and grows down.
    upward: bool,
}

impl Millpond {
    /// Returns the site where the fewest pages are missing, among the largest free blocks and the holes that fit best.
    /// Adjacent free blocks of several streams count as one.
    pub(super) fn choose_site(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<Site, SourceError> {
        let page = supply.page_bytes();
        let wanted = bytes.next_multiple_of(page);
        let usable = self.usable_lists(supply, number);
        let space = &self.lists.space;
        let mut holes: Vec<BlockId> = Vec::new();
        let mut whole: Option<(u64, u64, BlockId)> = None;
        for (list, _) in self.lists.iter().filter(|(n, _)| usable[*n as usize]) {
            for entry in self.lists.free(list).take(LOOK) {
                let (first, last) = self.free_run(entry.id, &usable);
                let have = (
                    space.end(last) - space.address(first),
                    space.address(first),
                    first,
                );
                if have.0 >= bytes && whole.is_none_or(|best| (have.0, have.1) < (best.0, best.1)) {
                    whole = Some(have);
                }
                let beside = [space.prev(first), space.next(last)];
                let is_hole = |id: &BlockId| space.state(*id) == State::Unmapped;
                holes.extend(beside.into_iter().flatten().filter(is_hole));
            }
        }
        if let Some((.., first)) = whole {
            let block = self.take_run(supply, number, first, &usable);
            return Ok(Site {
                list: number,
                block: Some(block),
                hole: None,
                beyond: None,
                upward: true,
            });
        }
        let unmapped = &self.areas[self.lists.get(number).area as usize].unmapped;
        let fitting = std::iter::successors(unmapped.best_fit(wanted), |entry| unmapped.after(entry));
        holes.extend(fitting.take(LOOK).map(|entry| entry.id));
        holes.extend(unmapped.largest().map(|entry| entry.id));
        let mut best: Option<(u64, u64, BlockId, bool)> = None;
        for id in holes {
            let run = |side: Option<BlockId>| {
                let side = side.filter(|id| self.is_usable(*id, &usable));
                side.map_or(0, |id| {
                    let (first, last) = self.free_run(id, &usable);
                    space.end(last) - space.address(first)
                })
            };
            let (front, back) = (run(space.prev(id)), run(space.next(id)));
            let room = space.bytes(id);
            if front + room + back < bytes {
                continue;
            }
            let missing = |have: u64| bytes.saturating_sub(have).next_multiple_of(page).min(room);
            let (up, down) = (missing(front), missing(back));
            let candidate = (up.min(down), space.address(id), id, up <= down);
            if best.is_none_or(|best| (candidate.0, candidate.1) < (best.0, best.1)) {
                best = Some(candidate);
            }
        }
        let (hole, upward, full) = match best {
            Some((need, _, id, upward)) => (id, upward, need == self.lists.space.bytes(id)),
            None => (self.add_range(supply, number, wanted)?, true, false),
        };
        Ok(self.open(supply, number, hole, upward, full))
    }

    /// Returns the site at the widest hole, growing upward.
    pub(super) fn widest_site(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<Site, SourceError> {
        let wanted = bytes.next_multiple_of(supply.page_bytes());
        let unmapped = &self.areas[self.lists.get(number).area as usize].unmapped;
        let hole = match unmapped.largest().filter(|hole| hole.bytes >= wanted) {
            Some(hole) => hole.id,
            None => self.add_range(supply, number, wanted)?,
        };
        Ok(self.open(supply, number, hole, true, false))
    }

    /// Returns the site at a hole. If the hole will be full, the free blocks on its other side belong to the site too.
    fn open(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        hole: BlockId,
        upward: bool,
        full: bool,
    ) -> Site {
        let usable = self.usable_lists(supply, number);
        self.lists.space.set_owner(hole, number);
        let (below, above) = (self.lists.space.prev(hole), self.lists.space.next(hole));
        let (block, beyond) = if upward { (below, above) } else { (above, below) };
        let mut take = |side: Option<BlockId>| {
            let side = side.filter(|id| self.is_usable(*id, &usable));
            side.map(|id| self.take_run(supply, number, id, &usable))
        };
        let block = take(block);
        Site {
            list: number,
            block,
            hole: Some(hole),
            beyond: take(beyond.filter(|_| full)),
            upward,
        }
    }

    /// Returns for each list whether a request of list `number` may use its free blocks: they are in the same area, and
    /// a wait for their stream is possible.
    pub(super) fn usable_lists(&self, supply: &Supply<'_>, number: u32) -> Vec<bool> {
        let area = self.lists.get(number).area;
        let lists = self.lists.iter();
        lists
            .map(|(n, l)| l.area == area && (n == number || supply.can_wait_for(l.stream)))
            .collect()
    }

    /// Returns whether a block is free and in a usable list.
    pub(super) fn is_usable(&self, id: BlockId, usable: &[bool]) -> bool {
        let space = &self.lists.space;
        space.state(id) == State::Free && usable[space.owner(id) as usize]
    }

    /// Returns the first and last block of the adjacent usable free blocks around a free block.
    fn free_run(&self, id: BlockId, usable: &[bool]) -> (BlockId, BlockId) {
        let space = &self.lists.space;
        let (mut first, mut last) = (id, id);
        while let Some(prev) = space.prev(first).filter(|id| self.is_usable(*id, usable)) {
            first = prev;
        }
        while let Some(next) = space.next(last).filter(|id| self.is_usable(*id, usable)) {
            last = next;
        }
        (first, last)
    }

    /// Joins adjacent usable free blocks into one unlisted block of list `number`, whose stream waits for the others.
    fn take_run(&mut self, supply: &mut Supply<'_>, number: u32, id: BlockId, usable: &[bool]) -> BlockId {
        let (first, last) = self.free_run(id, usable);
        let mut waited = Vec::new();
        let mut joined = 0;
        let mut at = Some(first);
        while let Some(id) = at {
            joined += 1;
            self.lists.unlist(id);
            self.claim(supply, number, id, &mut waited);
            at = self.lists.space.next(id).filter(|_| id != last);
        }
        for _ in 1..joined {
            self.lists.space.merge_next(first);
        }
        first
    }

    /// Marks an unlisted free block live and assigns it to list `number`. The stream of this list waits for the stream of
    /// the block's old list, unless `waited` contains the old list.
    pub(super) fn claim(&mut self, supply: &mut Supply<'_>, number: u32, id: BlockId, waited: &mut Vec<u32>) {
        let owner = self.lists.space.owner(id);
        if owner != number && !waited.contains(&owner) {
            waited.push(owner);
            supply.order_after(self.lists.get(number).stream, self.lists.get(owner).stream, None);
        }
        self.lists.space.set_state(id, State::Live);
        self.lists.space.set_owner(id, number);
    }

    pub(super) fn next_place(&self, site: &Site, bytes: u64) -> Option<(u64, usize)> {
        let space = &self.lists.space;
        let hole = site.hole?;
        let address = if site.upward {
            space.address(hole)
        } else {
            space.end(hole) - bytes
        };
        Some((address, space.segment(hole) as usize))
    }

    pub(super) fn advance(&mut self, site: &mut Site, bytes: u64) {
        let Some(hole) = site.hole else { return };
        let entry = self.unmapped_entry(hole);
        self.area(site.list).unmapped.remove(entry.bytes, entry.address);
        let space = &mut self.lists.space;
        let whole = space.bytes(hole);
        let (new, rest) = if bytes >= whole {
            (hole, None)
        } else if site.upward {
            (hole, Some(space.split(hole, bytes)))
        } else {
            (space.split(hole, whole - bytes), Some(hole))
        };
        space.set_state(new, State::Live);
        space.set_owner(new, site.list);
        site.hole = rest;
        site.block = Some(match site.block {
            Some(block) if site.upward => {
                space.merge_next(block);
                block
            }
            Some(_) => {
                space.merge_next(new);
                new
            }
            None => new,
        });
        if let Some(rest) = rest {
            let entry = self.unmapped_entry(rest);
            self.area(site.list).unmapped.insert(entry);
            return;
        }
        // The hole is full, so the free block on its other side now belongs to this block.
        let Some(block) = site.block else { return };
        if let Some(other) = site.beyond.take() {
            let (first, _) = if site.upward {
                (block, other)
            } else {
                (other, block)
            };
            self.lists.space.merge_next(first);
            site.block = Some(first);
        }
    }

    fn site_bytes(&self, site: &Site) -> u64 {
        site.block.map_or(0, |f| self.lists.space.bytes(f))
    }

    pub(super) fn hole_bytes(&self, site: &Site) -> u64 {
        site.hole.map_or(0, |f| self.lists.space.bytes(f))
    }

    pub(super) fn missing(&self, site: &Site, bytes: u64) -> u64 {
        let missing = bytes.saturating_sub(self.site_bytes(site));
        missing.next_multiple_of(self.page).min(self.hole_bytes(site))
    }

    fn add_range(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<BlockId, SourceError> {
        let page = supply.page_bytes();
        let addresses = supply
            .capacity()
            .map_or(UNLIMITED_RANGE, |c| c.saturating_mul(8))
            .min(RANGE_PAGES * page);
        let range = supply.reserve_up_to(addresses, bytes, page)?;
        let (address, bytes) = (range.address(), range.bytes());
        self.held.push(Held::Paged {
            range,
            pages: Pages::new(page),
        });
        let index = self.held.len() as u32 - 1;
        let id = self
            .lists
            .space
            .add_segment(address, bytes, index, number, State::Unmapped);
        let entry = self.unmapped_entry(id);
        self.area(number).unmapped.insert(entry);
        Ok(id)
    }

    pub(super) fn unmapped_entry(&self, id: BlockId) -> Entry {
        Entry::of(&self.lists.space, id)
    }

    pub(super) fn area(&mut self, number: u32) -> &mut Area {
        &mut self.areas[self.lists.get(number).area as usize]
    }
}
