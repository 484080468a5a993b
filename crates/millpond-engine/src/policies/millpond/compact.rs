//! Returns all free memory, or a part of it, to the source.
//!
//! Live blocks never move, and a page handle is only returned whole. After a compaction, only the handles that contain
//! live blocks remain. Moving free pages could not reduce this further. With `relocate:on`, handles are replaced by
//! [smaller ones](super::relocate), so that the blocks are only rounded up to pages.

use super::{Held, Millpond};
use crate::index::Entry;
use crate::space::BlockId;
use crate::supply::Supply;

impl Millpond {
    /// Limits later reservations to the program's share of the device.
    pub(super) fn keep_to_share(&self, supply: &mut Supply<'_>) {
        if let Some(limit) = self.conf.retain.limit(supply.capacity()) {
            supply.limit_to(limit);
        }
    }

    /// Returns every page handle without a live block to the source. On a device without pages, returns every segment
    /// without a live block.
    pub(super) fn release_free(&mut self, supply: &mut Supply<'_>) {
        let lists = self.lists.iter();
        let free: Vec<Entry> = lists.flat_map(|(n, _)| self.lists.free(n)).collect();
        for entry in free {
            if let Some((start, end)) = self.returnable(&entry) {
                self.give_back(supply, entry.id, start, end);
            }
        }
    }

    /// Returns the bytes of free blocks that can be returned to the source.
    pub(super) fn whole_free_bytes(&self) -> u64 {
        let free = self.lists.iter().flat_map(|(n, _)| self.lists.free(n));
        let parts = free.filter_map(|entry| self.returnable(&entry));
        parts.map(|(start, end)| end - start).sum()
    }

    /// Returns the start and end address of the part of a free block that can be returned to the source.
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

    /// Returns whole handles inside a free block, or a free segment, to the source. The part of the block before them
    /// keeps the block's identifier.
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
