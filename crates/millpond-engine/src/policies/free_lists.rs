//! Best-fit free lists over one tiling. Neighbours are joined if both are free and in the same list.

use crate::block::{Block, Request};
use crate::index::{Entry, SizeIndex};
use crate::source::Segment;
use crate::space::{BlockId, Space, State};
use crate::supply::Supply;

/// All blocks, and the free ones by list. A block's owner in the space is the number of its list.
#[derive(Default)]
pub(super) struct FreeLists {
    pub(super) space: Space,
    lists: Vec<SizeIndex>,
    /// The segments, until they are returned to the source. Their indices are the segment numbers.
    segments: Vec<Option<Segment>>,
}

impl FreeLists {
    /// Adds an empty list. Returns its number.
    pub(super) fn add_list(&mut self) -> u32 {
        self.lists.push(SizeIndex::new());
        self.lists.len() as u32 - 1
    }

    /// Adds a segment as one unlisted block of a list.
    pub(super) fn add_segment(&mut self, segment: Segment, list: u32) -> BlockId {
        let (address, bytes) = (segment.address(), segment.bytes());
        self.segments.push(Some(segment));
        let number = self.segments.len() as u32 - 1;
        self.space.add_segment(address, bytes, number, list, State::Free)
    }

    /// Returns the free blocks of a list.
    pub(super) fn free(&self, list: u32) -> &SizeIndex {
        &self.lists[list as usize]
    }

    /// Removes and returns the smallest block of a list that is large enough, with the lowest address among equals.
    #[inline]
    pub(super) fn take_best_fit(&mut self, list: u32, bytes: u64) -> Option<BlockId> {
        self.lists[list as usize]
            .take_best_fit(bytes)
            .map(|entry| entry.id)
    }

    /// Removes a free block from its list. It stays marked free until it is allocated or put back.
    #[inline]
    pub(super) fn unlist(&mut self, id: BlockId) {
        let list = &mut self.lists[self.space.owner(id) as usize];
        list.remove(self.space.bytes(id), self.space.address(id));
    }

    /// Returns the lower and the higher neighbour of a block, if they are free and in the same list.
    #[inline]
    pub(super) fn free_neighbours(&self, id: BlockId) -> [Option<BlockId>; 2] {
        let joins =
            |n: &BlockId| self.space.state(*n) == State::Free && self.space.owner(*n) == self.space.owner(id);
        [
            self.space.prev(id).filter(joins),
            self.space.next(id).filter(joins),
        ]
    }

    /// Marks a block free, joins it with its free neighbours in the same list and lists it. Returns the resulting
    /// block.
    #[inline]
    pub(super) fn put_back(&mut self, id: BlockId) -> BlockId {
        let mut id = id;
        let [prev, next] = self.free_neighbours(id);
        if let Some(next) = next {
            self.unlist(next);
            self.space.merge_next(id);
        }
        if let Some(prev) = prev {
            self.unlist(prev);
            self.space.merge_next(prev);
            id = prev;
        }
        self.relist(id);
        id
    }

    /// Allocates an unlisted block. If it has more than `keep` bytes, the remainder goes to the block's list. Returns
    /// the block and the remainder.
    #[inline]
    pub(super) fn hand_out(&mut self, id: BlockId, request: &Request, keep: u64) -> (Block, Option<BlockId>) {
        let rest = (keep < self.space.bytes(id)).then(|| self.space.split(id, keep));
        if let Some(rest) = rest {
            self.relist(rest);
        }
        self.space.set_state(id, State::Live);
        (Block::of(&self.space, id, request), rest)
    }

    /// Moves every block of one list to another and joins neighbours.
    pub(super) fn merge(&mut self, from: u32, into: u32) {
        let moved = std::mem::take(&mut self.lists[from as usize]);
        for entry in moved.iter() {
            self.space.set_owner(entry.id, into);
            // The block is in no list until its own turn, so a neighbour must not join it before.
            self.space.set_state(entry.id, State::Live);
        }
        for entry in moved.iter() {
            self.put_back(entry.id);
        }
    }

    /// Returns a wholly free segment to the source.
    pub(super) fn release_segment(&mut self, supply: &mut Supply<'_>, id: BlockId) {
        let number = self.space.segment(id) as usize;
        self.unlist(id);
        self.space.remove_segment(id);
        if let Some(segment) = self.segments[number].take() {
            supply.give(segment);
        }
    }

    /// Asserts that each list holds exactly its own free blocks.
    pub(super) fn check(&self) {
        self.space.check();
        let mut listed = 0;
        for (number, list) in (0u32..).zip(&self.lists) {
            list.check();
            for entry in list.iter() {
                let found = Entry::of(&self.space, entry.id);
                assert_eq!(found, entry, "an entry that is not its block");
                assert_eq!(self.space.state(entry.id), State::Free, "listed and not free");
                assert_eq!(self.space.owner(entry.id), number, "in another's list");
                listed += 1;
            }
        }
        let free = self.space.ids().filter(|id| self.space.state(*id) == State::Free);
        assert_eq!(listed, free.count(), "free blocks that no list holds");
    }

    /// Marks a block free and lists it without joining it.
    #[inline]
    pub(super) fn relist(&mut self, id: BlockId) {
        self.space.set_state(id, State::Free);
        self.lists[self.space.owner(id) as usize].insert(Entry::of(&self.space, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_of_one_list_join_until_the_lists_merge() {
        let mut lists = FreeLists::default();
        let (one, two) = (lists.add_list(), lists.add_list());
        let low = lists.space.add_segment(0x1000, 3 << 10, 0, one, State::Live);
        let middle = lists.space.split(low, 1 << 10);
        let high = lists.space.split(middle, 1 << 10);
        lists.space.set_owner(middle, two);
        for id in [low, middle, high] {
            lists.put_back(id);
        }
        lists.check();
        assert_eq!((lists.free(one).len(), lists.free(two).len()), (2, 1));
        lists.merge(two, one);
        lists.check();
        assert_eq!(lists.free(one).best_fit(0).map(|e| e.bytes), Some(3 << 10));
    }
}
