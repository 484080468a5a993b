//! Memory lent to a plan: one contiguous block built from free pages, and parts of pages that cannot move.
//!
//! No other request gets lent memory, but its bytes do not count as live. It comes back divided into the blocks that
//! still live in it and the free remainder.

use super::{Held, MIN_BLOCK, Millpond};
use crate::block::{Block, Group, Request, Stream};
use crate::index::{Entry, Search};
use crate::policy::{Policy, Refusal};
use crate::space::BlockId;
use crate::supply::Supply;

/// Minimum size of a piece. Smaller pieces do not help a plan.
const LEAST_PIECE: u64 = 16 << 10;
/// Maximum number of pieces.
const MOST_PIECES: usize = 256;

/// A part of a lent block that comes back.
pub(in crate::policies) struct Part {
    pub(in crate::policies) bytes: u64,
    /// The request of the live block in this part, or `None` if it is free.
    pub(in crate::policies) live: Option<Request>,
}

impl Millpond {
    /// Counts bytes that an enclosing policy allocated in lent memory.
    pub(in crate::policies) fn note_allocated(&mut self, bytes: u64) {
        self.allocated = self.allocated.saturating_add(bytes);
    }

    /// Returns the peak of live bytes.
    pub(in crate::policies) fn peak(&self) -> u64 {
        self.peak
    }

    /// Serves a request from free blocks. Returns `None` if no free block fits.
    pub(in crate::policies) fn allocate_cached(
        &mut self,
        supply: &mut Supply<'_>,
        request: &Request,
    ) -> Option<Block> {
        let bytes = request.bytes.max(1).checked_next_multiple_of(MIN_BLOCK)?;
        let room = bytes.checked_add(request.align.saturating_sub(MIN_BLOCK))?;
        let number = self.list_of(request.group, request.stream);
        let fits = self.lists.iter().any(|(n, l)| {
            (n == number || l.area == self.lists.get(number).area)
                && self.lists.fit(n, room, Search::Quick).is_some()
        });
        if !fits {
            return None;
        }
        self.allocate(supply, request).ok()
    }

    /// Returns the default group's free blocks that the default stream can use.
    fn free_blocks(&mut self, supply: &Supply<'_>) -> Vec<Entry> {
        let number = self.list_of(Group::default(), Stream::DEFAULT);
        let usable = self.usable_lists(supply, number);
        let lists = self.lists.iter().filter(|(n, _)| usable[*n as usize]);
        let mut found: Vec<Entry> = lists.flat_map(|(n, _)| self.lists.free(n)).collect();
        found.sort_by_key(|e| e.address);
        found
    }

    /// Returns the bytes of the default group's free pages that can move.
    pub(in crate::policies) fn movable_bytes(&mut self, supply: &Supply<'_>) -> u64 {
        let free = self.free_blocks(supply);
        let whole = free.iter().filter_map(|e| self.whole_handles(e));
        whole.map(|(start, end)| end - start).sum()
    }

    /// Returns address and bytes of the largest parts of free blocks that share their handles with live blocks.
    pub(in crate::policies) fn pieces(&mut self, supply: &Supply<'_>) -> Vec<(u64, u64)> {
        let mut pieces = Vec::new();
        for entry in self.free_blocks(supply) {
            let (first, end) = (entry.address, entry.address + entry.bytes);
            match self.whole_handles(&entry) {
                None => pieces.push((first, end - first)),
                Some((start, last)) => {
                    let base = self.base_of(entry.id);
                    pieces.push((first, base + start - first));
                    pieces.push((base + last, end - base - last));
                }
            }
        }
        pieces.retain(|(_, bytes)| *bytes >= LEAST_PIECE);
        pieces.sort_by_key(|(first, bytes)| std::cmp::Reverse((*bytes, *first)));
        pieces.truncate(MOST_PIECES);
        pieces
    }

    fn base_of(&self, id: BlockId) -> u64 {
        match &self.held[self.lists.space.segment(id) as usize] {
            Held::Paged { range, .. } => range.address(),
            _ => 0,
        }
    }

    /// Lends a part of a free block.
    pub(in crate::policies) fn lend_piece(
        &mut self,
        supply: &mut Supply<'_>,
        (address, bytes): (u64, u64),
    ) -> Option<Block> {
        let inside = |e: &Entry| e.address <= address && address + bytes <= e.address + e.bytes;
        let entry = self.free_blocks(supply).into_iter().find(inside)?;
        let number = self.list_of(Group::default(), Stream::DEFAULT);
        self.lists.unlist(entry.id);
        let (id, rest) = self.lists.space.isolate(entry.id, address, bytes);
        rest.into_iter().flatten().for_each(|part| self.lists.list(part));
        self.claim(supply, number, id, &mut Vec::new());
        self.lent += bytes;
        Some(self.lists.block(id, &Request::new(bytes, Stream::DEFAULT)))
    }

    /// Lends one contiguous block of free pages and at most `new` bytes of new pages.
    pub(in crate::policies) fn lend(
        &mut self,
        supply: &mut Supply<'_>,
        bytes: u64,
        new: u64,
    ) -> Result<Block, Refusal> {
        let request = Request::new(bytes, Stream::DEFAULT);
        let number = self.list_of(request.group, request.stream);
        let id = match self.lists.take_fit(number, bytes, Search::Thorough) {
            Some(id) => id,
            None => {
                self.keep_to_share(supply);
                self.assemble(supply, number, bytes, new)?
            }
        };
        let id = self.lists.cut(id, request.align, bytes, number);
        self.lent += bytes;
        Ok(self.lists.block(id, &request))
    }

    /// Takes back a lent block in parts that cover it. Returns the live blocks in address order.
    pub(in crate::policies) fn take_back(&mut self, block: Block, parts: &[Part]) -> Vec<Block> {
        debug_assert_eq!(parts.iter().map(|p| p.bytes).sum::<u64>(), block.bytes());
        self.lent -= block.bytes();
        let mut id = block.key();
        let mut live = Vec::new();
        let mut free = Vec::new();
        for part in parts {
            let rest =
                (self.lists.space.bytes(id) > part.bytes).then(|| self.lists.space.split(id, part.bytes));
            match &part.live {
                None => free.push(id),
                Some(request) => {
                    let number = self.list_of(request.group, request.stream);
                    self.lists.space.set_owner(id, number);
                    self.live += part.bytes;
                    live.push(Block::new(self.lists.space.address(id), part.bytes, request, id));
                }
            }
            let Some(rest) = rest else { break };
            id = rest;
        }
        for id in free {
            if self.notes_use() {
                self.note_use(id);
            }
            self.lists.put_back(id);
        }
        self.peak = self.peak.max(self.live);
        live
    }
}
