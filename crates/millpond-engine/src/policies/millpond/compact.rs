//! Giving free memory back: all of it at once, or a part.
//!
//! Live blocks never move, and a page handle goes back only whole. So what stays after a compaction is the live
//! blocks, rounded out to the handles they lie in: moving free pages about could not make it less.

use super::{Held, Millpond};
use crate::index::Entry;
use crate::space::BlockId;
use crate::supply::Supply;

impl Millpond {
    /// Holds what may be reserved from here on to the program's share of the device.
    pub(super) fn keep_to_share(&self, supply: &mut Supply<'_>) {
        if let Some(limit) = self.conf.retain.limit(supply.capacity()) {
            supply.limit_to(limit);
        }
    }

    /// Waits for the device, takes back what waited for a stream, joins free neighbours whatever stream freed them,
    /// and gives back every page handle, or on a device without pages every segment, in which nothing lives. Answers
    /// the bytes that went back.
    ///
    /// The host waits even if nothing goes back; what did not go back now will not a moment later either.
    pub(in crate::policies) fn compact_now(&mut self, supply: &mut Supply<'_>) -> u64 {
        let before = supply.reserved();
        self.recover(supply);
        self.release_free(supply);
        before - supply.reserved()
    }

    pub(super) fn release_free(&mut self, supply: &mut Supply<'_>) {
        let lists = self.lists.iter();
        let free: Vec<Entry> = lists.flat_map(|(n, _)| self.lists.free(n)).collect();
        for entry in free {
            if let Some((start, end)) = self.returnable(&entry) {
                self.give_back(supply, entry.id, start, end);
            }
        }
    }

    /// Bytes of free blocks that could go back.
    pub(super) fn whole_free_bytes(&self) -> u64 {
        let free = self.lists.iter().flat_map(|(n, _)| self.lists.free(n));
        let parts = free.filter_map(|entry| self.returnable(&entry));
        parts.map(|(start, end)| end - start).sum()
    }

    /// The part of a free block that could go back: first address and end.
    pub(super) fn returnable(&self, entry: &Entry) -> Option<(u64, u64)> {
        match &self.held[self.lists.space.segment(entry.id) as usize] {
            Held::Paged { range, .. } => {
                let (start, end) = self.whole_handles(entry)?;
                Some((range.address() + start, range.address() + end))
            }
            Held::Plain(_) => {
                let whole = self.lists.space.is_whole(entry.id);
                whole.then_some((entry.address, entry.address + entry.bytes))
            }
            Held::Gone => None,
        }
    }

    /// Gives back whole handles inside a free block, or a free segment. What of the block lies before them keeps its
    /// name.
    pub(super) fn give_back(&mut self, supply: &mut Supply<'_>, id: BlockId, start: u64, end: u64) {
        let held = &mut self.held[self.lists.space.segment(id) as usize];
        match held {
            Held::Paged { range, pages } => {
                let offset = start - range.address();
                supply.decommit(range, offset, end - start);
                pages.unmap(offset, end - start);
                self.vacate(id, start, end);
            }
            held @ Held::Plain(_) => {
                self.lists.unlist(id);
                self.lists.space.remove_segment(id);
                if let Held::Plain(segment) = std::mem::replace(held, Held::Gone) {
                    supply.give(segment);
                }
            }
            Held::Gone => {}
        }
    }
}
