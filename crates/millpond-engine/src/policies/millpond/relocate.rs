//! Replaces the pages under live blocks: in a compaction, and as the last step before a request is refused.
//!
//! A handle of several pages cannot move while a live block overlaps it, even if most of its pages are free. It is replaced
//! by handles of a page each under the live blocks, and the device gets the rest back:
//!
//! ```text
//!   before   |   live    free      free      free   |     one handle of four pages
//!   after    |   live   |      no memory            |     one handle of one page
//! ```
//!
//! The live blocks keep their addresses and contents. The device must be idle, and needs room for the copies.

use super::{Held, Millpond};
use crate::block::Group;
use crate::index::Entry;
use crate::space::{BlockId, State};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// A handle that has free pages and that live blocks overlap.
struct Mixed {
    /// Index of the range in `held`.
    held: usize,
    offset: u64,
    bytes: u64,
    /// The free pages: the free block, and their start and end offset.
    free: Vec<(BlockId, u64, u64)>,
}

impl Mixed {
    fn free_bytes(&self) -> u64 {
        self.free.iter().map(|(_, start, end)| end - start).sum()
    }

    fn live_bytes(&self) -> u64 {
        self.bytes - self.free_bytes()
    }

    /// Returns the offset and bytes of each part that live blocks overlap.
    fn kept(&self) -> Vec<(u64, u64)> {
        let mut kept = Vec::new();
        let mut at = self.offset;
        let end = self.offset + self.bytes;
        for (start, next) in self.free.iter().map(|part| (part.1, part.2)).chain([(end, end)]) {
            if at < start {
                kept.push((at, start - at));
            }
            at = next;
        }
        kept
    }
}

impl Millpond {
    /// Returns pages to the device until `bytes` can be provided, by replacing handles that live blocks overlap. Returns
    /// false, and replaces nothing, if this cannot provide enough. Also returns false if a replacement fails. The caller
    /// has waited for the device and joined the free blocks of all streams.
    pub(super) fn relocate(&mut self, supply: &mut Supply<'_>, number: u32, bytes: u64) -> bool {
        let area = self.lists.get(number).area;
        if !self.may_relocate(supply, area) {
            return false;
        }
        let free: Vec<Entry> = self.free_of(area);
        let whole = free.iter().filter_map(|entry| self.whole_handles(entry));
        let whole: u64 = whole.map(|(start, end)| end - start).sum();
        let wanted = bytes.next_multiple_of(self.page);
        let have = whole + supply.free_bytes().unwrap_or(u64::MAX);
        let mut missing = wanted.saturating_sub(have);
        let gain: u64 = self.mixed(area).iter().map(Mixed::free_bytes).sum();
        if missing == 0 || gain < missing {
            return false;
        }
        while missing > 0 {
            let handles = self.mixed(area).into_iter();
            let Some(best) =
                handles.max_by_key(|handle| handle.free_bytes() * 1000 / handle.live_bytes().max(1))
            else {
                return false;
            };
            let room = supply.free_bytes().unwrap_or(u64::MAX);
            if room < best.live_bytes() {
                // This changes the free blocks, so the handles are searched again.
                if !self.make_room(supply, area, best.live_bytes() - room) {
                    return false;
                }
                continue;
            }
            if !self.replace(supply, &best) {
                return false;
            }
            missing = missing.saturating_sub(best.free_bytes());
        }
        true
    }

    /// Returns to the device the free pages of all handles that live blocks overlap, as far as it has room for the copies.
    /// The caller has waited for the device and joined the free blocks of all streams.
    pub(super) fn relocate_all(&mut self, supply: &mut Supply<'_>) {
        for area in 0..self.areas.len() as u32 {
            if !self.may_relocate(supply, area) {
                continue;
            }
            // A free block may overlap two handles. Its identifier stays with its front, so the last handle is replaced
            // first.
            for handle in self.mixed(area).iter().rev() {
                let room = supply.free_bytes().unwrap_or(u64::MAX);
                if room >= handle.live_bytes() && !self.replace(supply, handle) {
                    return;
                }
            }
        }
    }

    fn may_relocate(&self, supply: &Supply<'_>, area: u32) -> bool {
        // A captured graph uses the memory of its own group at any time.
        let is_default = self.areas[area as usize].group == Group::default();
        self.conf.relocate && is_default && supply.can_relocate() && supply.can_wait()
    }

    fn free_of(&self, area: u32) -> Vec<Entry> {
        let lists = self.lists.iter().filter(|(_, list)| list.area == area);
        lists.flat_map(|(number, _)| self.lists.free(number)).collect()
    }

    /// Returns the handles of an area that have free pages and are overlapped by live blocks.
    fn mixed(&self, area: u32) -> Vec<Mixed> {
        let mut found: BTreeMap<(usize, u64), Mixed> = BTreeMap::new();
        for entry in self.free_of(area) {
            let held = self.lists.space.segment(entry.id) as usize;
            let Held::Paged { range, pages } = &self.held[held] else {
                continue;
            };
            let (from, to) = (
                entry.address - range.address(),
                entry.address - range.address() + entry.bytes,
            );
            let mut handles: Vec<(u64, u64)> = Vec::new();
            handles.extend(pages.handle_at(from));
            handles.extend(pages.handle_at(to - 1));
            handles.dedup();
            for (start, end) in handles {
                let first = from.max(start).next_multiple_of(self.page);
                let last = to.min(end) / self.page * self.page;
                if first >= last || (first, last) == (start, end) {
                    continue;
                }
                let mixed = found.entry((held, start)).or_insert(Mixed {
                    held,
                    offset: start,
                    bytes: end - start,
                    free: Vec::new(),
                });
                mixed.free.push((entry.id, first, last));
            }
        }
        for mixed in found.values_mut() {
            mixed.free.sort_by_key(|part| part.1);
        }
        found.into_values().collect()
    }

    /// Returns contiguous free handles of at least `bytes` to the device. Returns false if there are none.
    fn make_room(&mut self, supply: &mut Supply<'_>, area: u32, bytes: u64) -> bool {
        for entry in self.free_of(area) {
            let Some((start, end)) = self.whole_handles(&entry) else {
                continue;
            };
            let Held::Paged { range, pages } = &self.held[self.lists.space.segment(entry.id) as usize] else {
                continue;
            };
            let base = range.address();
            let start = pages.run_below(start, end, bytes, u64::MAX);
            if end - start >= bytes {
                self.give_back(supply, entry.id, base + start, base + end);
                return true;
            }
        }
        false
    }

    fn replace(&mut self, supply: &mut Supply<'_>, handle: &Mixed) -> bool {
        let Held::Paged { range, pages } = &mut self.held[handle.held] else {
            return false;
        };
        let kept = handle.kept();
        if supply
            .relocate(range, handle.offset, handle.bytes, &kept)
            .is_err()
        {
            return false;
        }
        pages.unmap(handle.offset, handle.bytes);
        for (offset, bytes) in kept {
            pages.map(offset, bytes, self.page);
        }
        let base = range.address();
        // A block's identifier stays with its front, so its end is vacated first.
        for (id, start, end) in handle.free.iter().rev() {
            debug_assert_eq!(self.lists.space.state(*id), State::Free);
            self.vacate(*id, base + start, base + end);
        }
        true
    }
}
