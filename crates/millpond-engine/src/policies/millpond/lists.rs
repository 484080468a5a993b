//! The free lists: one for each stream in each area.

use crate::index::{Entry, SizeIndex};
use crate::policy::{Block, Request, Stream};
use crate::space::{BlockId, Space, State};
use std::collections::BTreeMap;

/// One free list.
pub(super) struct List {
    /// The area its blocks lie in.
    pub(super) area: u32,
    /// The stream that may take them without a wait.
    pub(super) stream: Stream,
    pub(super) free: SizeIndex,
}

/// All blocks, and the free ones by list.
///
/// A block's owner in the [`Space`] is the number of its list, also while it is live.
#[derive(Default)]
pub(super) struct Lists {
    pub(super) space: Space,
    lists: Vec<List>,
    numbers: BTreeMap<(u32, Stream), u32>,
    /// The list last asked for, by parity of the area: streams seldom change.
    recent: [Option<(u32, Stream, u32)>; 2],
}

impl Lists {
    /// The number of a list, made on first use.
    #[inline]
    pub(super) fn number(&mut self, area: u32, stream: Stream) -> u32 {
        let recent = &mut self.recent[area as usize % 2];
        if let Some((known, of, number)) = *recent
            && known == area
            && of == stream
        {
            return number;
        }
        let next = self.lists.len() as u32;
        let number = *self.numbers.entry((area, stream)).or_insert(next);
        *recent = Some((area, stream, number));
        if number == next {
            self.lists.push(List {
                area,
                stream,
                free: SizeIndex::new(),
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

    /// Takes out the best fit of a list; it stays marked free until it is handed out or joined.
    #[inline]
    pub(super) fn take_best_fit(&mut self, number: u32, bytes: u64) -> Option<BlockId> {
        self.lists[number as usize]
            .free
            .take_best_fit(bytes)
            .map(|e| e.id)
    }

    /// Takes a free block out of its list; it stays marked free until it is handed out or joined.
    #[inline]
    pub(super) fn unlist(&mut self, id: BlockId) {
        let list = &mut self.lists[self.space.owner(id) as usize];
        list.free.remove(self.space.bytes(id), self.space.address(id));
    }

    /// Marks a block free and lists it.
    #[inline]
    pub(super) fn list(&mut self, id: BlockId) {
        self.space.set_state(id, State::Free);
        self.lists[self.space.owner(id) as usize].free.insert(Entry {
            bytes: self.space.bytes(id),
            address: self.space.address(id),
            id,
        });
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
        let mut id = id;
        if let Some(prev) = self.joins(id, self.space.prev(id)) {
            self.unlist(prev);
            self.space.merge_next(prev);
            id = prev;
        }
        if let Some(next) = self.joins(id, self.space.next(id)) {
            self.unlist(next);
            self.space.merge_next(id);
        }
        self.list(id);
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
            let moved = std::mem::take(&mut self.lists[number as usize].free);
            for entry in moved.iter() {
                self.space.set_owner(entry.id, into);
                // Not to be joined before its own turn: until then it is in no list.
                self.space.set_state(entry.id, State::Live);
            }
            for entry in moved.iter() {
                self.put_back(entry.id);
            }
        }
    }

    /// Gives an unlisted block to a caller, keeping what lies before the alignment and beyond `bytes`.
    #[inline]
    pub(super) fn hand_out(&mut self, id: BlockId, request: &Request, bytes: u64, number: u32) -> Block {
        let mut id = id;
        if request.align > super::MIN_BLOCK {
            let pad = self.space.address(id).next_multiple_of(request.align) - self.space.address(id);
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
        Block::new(self.space.address(id), self.space.bytes(id), request, id)
    }

    /// Asserts that the lists hold exactly the free blocks, each its own.
    pub(super) fn check(&self) {
        self.space.check();
        let mut listed = 0;
        for (number, list) in self.iter() {
            list.free.check();
            for entry in list.free.iter() {
                assert_eq!(
                    self.space.state(entry.id),
                    State::Free,
                    "{entry:?} is listed and not free"
                );
                assert_eq!(
                    (
                        self.space.bytes(entry.id),
                        self.space.address(entry.id),
                        self.space.owner(entry.id)
                    ),
                    (entry.bytes, entry.address, number)
                );
                listed += 1;
            }
        }
        let free = self.space.ids().filter(|id| self.space.state(*id) == State::Free);
        assert_eq!(listed, free.count(), "free blocks that no list holds");
    }
}
