//! Address ranges divided into blocks without gaps.
//!
//! ```text
//!   segment 0   |live|free|live|   free   |unmapped     |
//!                 ^ prev/next link neighbours; no hole, no overlap
//! ```
//!
//! Segments can lie anywhere. Blocks of different segments are never neighbours. Every operation on a block takes
//! constant time. A space does not search by size, which is the task of [`SizeIndex`](crate::SizeIndex).

/// Identifies a block of a [`Space`] while the block exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(u32);

impl BlockId {
    /// No block.
    pub const NONE: Self = Self(u32::MAX);

    /// Creates an identifier for a policy that keeps its blocks in a table of its own.
    #[must_use]
    pub fn from_index(index: u32) -> Self {
        Self(index)
    }

    /// Returns the index in the table that defines the identifier.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns `None` for [`NONE`](Self::NONE).
    pub(crate) fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// The use of a block of a [`Space`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Held by a caller, or waiting for a stream.
    Live = 0,
    /// Backed by memory and free.
    Free = 1,
    /// Addresses without memory.
    Unmapped = 2,
    /// The slot contains no block.
    Vacant = 3,
}

/// The use of a [`Piece`] of reserved memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PieceState {
    /// Held by a caller, or waiting for a stream.
    Live,
    /// Backed by memory, and free.
    Free,
    /// Addresses without memory.
    Unmapped,
}

/// One piece of a policy's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The segment or range of the piece. The pieces of one segment follow each other in address order.
    pub segment: u32,
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// The use of the piece.
    pub state: PieceState,
}

/// One block in 32 bytes, so that a cache line holds two blocks and no block crosses a line.
#[derive(Clone, Debug)]
#[repr(align(32))]
struct Slot {
    address: u64,
    bytes: u64,
    prev: BlockId,
    next: BlockId,
    segment: u32,
    /// The owner, and the state in the lowest two bits.
    owner_and_state: u32,
}

impl Slot {
    fn pack(owner: u32, state: State) -> u32 {
        debug_assert!(owner < 1 << 30, "more than 2^30 free lists");
        owner << 2 | state as u32
    }

    #[inline]
    fn owner(&self) -> u32 {
        self.owner_and_state >> 2
    }

    #[inline]
    fn state(&self) -> State {
        match self.owner_and_state & 3 {
            0 => State::Live,
            1 => State::Free,
            2 => State::Unmapped,
            _ => State::Vacant,
        }
    }

    #[inline]
    fn set_state(&mut self, state: State) {
        self.owner_and_state = self.owner_and_state & !3 | state as u32;
    }
}

/// The blocks of all segments of one policy.
#[derive(Clone, Debug, Default)]
pub struct Space {
    slots: Vec<Slot>,
    vacant: Vec<BlockId>,
}

impl Space {
    /// Creates a space without segments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reserves space for a total number of blocks, 36 bytes each, so that later operations need not allocate. Does
    /// nothing if there is not enough memory.
    pub fn expect(&mut self, blocks: usize) {
        let from = self.slots.len();
        let to = blocks.min(BlockId::NONE.index()).max(from);
        let more = to - from;
        if self.slots.try_reserve(more).is_err() || self.vacant.try_reserve(more).is_err() {
            return;
        }
        let vacant = Slot {
            address: 0,
            bytes: 0,
            prev: BlockId::NONE,
            next: BlockId::NONE,
            segment: 0,
            owner_and_state: Slot::pack(0, State::Vacant),
        };
        self.slots.resize(to, vacant);
        // The lowest index is used first, as without this reservation.
        self.vacant
            .extend((from..to).rev().map(|index| BlockId(index as u32)));
    }

    /// Adds a segment as one block. `segment` and `owner` are the policy's own numbers for the segment and for the
    /// index of its free blocks. Blocks cut from it inherit both.
    pub fn add_segment(
        &mut self,
        address: u64,
        bytes: u64,
        segment: u32,
        owner: u32,
        state: State,
    ) -> BlockId {
        let none = BlockId::NONE;
        self.insert(Slot {
            address,
            bytes,
            prev: none,
            next: none,
            segment,
            owner_and_state: Slot::pack(owner, state),
        })
    }

    /// Returns the first address of a block.
    #[must_use]
    pub fn address(&self, id: BlockId) -> u64 {
        self.slots[id.index()].address
    }

    /// Returns the size of a block in bytes.
    #[must_use]
    pub fn bytes(&self, id: BlockId) -> u64 {
        self.slots[id.index()].bytes
    }

    /// Returns the first address after a block.
    #[must_use]
    pub fn end(&self, id: BlockId) -> u64 {
        let slot = &self.slots[id.index()];
        slot.address + slot.bytes
    }

    /// Returns the policy's number of the block's segment.
    #[must_use]
    pub fn segment(&self, id: BlockId) -> u32 {
        self.slots[id.index()].segment
    }

    /// Returns the policy's number of the block's index.
    #[must_use]
    pub fn owner(&self, id: BlockId) -> u32 {
        self.slots[id.index()].owner()
    }

    /// Changes the index of a block.
    pub fn set_owner(&mut self, id: BlockId, owner: u32) {
        let slot = &mut self.slots[id.index()];
        slot.owner_and_state = Slot::pack(owner, slot.state());
    }

    /// Returns the block's state.
    #[must_use]
    pub fn state(&self, id: BlockId) -> State {
        self.slots[id.index()].state()
    }

    /// Changes the block's state.
    pub fn set_state(&mut self, id: BlockId, state: State) {
        self.slots[id.index()].set_state(state);
    }

    /// Returns the neighbour at lower addresses in the same segment.
    #[must_use]
    pub fn prev(&self, id: BlockId) -> Option<BlockId> {
        self.slots[id.index()].prev.some()
    }

    /// Returns the neighbour at higher addresses in the same segment.
    #[must_use]
    pub fn next(&self, id: BlockId) -> Option<BlockId> {
        self.slots[id.index()].next.some()
    }

    /// Returns whether the block is its whole segment.
    #[must_use]
    pub fn is_whole(&self, id: BlockId) -> bool {
        let slot = &self.slots[id.index()];
        slot.prev == BlockId::NONE && slot.next == BlockId::NONE
    }

    /// Splits a block. `id` keeps the first `bytes`. Returns the remainder, which has the same state.
    pub fn split(&mut self, id: BlockId, bytes: u64) -> BlockId {
        let slot = &mut self.slots[id.index()];
        debug_assert!(0 < bytes && bytes < slot.bytes, "a split leaves two blocks");
        let rest = Slot {
            address: slot.address + bytes,
            bytes: slot.bytes - bytes,
            prev: id,
            ..slot.clone()
        };
        slot.bytes = bytes;
        let next = slot.next;
        let rest = self.insert(rest);
        self.slots[id.index()].next = rest;
        if let Some(next) = next.some() {
            self.slots[next.index()].prev = rest;
        }
        rest
    }

    /// Splits a block so that one block begins at `start` and has exactly `bytes` bytes. Returns that block, and the
    /// parts before and after it.
    pub fn isolate(&mut self, id: BlockId, start: u64, bytes: u64) -> (BlockId, [Option<BlockId>; 2]) {
        let (before, id) = match start.saturating_sub(self.address(id)) {
            0 => (None, id),
            offset => (Some(id), self.split(id, offset)),
        };
        let after = (bytes < self.bytes(id)).then(|| self.split(id, bytes));
        (id, [before, after])
    }

    /// Returns the start and end of the whole units inside a block, or `None` if there is no whole unit. Units are
    /// counted from `base`.
    #[must_use]
    pub fn whole_units(&self, id: BlockId, base: u64, unit: u64) -> Option<(u64, u64)> {
        let first = base + (self.address(id) - base).next_multiple_of(unit);
        let end = base + (self.end(id) - base) / unit * unit;
        (first < end).then_some((first, end))
    }

    /// Joins a block with the next one. `id` remains valid, and the identifier of its neighbour does not.
    pub fn merge_next(&mut self, id: BlockId) {
        let Some(next) = self.next(id) else {
            debug_assert!(false, "no neighbour to merge with");
            return;
        };
        let (bytes, after) = (self.slots[next.index()].bytes, self.slots[next.index()].next);
        self.slots[id.index()].bytes += bytes;
        self.slots[id.index()].next = after;
        if let Some(after) = after.some() {
            self.slots[after.index()].prev = id;
        }
        self.retire(next);
    }

    /// Removes a whole segment.
    pub fn remove_segment(&mut self, id: BlockId) {
        debug_assert!(self.is_whole(id), "only a whole segment leaves the space");
        self.retire(id);
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Returns whether there is no segment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns every block, unordered.
    pub fn ids(&self) -> impl Iterator<Item = BlockId> + '_ {
        let ids = (0u32..).map(BlockId).zip(&self.slots);
        ids.filter(|(_, slot)| slot.state() != State::Vacant)
            .map(|(id, _)| id)
    }

    /// Visits every block as a [`Piece`], in address order within each segment.
    pub fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        for head in self.ids().filter(|id| self.prev(*id).is_none()) {
            let mut at = Some(head);
            while let Some(id) = at {
                let slot = &self.slots[id.index()];
                let state = match slot.state() {
                    State::Live => PieceState::Live,
                    State::Free => PieceState::Free,
                    State::Unmapped | State::Vacant => PieceState::Unmapped,
                };
                visit(Piece {
                    segment: slot.segment,
                    address: slot.address,
                    bytes: slot.bytes,
                    state,
                });
                at = slot.next.some();
            }
        }
    }

    /// Asserts that blocks cover their segments and that no two neighbours of one owner are both free, or both
    /// unmapped. Neighbours of different owners are not joined, because they are in different lists.
    ///
    /// # Panics
    /// Panics if an assertion fails.
    pub fn check(&self) {
        let mut seen = 0;
        for head in self.ids().filter(|id| self.prev(*id).is_none()) {
            let mut at = head;
            seen += 1;
            while let Some(next) = self.next(at) {
                seen += 1;
                assert_eq!(self.prev(next), Some(at), "links disagree at {next:?}");
                assert_eq!(
                    self.end(at),
                    self.address(next),
                    "hole or overlap before {next:?}"
                );
                assert_eq!(self.segment(at), self.segment(next), "two segments in one chain");
                let (left, right) = (self.state(at), self.state(next));
                assert!(
                    left != right || left == State::Live || self.owner(at) != self.owner(next),
                    "{left:?} neighbours not merged at {next:?}"
                );
                at = next;
            }
        }
        assert_eq!(seen, self.len(), "blocks that no chain reaches");
    }

    fn insert(&mut self, slot: Slot) -> BlockId {
        if let Some(id) = self.vacant.pop() {
            self.slots[id.index()] = slot;
            return id;
        }
        let id = BlockId(u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        debug_assert!(id != BlockId::NONE, "more than 2^32 blocks");
        self.slots.push(slot);
        id
    }

    fn retire(&mut self, id: BlockId) {
        self.slots[id.index()].set_state(State::Vacant);
        self.vacant.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_and_merge_restore_the_segment() {
        let mut space = Space::new();
        let whole = space.add_segment(1000, 100, 0, 0, State::Free);
        let rest = space.split(whole, 30);
        space.set_state(whole, State::Live);
        assert_eq!(
            (space.address(rest), space.bytes(rest), space.prev(rest)),
            (1030, 70, Some(whole))
        );
        let tail = space.split(rest, 20);
        space.set_state(rest, State::Live);
        space.check();
        assert_eq!(space.end(tail), 1100);
        space.set_state(rest, State::Free);
        space.merge_next(rest);
        space.set_state(whole, State::Free);
        space.merge_next(whole);
        space.check();
        assert!(space.is_whole(whole));
        assert_eq!(space.bytes(whole), 100);
        assert_eq!(space.len(), 1);
    }

    #[test]
    fn reserved_space_contains_no_block() {
        let mut space = Space::new();
        let first = space.add_segment(0, 100, 0, 0, State::Free);
        space.expect(3);
        assert_eq!(space.len(), 1);
        assert_eq!(space.ids().collect::<Vec<_>>(), [first]);
        let ids = [1, 2, 3].map(|at| space.add_segment(at << 10, 100, at as u32, 0, State::Free));
        assert_eq!(ids, [1, 2, 3].map(BlockId));
        space.expect(2);
        assert_eq!(space.len(), 4);
        space.check();
    }

    #[test]
    #[should_panic(expected = "not merged")]
    fn check_detects_unmerged_neighbours() {
        let mut space = Space::new();
        let whole = space.add_segment(0, 100, 0, 0, State::Free);
        space.split(whole, 50);
        space.check();
    }

    #[test]
    fn check_accepts_free_neighbours_of_different_owners() {
        let mut space = Space::new();
        let whole = space.add_segment(0, 100, 0, 0, State::Free);
        let rest = space.split(whole, 50);
        space.set_owner(rest, 1);
        space.check();
    }
}
