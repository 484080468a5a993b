//! Moves the pages of free blocks to the place where they are needed.

use super::site::Site;
use super::{Held, Millpond};
use crate::error::SourceError;
use crate::index::Entry;
use crate::space::{BlockId, State};
use crate::supply::Supply;

/// Maximum number of free blocks of one list that an allocation examines for whole handles, unless memory is short.
const LOOK: usize = 64;

impl Millpond {
    pub(super) fn gather(
        &mut self,
        supply: &mut Supply<'_>,
        site: &mut Site,
        bytes: u64,
        scarce: bool,
    ) -> Result<(), SourceError> {
        let look = if scarce { usize::MAX } else { LOOK };
        let mut gathered = 0;
        let area = self.lists.get(site.list).area;
        let others = self
            .lists
            .iter()
            .filter(|(n, l)| l.area == area && *n != site.list);
        let numbers: Vec<u32> = std::iter::once(site.list).chain(others.map(|(n, _)| n)).collect();
        for number in numbers {
            // A handle can have more pages than were missing, so the previous list may have been enough.
            for source in self.movable(number, bytes.saturating_sub(gathered), look) {
                if gathered >= bytes {
                    return Ok(());
                }
                gathered += self.bring(supply, site, source, bytes - gathered)?;
            }
        }
        Ok(())
    }

    fn movable(&self, number: u32, bytes: u64, look: usize) -> Vec<Entry> {
        let mut found = Vec::new();
        let mut sum = 0;
        for entry in self.lists.free(number).take(look) {
            if sum >= bytes || entry.bytes < self.page {
                break;
            }
            if let Some((start, end)) = self.whole_handles(&entry) {
                sum += end - start;
                found.push(entry);
            }
        }
        found
    }

    pub(super) fn whole_handles(&self, entry: &Entry) -> Option<(u64, u64)> {
        let Held::Paged { range, pages } = &self.held[self.lists.space.segment(entry.id) as usize] else {
            return None;
        };
        let base = range.address();
        pages.whole(entry.address - base, entry.address + entry.bytes - base)
    }

    fn bring(
        &mut self,
        supply: &mut Supply<'_>,
        site: &mut Site,
        source: Entry,
        bytes: u64,
    ) -> Result<u64, SourceError> {
        let Some((start, end)) = self.whole_handles(&source) else {
            return Ok(0);
        };
        let from = self.lists.space.segment(source.id) as usize;
        let room = self.hole_bytes(site);
        let Held::Paged { range, pages } = &mut self.held[from] else {
            return Ok(0);
        };
        let base = range.address();
        let end = pages.at_least(start, bytes).min(end);
        let taken = end - start;
        let sizes = pages.unmap(start, taken);
        let too_wide = sizes.iter().any(|size| self.is_too_wide(supply, *size));
        let place = if taken <= room && !too_wide {
            self.next_place(site, taken)
        } else {
            None
        };
        let outcome = match place {
            None => {
                if let Held::Paged { range, .. } = &self.held[from] {
                    supply.decommit(range, start, taken);
                }
                Ok(())
            }
            Some((target, to)) => match (&self.held[from], &self.held[to]) {
                (Held::Paged { range, .. }, Held::Paged { range: into, .. }) => {
                    supply.move_pages((range, start), (into, target - into.address()), taken)
                }
                _ => Ok(()),
            },
        };
        let at = match (&outcome, place) {
            (Err(_), _) => Some((base + start, from)),
            (Ok(()), place) => place,
        };
        if let Some((target, to)) = at
            && let Held::Paged { range, pages } = &mut self.held[to]
        {
            let mut at = target - range.address();
            for size in sizes {
                pages.map(at, size, size);
                at += size;
            }
        }
        outcome?;
        if place.is_some() {
            self.advance(site, taken);
        }
        let (hole, joined) = self.vacate(source.id, base + start, base + end);
        if joined.is_some() && joined == site.hole {
            site.hole = Some(hole);
        }
        self.moved += taken;
        Ok(taken)
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
