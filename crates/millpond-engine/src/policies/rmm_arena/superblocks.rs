//! The superblocks of one global arena and of its stream arenas.
//!
//! ```text
//!   one upstream block   |  superblock 1  | superblock 2 |     superblock 0     |
//!                        | live |  free   |     free     | live | free |  live  |
//! ```
//!
//! Superblocks cover the upstream block, and blocks cover each superblock. Free blocks are joined only within one
//! superblock. A block's owner in the space is the number of its superblock.

use super::first_fit::FirstFit;
use crate::block::{Block, Request};
use crate::space::{BlockId, Piece, Space, State};
use std::collections::BTreeMap;

/// Minimum bytes of a superblock, and maximum request that a stream's own arena serves.
pub(super) const MIN_SUPERBLOCK: u64 = 1 << 20;

/// Index of the arena that lends superblocks.
pub(super) const GLOBAL: usize = 0;

struct Superblock {
    address: u64,
    bytes: u64,
    /// Free blocks in address order, with their bytes.
    free: BTreeMap<u64, (u64, BlockId)>,
    /// The arena that holds the superblock.
    arena: usize,
    /// Bytes of its largest free block. Its arena searches by this value.
    room: u64,
}

impl Superblock {
    /// Returns the only free block if there is no live block.
    fn empty(&self) -> Option<BlockId> {
        let (_, (bytes, id)) = self.free.first_key_value()?;
        (*bytes == self.bytes).then_some(*id)
    }
}

/// All superblocks of one upstream block.
pub(super) struct Superblocks {
    space: Space,
    superblocks: Vec<Option<Superblock>>,
    vacant: Vec<u32>,
    /// The global arena, followed by those of streams.
    arenas: Vec<FirstFit>,
}

impl Superblocks {
    /// Creates one superblock over the whole upstream block, in the global arena. `segment` is its number in the
    /// layout.
    pub(super) fn new(address: u64, bytes: u64, segment: u32) -> Self {
        let mut new = Self {
            space: Space::new(),
            superblocks: Vec::new(),
            vacant: Vec::new(),
            arenas: vec![FirstFit::default()],
        };
        let id = new.space.add_segment(address, bytes, segment, 0, State::Free);
        new.add(id, GLOBAL);
        new
    }

    /// Adds an arena without a superblock. Returns its index.
    pub(super) fn add_arena(&mut self) -> usize {
        self.arenas.push(FirstFit::default());
        self.arenas.len() - 1
    }

    /// Returns a block from the superblocks of an arena, first fit in address order.
    pub(super) fn allocate(&mut self, arena: usize, bytes: u64, request: &Request) -> Option<Block> {
        let number = self.arenas[arena].first(bytes)?;
        self.carve(number, bytes, request)
    }

    /// Returns a block from a superblock that the arena takes from the global one. The superblock is split to the
    /// smallest possible size.
    pub(super) fn acquire(&mut self, arena: usize, bytes: u64, request: &Request) -> Option<Block> {
        let number = self.arenas[GLOBAL].first(bytes)?;
        let least = bytes.max(MIN_SUPERBLOCK);
        let superblock = self.superblocks[number as usize].as_ref()?;
        if let Some(id) = superblock.empty()
            && superblock.bytes >= least + MIN_SUPERBLOCK
        {
            self.remove(number);
            let tail = self.space.split(id, least);
            let head = self.add(id, arena);
            self.add(tail, GLOBAL);
            return self.carve(head, bytes, request);
        }
        self.move_to(number, arena);
        self.carve(number, bytes, request)
    }

    /// Returns the arena that contains a block.
    pub(super) fn arena_of(&self, id: BlockId) -> usize {
        self.get(self.space.owner(id)).map_or(GLOBAL, |s| s.arena)
    }

    /// Frees a block. If this leaves a superblock of the global arena empty, joins it with its neighbours.
    pub(super) fn free(&mut self, id: BlockId) {
        let number = self.space.owner(id);
        let mut id = id;
        self.space.set_state(id, State::Free);
        let joins = |space: &Space, n: &BlockId| space.state(*n) == State::Free && space.owner(*n) == number;
        let next = self.space.next(id).filter(|n| joins(&self.space, n));
        let prev = self.space.prev(id).filter(|p| joins(&self.space, p));
        let removed = [next, prev].map(|n| n.map(|n| self.space.address(n)));
        if next.is_some() {
            self.space.merge_next(id);
        }
        if let Some(prev) = prev {
            self.space.merge_next(prev);
            id = prev;
        }
        let (address, bytes) = (self.space.address(id), self.space.bytes(id));
        self.change_free(number, |free| {
            for address in removed.into_iter().flatten() {
                free.remove(&address);
            }
            free.insert(address, (bytes, id));
        });
        if self.get(number).is_some_and(|s| s.arena == GLOBAL) {
            self.join(number);
        }
    }

    /// Moves every superblock to the global arena, empty or not.
    pub(super) fn defragment(&mut self) {
        for arena in GLOBAL + 1..self.arenas.len() {
            let mut numbers: Vec<u32> = self.arenas[arena].names().collect();
            numbers.sort_unstable_by_key(|n| self.get(*n).map(|s| s.address));
            for number in numbers {
                self.move_to(number, GLOBAL);
                self.join(number);
            }
        }
    }

    /// Visits every block.
    pub(super) fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.space.layout(visit);
    }

    pub(super) fn check(&self) {
        self.space.check();
        let mut free = 0;
        for (number, superblock) in (0u32..).zip(&self.superblocks) {
            let Some(superblock) = superblock else { continue };
            assert!(superblock.bytes >= MIN_SUPERBLOCK, "a superblock too small");
            for (address, (bytes, id)) in &superblock.free {
                assert_eq!(
                    (self.space.address(*id), self.space.bytes(*id)),
                    (*address, *bytes)
                );
                assert_eq!(self.space.owner(*id), number, "a block in two superblocks");
                assert_eq!(
                    self.space.state(*id),
                    State::Free,
                    "{id:?} is listed and not free"
                );
                free += 1;
            }
            let largest = superblock.free.values().map(|(bytes, _)| *bytes).max();
            assert_eq!(superblock.room, largest.unwrap_or(0), "room of a superblock");
        }
        let there = self.space.ids().filter(|id| self.space.state(*id) == State::Free);
        assert_eq!(free, there.count(), "free blocks that no superblock holds");
        let mut held: Vec<u32> = self.arenas.iter().flat_map(FirstFit::names).collect();
        held.sort_unstable();
        let alive = (0u32..)
            .zip(&self.superblocks)
            .filter(|(_, s)| s.is_some())
            .map(|(n, _)| n);
        assert!(
            held.into_iter().eq(alive),
            "each superblock is in one arena, once"
        );
    }

    fn get(&self, number: u32) -> Option<&Superblock> {
        self.superblocks[number as usize].as_ref()
    }

    /// Turns one free block into a superblock.
    fn add(&mut self, id: BlockId, arena: usize) -> u32 {
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.superblocks.push(None);
            self.superblocks.len() as u32 - 1
        });
        let (address, bytes) = (self.space.address(id), self.space.bytes(id));
        self.space.set_owner(id, number);
        self.arenas[arena].insert(address, bytes, number);
        self.superblocks[number as usize] = Some(Superblock {
            address,
            bytes,
            free: BTreeMap::from([(address, (bytes, id))]),
            arena,
            room: bytes,
        });
        number
    }

    /// Removes a superblock. The caller is responsible for its blocks.
    fn remove(&mut self, number: u32) {
        if let Some(superblock) = self.superblocks[number as usize].take() {
            self.arenas[superblock.arena].remove(superblock.address, superblock.room);
            self.vacant.push(number);
        }
    }

    fn move_to(&mut self, number: u32, arena: usize) {
        if let Some(superblock) = &mut self.superblocks[number as usize] {
            let (address, room) = (superblock.address, superblock.room);
            self.arenas[superblock.arena].remove(address, room);
            self.arenas[arena].insert(address, room, number);
            superblock.arena = arena;
        }
    }

    /// Changes the free blocks of a superblock and updates the arena's index.
    fn change_free(&mut self, number: u32, change: impl FnOnce(&mut BTreeMap<u64, (u64, BlockId)>)) {
        let Some(superblock) = &mut self.superblocks[number as usize] else {
            debug_assert!(false, "superblock {number} is gone");
            return;
        };
        change(&mut superblock.free);
        let room = superblock
            .free
            .values()
            .map(|(bytes, _)| *bytes)
            .max()
            .unwrap_or(0);
        if room != superblock.room {
            let arena = &mut self.arenas[superblock.arena];
            arena.remove(superblock.address, superblock.room);
            arena.insert(superblock.address, room, number);
            superblock.room = room;
        }
    }

    /// Allocates a block from a superblock, first fit in address order.
    fn carve(&mut self, number: u32, bytes: u64, request: &Request) -> Option<Block> {
        let free = &self.get(number)?.free;
        let (address, (whole, id)) = free.iter().find(|(_, (whole, _))| *whole >= bytes)?;
        let (address, whole, id) = (*address, *whole, *id);
        let rest = (bytes < whole).then(|| self.space.split(id, bytes));
        self.space.set_state(id, State::Live);
        self.change_free(number, |free| {
            free.remove(&address);
            if let Some(rest) = rest {
                free.insert(address + bytes, (whole - bytes, rest));
            }
        });
        Some(Block::new(address, bytes, request, id))
    }

    /// Joins an empty superblock of the global arena with its empty neighbours in this arena.
    fn join(&mut self, number: u32) {
        let Some(mut id) = self.get(number).and_then(Superblock::empty) else {
            return;
        };
        let empty = |at: Option<BlockId>| {
            let number = self.space.owner(at?);
            let superblock = self.get(number).filter(|s| s.arena == GLOBAL)?;
            superblock.empty().map(|_| number)
        };
        let (prev, next) = (self.space.prev(id), self.space.next(id));
        let (before, after) = (empty(prev), empty(next));
        if before.is_none() && after.is_none() {
            return;
        }
        self.remove(number);
        if let Some(after) = after {
            self.remove(after);
            self.space.merge_next(id);
        }
        if let Some((before, prev)) = before.zip(prev) {
            self.remove(before);
            self.space.merge_next(prev);
            id = prev;
        }
        self.add(id, GLOBAL);
    }
}
