//! Chooses the place for a request that no free block serves.

use super::pages::Pages;
use super::{Area, Held, Millpond};
use crate::error::SourceError;
use crate::index::Entry;
use crate::space::{BlockId, State};
use crate::supply::Supply;

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
    pub(super) fn choose_site(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<Site, SourceError> {
        let page = supply.page_bytes();
        let wanted = bytes.next_multiple_of(page);
        let mut best: Option<(u64, u64, BlockId, bool)> = None;
        for entry in self.areas[self.lists.get(number).area as usize].unmapped.iter() {
            let space = &self.lists.space;
            let free = |n: Option<BlockId>| {
                n.filter(|n| space.state(*n) == State::Free && space.owner(*n) == number)
                    .map_or(0, |n| space.bytes(n))
            };
            let (front, back) = (free(space.prev(entry.id)), free(space.next(entry.id)));
            if front + entry.bytes + back < bytes {
                continue;
            }
            let up = bytes
                .saturating_sub(front)
                .next_multiple_of(page)
                .min(entry.bytes);
            let down = bytes.saturating_sub(back).next_multiple_of(page).min(entry.bytes);
            let candidate = (up.min(down), entry.address, entry.id, up <= down);
            if best.is_none_or(|b| (candidate.0, candidate.1) < (b.0, b.1)) {
                best = Some(candidate);
            }
        }
        let (hole, upward) = match best {
            Some((.., id, upward)) => (id, upward),
            None => (self.add_range(supply, number, wanted)?, true),
        };
        Ok(self.open(number, hole, upward))
    }

    /// Returns the site at the widest hole, growing upward. There is no free block on one side of it, or none is
    /// needed.
    pub(super) fn widest_site(
        &mut self,
        supply: &mut Supply<'_>,
        number: u32,
        bytes: u64,
    ) -> Result<Site, SourceError> {
        let wanted = bytes.next_multiple_of(supply.page_bytes());
        let holes = self.areas[self.lists.get(number).area as usize].unmapped.iter();
        let widest = holes
            .max_by_key(|hole| hole.bytes)
            .filter(|hole| hole.bytes >= wanted);
        let hole = match widest {
            Some(hole) => hole.id,
            None => self.add_range(supply, number, wanted)?,
        };
        let mut site = self.open(number, hole, true);
        if let Some(beyond) = site.beyond.take() {
            self.lists.put_back(beyond);
        }
        Ok(site)
    }

    fn open(&mut self, number: u32, hole: BlockId, upward: bool) -> Site {
        self.lists.space.set_owner(hole, number);
        let (prev, next) = (self.lists.space.prev(hole), self.lists.space.next(hole));
        let mut beside = [prev, next].map(|n| self.lists.joins(hole, n));
        for block in beside.into_iter().flatten() {
            self.lists.unlist(block);
            self.lists.space.set_state(block, State::Live);
        }
        if !upward {
            beside.reverse();
        }
        Site {
            list: number,
            block: beside[0],
            hole: Some(hole),
            beyond: beside[1],
            upward,
        }
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
