//! Memory lent to a plan: one contiguous block built from free pages, and parts of pages that cannot move.
//!
//! This policy treats lent memory as live. The memory is counted, and no other request gets it. It comes back divided
//! into the blocks that still live in it and the free remainder.

use super::{MIN_BLOCK, Millpond};
use crate::block::{Block, Group, Request, Stream};
use crate::index::{Entry, Search};
use crate::policy::{Policy, Refusal};
use crate::space::{BlockId, State};
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

    fn free_blocks(&mut self) -> Vec<Entry> {
        let number = self.list_of(Group::default(), Stream::DEFAULT);
        let area = self.lists.get(number).area;
        let lists = self.lists.iter().filter(|(_, l)| l.area == area);
        let mut found: Vec<Entry> = lists.flat_map(|(n, _)| self.lists.free(n)).collect();
        found.sort_by_key(|e| e.address);
        found
    }

    /// Returns the bytes of the default group's free pages that can move.
    pub(in crate::policies) fn movable_bytes(&mut self) -> u64 {
        let free = self.free_blocks();
        let whole = free.iter().filter_map(|e| self.whole_handles(e));
        whole.map(|(start, end)| end - start).sum()
    }

    /// Lends the parts of free blocks that share their pages with live blocks. The device must be idle.
    pub(in crate::policies) fn lend_pieces(&mut self) -> Vec<Block> {
        let mut parts = Vec::new();
        for entry in self.free_blocks() {
            let (first, end) = (entry.address, entry.address + entry.bytes);
            match self.whole_handles(&entry) {
                None => parts.push((first, end)),
                Some((start, last)) => {
                    let base = self.base_of(entry.id);
                    parts.push((base + last, end));
                    parts.push((first, base + start));
                }
            }
        }
        parts.retain(|(first, end)| end - first >= LEAST_PIECE);
        parts.sort_by_key(|(first, end)| std::cmp::Reverse((end - first, *first)));
        parts.truncate(MOST_PIECES);
        parts
            .into_iter()
            .filter_map(|(first, end)| self.carve(first, end - first))
            .collect()
    }

    fn base_of(&self, id: BlockId) -> u64 {
        match &self.held[self.lists.space.segment(id) as usize] {
            super::Held::Paged { range, .. } => range.address(),
            _ => 0,
        }
    }

    /// Cuts a part out of the free block that contains it.
    fn carve(&mut self, address: u64, bytes: u64) -> Option<Block> {
        let inside = |e: &Entry| e.address <= address && address + bytes <= e.address + e.bytes;
        let entry = self.free_blocks().into_iter().find(inside)?;
        self.lists.unlist(entry.id);
        let (id, rest) = self.lists.space.isolate(entry.id, address, bytes);
        rest.into_iter().flatten().for_each(|part| self.lists.list(part));
        let number = self.list_of(Group::default(), Stream::DEFAULT);
        self.lists.space.set_state(id, State::Live);
        self.lists.space.set_owner(id, number);
        self.live += bytes;
        Some(self.lists.block(id, &Request::new(bytes, Stream::DEFAULT)))
    }

    /// Lends one contiguous block. It uses free pages before it creates new ones.
    pub(in crate::policies) fn lend(
        &mut self,
        supply: &mut Supply<'_>,
        bytes: u64,
    ) -> Result<Block, Refusal> {
        let request = Request::new(bytes, Stream::DEFAULT);
        let number = self.list_of(request.group, request.stream);
        let id = match self.lists.take_fit(number, bytes, Search::Thorough) {
            Some(id) => id,
            None => {
                self.keep_to_share(supply);
                self.assemble(supply, number, bytes)?
            }
        };
        let id = self.lists.cut(id, request.align, bytes, number);
        self.live += self.lists.space.bytes(id);
        self.peak = self.peak.max(self.live);
        Ok(self.lists.block(id, &request))
    }

    /// Takes back a lent block in parts that cover it. Returns the live blocks in address order.
    pub(in crate::policies) fn take_back(&mut self, block: Block, parts: &[Part]) -> Vec<Block> {
        debug_assert_eq!(parts.iter().map(|p| p.bytes).sum::<u64>(), block.bytes());
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
                    live.push(Block::new(self.lists.space.address(id), part.bytes, request, id));
                }
            }
            let Some(rest) = rest else { break };
            id = rest;
        }
        for id in free {
            self.live -= self.lists.space.bytes(id);
            if self.notes_use() {
                self.note_use(id);
            }
            self.lists.put_back(id);
        }
        live
    }
}
