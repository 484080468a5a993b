//! The free lists: one for each stream in each area.

use crate::block::{Block, Request, Stream};
use crate::index::{Entry, FitIndex, Links, Search};
use crate::space::{BlockId, Space, State};
use std::collections::BTreeMap;

/// One free list.
pub(super) struct List {
    /// The area of its blocks.
    pub(super) area: u32,
    /// The stream that may take the blocks without a wait.
    pub(super) stream: Stream,
    free: FitIndex,
}

/// All blocks, and the free ones by list.
///
/// A block's owner in the [`Space`] is the number of its list, even while it is live.
#[derive(Default)]
pub(super) struct Lists {
    pub(super) space: Space,
    links: Links,
    lists: Vec<List>,
    numbers: BTreeMap<(u32, Stream), u32>,
}

impl Lists {
    pub(super) fn expect(&mut self, blocks: usize) {
        self.space.expect(blocks);
        self.links.expect(blocks);
    }

    /// Returns the number of a list. The first use creates the list.
    pub(super) fn number(&mut self, area: u32, stream: Stream) -> u32 {
        let next = self.lists.len() as u32;
        let number = *self.numbers.entry((area, stream)).or_insert(next);
        if number == next {
            self.lists.push(List {
                area,
                stream,
                free: FitIndex::default(),
            });
        }
        number
    }

    pub(super) fn get(&self, number: u32) -> &List {
        &self.lists[number as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &List)> {
        (0u32..).zip(&self.lists)
    }

    /// Removes a fitting block from a list. It stays marked free until it is allocated or joined.
    #[inline]
    pub(super) fn take_fit(&mut self, number: u32, bytes: u64, search: Search) -> Option<BlockId> {
        let free = &mut self.lists[number as usize].free;
        free.take(&mut self.links, &self.space, bytes, search)
    }

    /// Returns a number that changes when the search order of the free blocks changes.
    #[inline]
    pub(super) fn order(&self) -> u32 {
        self.links.order()
    }

    /// Returns the block that [`take_fit`](Self::take_fit) would take.
    pub(super) fn fit(&self, number: u32, bytes: u64, search: Search) -> Option<Entry> {
        let free = &self.get(number).free;
        let found = free.find(&self.links, &self.space, bytes, search);
        found.map(|id| Entry::of(&self.space, id))
    }

    /// Returns the free blocks of a list, larger ones first.
    pub(super) fn free(&self, number: u32) -> impl Iterator<Item = Entry> + '_ {
        let ids = self.get(number).free.descending(&self.links);
        ids.map(|id| Entry::of(&self.space, id))
    }

    /// Returns the free blocks of a list that may have at least `bytes`, smaller ones first.
    pub(super) fn free_from(&self, number: u32, bytes: u64) -> impl Iterator<Item = Entry> + '_ {
        let ids = self.get(number).free.ascending(&self.links, bytes);
        ids.map(|id| Entry::of(&self.space, id))
    }

    /// Removes a free block from its list. It stays marked free until it is allocated or joined.
    #[inline]
    pub(super) fn unlist(&mut self, id: BlockId) {
        let list = &mut self.lists[self.space.owner(id) as usize];
        list.free.remove(&mut self.links, id, self.space.bytes(id));
    }

    /// Marks a block free and lists it.
    #[inline]
    pub(super) fn list(&mut self, id: BlockId) {
        self.space.set_state(id, State::Free);
        let list = &mut self.lists[self.space.owner(id) as usize];
        list.free.insert(&mut self.links, &self.space, id);
    }

    /// Returns the neighbour if it is free and in the same list as the block.
    #[inline]
    pub(super) fn joins(&self, id: BlockId, neighbour: Option<BlockId>) -> Option<BlockId> {
        neighbour
            .filter(|n| self.space.state(*n) == State::Free && self.space.owner(*n) == self.space.owner(id))
    }

    /// Joins a block with its free neighbours and lists it. Returns the resulting block.
    #[inline]
    pub(super) fn put_back(&mut self, id: BlockId) -> BlockId {
        let id = self.absorb(id);
        self.list(id);
        id
    }

    /// Joins an unlisted block with its free neighbours. Returns the resulting block, which is not listed either.
    #[inline]
    pub(super) fn absorb(&mut self, id: BlockId) -> BlockId {
        let mut id = id;
        // Both neighbours are loaded before either is changed, so that the two cache misses overlap.
        let prev = self.joins(id, self.space.prev(id));
        let next = self.joins(id, self.space.next(id));
        if let Some(prev) = prev {
            self.unlist(prev);
            self.space.merge_next(prev);
            id = prev;
        }
        if let Some(next) = next {
            self.unlist(next);
            self.space.merge_next(id);
        }
        id
    }

    /// Moves the free blocks of all streams of an area into one list and joins them. The caller must have waited for
    /// the device, so that any stream may use them.
    pub(super) fn join_streams(&mut self, into: u32) {
        let area = self.get(into).area;
        for number in 0..self.lists.len() as u32 {
            if number == into || self.get(number).area != area {
                continue;
            }
            let moved: Vec<Entry> = self.free(number).collect();
            self.lists[number as usize].free = FitIndex::default();
            for entry in &moved {
                self.space.set_owner(entry.id, into);
                // The block is in no list until its own turn, so a neighbour must not join it before.
                self.space.set_state(entry.id, State::Live);
            }
            for entry in &moved {
                self.put_back(entry.id);
            }
        }
    }

    /// Cuts an unlisted block to `bytes` at an aligned address and marks it live. Lists the parts before and after it.
    #[inline]
    pub(super) fn cut(&mut self, id: BlockId, align: u64, bytes: u64, number: u32) -> BlockId {
        let mut id = id;
        if align > super::MIN_BLOCK {
            let pad = self.space.address(id).next_multiple_of(align) - self.space.address(id);
            if pad > 0 {
                let aligned = self.space.split(id, pad);
                self.list(id);
                id = aligned;
            }
        }
        if self.space.bytes(id) > bytes {
            let rest = self.space.split(id, bytes);
            self.list(rest);
        }
        self.space.set_state(id, State::Live);
        self.space.set_owner(id, number);
        id
    }

    /// Creates the block that the caller gets.
    #[inline]
    pub(super) fn block(&self, id: BlockId, request: &Request) -> Block {
        Block::of(&self.space, id, request)
    }

    /// Asserts that each list holds exactly its own free blocks.
    pub(super) fn check(&self) {
        self.space.check();
        let mut listed = 0;
        for (number, list) in self.iter() {
            list.free.check(&self.links, &self.space);
            for entry in self.free(number) {
                assert_eq!(
                    self.space.state(entry.id),
                    State::Free,
                    "{entry:?} is listed and not free"
                );
                assert_eq!(
                    self.space.owner(entry.id),
                    number,
                    "{entry:?} is listed by another"
                );
                listed += 1;
            }
        }
        let free = self.space.ids().filter(|id| self.space.state(*id) == State::Free);
        assert_eq!(listed, free.count(), "free blocks that no list holds");
    }
}
