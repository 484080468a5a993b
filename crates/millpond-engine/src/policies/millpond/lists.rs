//! The free lists: one for each stream in each area.

use crate::block::{Block, Request, Stream};
use crate::index::{Entry, FitIndex, Links, Search};
use crate::space::{BlockId, Space, State};
use std::collections::BTreeMap;

/// One free list.
pub(super) struct List {
    /// The area its blocks lie in.
    pub(super) area: u32,
    /// The stream that may take them without a wait.
    pub(super) stream: Stream,
    free: FitIndex,
}

/// All blocks, and the free ones by list.
///
/// A block's owner in the [`Space`] is the number of its list, also while it is live.
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

    /// The number of a list, made on first use.
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

    /// Takes a fitting block out of a list; it stays marked free until it is handed out or joined.
    #[inline]
    pub(super) fn take_fit(&mut self, number: u32, bytes: u64, search: Search) -> Option<BlockId> {
        let free = &mut self.lists[number as usize].free;
        free.take(&mut self.links, &self.space, bytes, search)
    }

    /// Changes whenever another free block may be taken although the same are free.
    #[inline]
    pub(super) fn order(&self) -> u32 {
        self.links.order()
    }

    /// What [`take_fit`](Self::take_fit) would take.
    pub(super) fn fit(&self, number: u32, bytes: u64, search: Search) -> Option<Entry> {
        let free = &self.get(number).free;
        let found = free.find(&self.links, &self.space, bytes, search);
        found.map(|id| self.entry(id))
    }

    /// The free blocks of a list, larger ones first.
    pub(super) fn free(&self, number: u32) -> impl Iterator<Item = Entry> + '_ {
        let ids = self.get(number).free.descending(&self.links);
        ids.map(|id| self.entry(id))
    }

    fn entry(&self, id: BlockId) -> Entry {
        Entry {
            bytes: self.space.bytes(id),
            address: self.space.address(id),
            id,
        }
    }

    /// Takes a free block out of its list; it stays marked free until it is handed out or joined.
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

    /// A neighbour that is free for the same list.
    #[inline]
    pub(super) fn joins(&self, id: BlockId, neighbour: Option<BlockId>) -> Option<BlockId> {
        neighbour
            .filter(|n| self.space.state(*n) == State::Free && self.space.owner(*n) == self.space.owner(id))
    }

    /// Joins a block with its free neighbours and lists it; answers the block it became.
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
        // Both are looked at before either is acted on, so that the two misses of the cache overlap.
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

    /// Joins what all streams of an area freed, in one list of it: right only once the device has been
    /// waited for, when any stream may have it.
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
                // Not to be joined before its own turn: until then it is in no list.
                self.space.set_state(entry.id, State::Live);
            }
            for entry in &moved {
                self.put_back(entry.id);
            }
        }
    }

    /// Cuts an unlisted block to `bytes` at an aligned address and marks it live; what lies before and
    /// behind is listed.
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

    /// A block for a caller.
    #[inline]
    pub(super) fn block(&self, id: BlockId, request: &Request) -> Block {
        Block::new(self.space.address(id), self.space.bytes(id), request, id)
    }

    /// Asserts that the lists hold exactly the free blocks, each its own.
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
