//! Moves the pages of free blocks to the place where they are needed.
//!
//! If the source can map a handle at two addresses, the host does not wait. The pages are mapped at the new place, and
//! the old mapping ends when the work that uses it has completed ([`Supply::alias`]). Otherwise the host waits for the
//! device.

use super::site::Site;
use super::{Held, Millpond};
use crate::error::SourceError;
use crate::index::Entry;
use crate::space::{BlockId, State};
use crate::supply::{Aliased, Supply};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of free blocks of one list that an allocation examines for whole handles, unless memory is short. It
/// applies separately to the blocks that are just large enough and to the largest blocks.
const LOOK: usize = 128;

/// Whole handles in a row that no live block overlaps.
struct Movable {
    /// The free blocks that overlap the handles.
    blocks: Vec<BlockId>,
    /// Index of the range in `held`.
    held: usize,
    offset: u64,
    end: u64,
}

impl Movable {
    fn bytes(&self) -> u64 {
        self.end - self.offset
    }
}

impl Millpond {
    /// Moves whole free handles to a site until `bytes` have been moved. If memory is `scarce`, handles that are too
    /// large for the site are returned to the source.
    pub(super) fn gather(
        &mut self,
        supply: &mut Supply<'_>,
        site: &mut Site,
        bytes: u64,
        scarce: bool,
    ) -> Result<(), SourceError> {
        let (parts, large) = self.movable(supply, site, bytes, scarce);
        let mut gathered: u64 = parts.iter().map(Movable::bytes).sum();
        let at_once = if supply.can_alias() { parts.len() } else { 1 };
        for parts in parts.chunks(at_once.max(1)) {
            self.bring(supply, site, parts)?;
        }
        for part in large {
            if gathered >= bytes {
                break;
            }
            gathered += part.bytes();
            self.give_back_part(supply, site, &part);
        }
        Ok(())
    }

    /// Returns parts of free blocks that fit into a site's hole, up to `bytes`, and parts that do not fit.
    ///
    /// The function takes the part that is just large enough, from its high end. If no part is large enough, it takes the
    /// largest one and continues. This cuts few blocks. Each cut can leave a part of a handle that cannot move.
    fn movable(
        &self,
        supply: &Supply<'_>,
        site: &Site,
        bytes: u64,
        scarce: bool,
    ) -> (Vec<Movable>, Vec<Movable>) {
        let look = if scarce { usize::MAX } else { LOOK };
        let usable = self.usable_lists(supply, site.list);
        let others = self.lists.iter().map(|(n, _)| n).filter(|n| *n != site.list);
        let mut found: Vec<Movable> = Vec::new();
        let mut large: Vec<Movable> = Vec::new();
        // The handles of the found parts, by range and offset, and the blocks of the parts that do not fit.
        let mut taken: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let mut returned = BTreeSet::new();
        let (mut sum, room) = (0, self.hole_bytes(site));
        for number in std::iter::once(site.list).chain(others) {
            if sum >= bytes || !usable[number as usize] {
                continue;
            }
            // These are the blocks that are just large enough, and the largest blocks.
            let fitting = self
                .lists
                .free_from(number, (bytes - sum).max(self.page))
                .take(look);
            let largest = self.lists.free(number).take(look);
            let largest = largest.take_while(|entry| entry.bytes >= self.page);
            let entries = fitting.chain(largest);
            let mut parts: Vec<Movable> = entries
                .filter_map(|entry| self.part_at(&entry, &usable))
                .collect();
            parts.sort_by_key(Movable::bytes);
            while sum < bytes && !parts.is_empty() {
                let enough = parts.partition_point(|part| part.bytes() < bytes - sum);
                let mut part = parts.remove(enough.min(parts.len() - 1));
                // A handle that blocks of two lists share is found in both.
                let key = (part.held, part.offset);
                if let Some(((_, _), end)) = taken.range((part.held, 0)..=key).next_back() {
                    part.offset = part.offset.max(*end);
                }
                if let Some(((_, start), _)) = taken.range(key..(part.held, part.end)).next() {
                    part.end = part.end.min(*start);
                }
                if part.offset >= part.end || part.blocks.iter().any(|id| returned.contains(id)) {
                    continue;
                }
                let start = self.run_of(&part, bytes - sum, room - sum);
                if start < part.end {
                    part.offset = start;
                    sum += part.bytes();
                    taken.insert((part.held, part.offset), part.end);
                    found.push(part);
                } else if scarce {
                    part.offset = self.run_of(&part, bytes - sum, u64::MAX);
                    returned.extend(part.blocks.iter().copied());
                    large.push(part);
                }
            }
        }
        let of_found: BTreeSet<BlockId> = found.iter().flat_map(|part| part.blocks.clone()).collect();
        large.retain(|part| !part.blocks.iter().any(|id| of_found.contains(id)));
        // Two parts can share a block. The identifier of a block stays with its front, so its end is vacated first.
        found.sort_by_key(|part| Reverse((part.held, part.offset)));
        (found, if sum < bytes { large } else { Vec::new() })
    }

    /// Returns the start of the handles at the end of a part that have at least `bytes`, and at most `most`.
    fn run_of(&self, part: &Movable, bytes: u64, most: u64) -> u64 {
        match &self.held[part.held] {
            Held::Paged { pages, .. } => pages.run_below(part.offset, part.end, bytes, most),
            _ => part.end,
        }
    }

    /// Returns the whole free handles that a free block overlaps. A handle may also overlap free blocks of other usable
    /// lists.
    fn part_at(&self, entry: &Entry, usable: &[bool]) -> Option<Movable> {
        let space = &self.lists.space;
        let held = space.segment(entry.id) as usize;
        let Held::Paged { range, pages } = &self.held[held] else {
            return None;
        };
        let base = range.address();
        let first = pages.handle_at(entry.address - base)?.0;
        let last = pages.handle_at(entry.address + entry.bytes - 1 - base)?.1;
        let is_free = |id: &BlockId| self.is_usable(*id, usable);
        let mut blocks = vec![entry.id];
        let mut start = entry.address - base;
        while start > first
            && let Some(prev) = space.prev(blocks[0]).filter(is_free)
        {
            blocks.insert(0, prev);
            start = space.address(prev) - base;
        }
        let mut end = entry.address + entry.bytes - base;
        while end < last
            && let Some(next) = space.next(blocks[blocks.len() - 1]).filter(is_free)
        {
            blocks.push(next);
            end = space.end(next) - base;
        }
        let (offset, end) = pages.whole(start.max(first), end.min(last))?;
        Some(Movable {
            blocks,
            held,
            offset,
            end,
        })
    }

    pub(super) fn whole_handles(&self, entry: &Entry) -> Option<(u64, u64)> {
        let Held::Paged { range, pages } = &self.held[self.lists.space.segment(entry.id) as usize] else {
            return None;
        };
        let base = range.address();
        pages.whole(entry.address - base, entry.address + entry.bytes - base)
    }

    /// Moves parts to a site, one after the other.
    fn bring(
        &mut self,
        supply: &mut Supply<'_>,
        site: &mut Site,
        parts: &[Movable],
    ) -> Result<(), SourceError> {
        let bytes = parts.iter().map(Movable::bytes).sum();
        let Some((target, to)) = self.next_place(site, bytes).filter(|_| bytes > 0) else {
            return Ok(());
        };
        let Held::Paged { range: into, .. } = &self.held[to] else {
            return Ok(());
        };
        let place = (into, target - into.address());
        let mut sizes = Vec::new();
        let mut aliased = Vec::with_capacity(parts.len());
        for part in parts {
            if let Held::Paged { range, pages } = &self.held[part.held] {
                let before = sizes.len();
                sizes.extend(pages.sizes(part.offset, part.bytes()));
                aliased.push(Aliased {
                    range,
                    offset: part.offset,
                    bytes: part.bytes(),
                    handles: (sizes.len() - before) as u64,
                });
            }
        }
        if supply.can_alias() {
            let taker = self.lists.get(site.list).stream;
            let blocks = parts.iter().flat_map(|part| &part.blocks);
            let mut owners: Vec<u32> = blocks.map(|id| self.lists.space.owner(*id)).collect();
            owners.sort_unstable();
            owners.dedup();
            for owner in owners.into_iter().filter(|owner| *owner != site.list) {
                supply.order_after(taker, self.lists.get(owner).stream, None);
            }
            // The taker's stream is now ordered after every use of the old addresses.
            let event = supply.record_event(taker);
            supply.alias(&aliased, place, event)?;
        } else {
            for part in &aliased {
                supply.move_pages((part.range, part.offset), place, part.bytes)?;
            }
        }
        for part in parts {
            if let Held::Paged { pages, .. } = &mut self.held[part.held] {
                pages.unmap(part.offset, part.bytes());
            }
        }
        if let Held::Paged { range, pages } = &mut self.held[to] {
            let mut at = target - range.address();
            for size in sizes {
                pages.map(at, size, size);
                at += size;
            }
        }
        self.advance(site, bytes);
        for part in parts {
            self.vacate_part(site, part);
        }
        self.moved += bytes;
        Ok(())
    }

    fn give_back_part(&mut self, supply: &mut Supply<'_>, site: &mut Site, part: &Movable) {
        if let Held::Paged { range, pages } = &mut self.held[part.held] {
            supply.decommit(range, part.offset, part.bytes());
            pages.unmap(part.offset, part.bytes());
            self.vacate_part(site, part);
        }
    }

    /// Vacates the addresses of a part in each of its blocks. They may be joined with the hole of a site.
    fn vacate_part(&mut self, site: &mut Site, part: &Movable) {
        let Held::Paged { range, .. } = &self.held[part.held] else {
            return;
        };
        let (first, end) = (range.address() + part.offset, range.address() + part.end);
        let space = &self.lists.space;
        let within = |id: &BlockId| (*id, space.address(*id).max(first), space.end(*id).min(end));
        let blocks: Vec<_> = part
            .blocks
            .iter()
            .map(within)
            .filter(|(_, start, end)| start < end)
            .collect();
        for (id, start, end) in blocks {
            let (hole, joined) = self.vacate(id, start, end);
            if joined.is_some() && joined == site.hole {
                site.hole = Some(hole);
            }
        }
    }

    pub(super) fn vacate(&mut self, id: BlockId, start: u64, end: u64) -> (BlockId, Option<BlockId>) {
        if self.notes_use() {
            self.forget_use(self.lists.space.segment(id), start, end);
        }
        self.lists.unlist(id);
        let (mut id, rest) = self.lists.space.isolate(id, start, end - start);
        rest.into_iter().flatten().for_each(|part| self.lists.list(part));
        let space = &mut self.lists.space;
        space.set_state(id, State::Unmapped);
        let number = space.owner(id);
        let prev = space.prev(id).filter(|p| space.state(*p) == State::Unmapped);
        let next = space.next(id).filter(|n| space.state(*n) == State::Unmapped);
        if let Some(prev) = prev {
            let entry = self.unmapped_entry(prev);
            self.area(number).unmapped.remove(entry.bytes, entry.address);
            self.lists.space.merge_next(prev);
            id = prev;
        }
        if let Some(next) = next {
            let entry = self.unmapped_entry(next);
            self.area(number).unmapped.remove(entry.bytes, entry.address);
            self.lists.space.merge_next(id);
        }
        let entry = self.unmapped_entry(id);
        self.area(number).unmapped.insert(entry);
        (id, next)
    }
}
