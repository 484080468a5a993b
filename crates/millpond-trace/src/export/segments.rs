//! The ranges of addresses that a snapshot shows, and the blocks in them.
//!
//! Where a recording tells which ranges its pools took, and every block lies in one, they are shown as they are. Where it does not, ranges
//! are made up that hold every block there ever was: a viewer looks for the segment of each block, and must find one at any time.

use crate::hash::Map;
use crate::recording::{Kind, Row};
use std::collections::BTreeMap;

/// Ranges that are made up begin and end at multiples of it.
const GRAIN: u64 = 2 << 20;
/// Where blocks are put whose address was not recorded.
const NOWHERE: u64 = 0x1000_0000_0000;
/// What the smallest of them takes.
const SMALLEST: u64 = 512;

/// Addresses of blocks: as recorded, or made up without overlap.
#[derive(Default)]
pub(super) struct Places {
    made: Map<u64, u64>,
    /// Places that were given back, by how long they are.
    free: Map<u64, Vec<u64>>,
    end: u64,
}

impl Places {
    /// The address of the block of an event; its place is given back where that ends it.
    pub(super) fn of(&mut self, row: &Row) -> u64 {
        if row.address != 0 {
            return row.address;
        }
        match row.kind {
            Kind::Free | Kind::FreeCompleted => {
                let at = self.made.remove(&row.id).unwrap_or(NOWHERE);
                self.free.entry(room(row)).or_default().push(at);
                at
            }
            Kind::Alloc => {
                let room = room(row);
                let at = self.free.get_mut(&room).and_then(Vec::pop).unwrap_or_else(|| {
                    let at = NOWHERE.saturating_add(self.end);
                    self.end = self.end.saturating_add(room);
                    at
                });
                self.made.insert(row.id, at);
                at
            }
            _ => self.made.get(&row.id).copied().unwrap_or(NOWHERE),
        }
    }
}

/// How long a place is: few lengths, so that places are used again.
fn room(row: &Row) -> u64 {
    let size = size(row).clamp(SMALLEST, 1 << 62);
    let step = (size.next_power_of_two() / 8).max(SMALLEST);
    size.next_multiple_of(step)
}

/// Bytes of a block: never fewer than were asked for.
pub(super) fn size(row: &Row) -> u64 {
    row.bytes.max(row.requested)
}

/// A block at the end of the recording.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) row: Row,
    pub(super) address: u64,
    /// It was given back, and streams still use it.
    pub(super) waits: bool,
}

impl Block {
    fn end(&self) -> u64 {
        self.address.saturating_add(size(&self.row))
    }
}

/// A range and its blocks, in order, without overlap.
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) pool: u32,
    pub(super) stream: u32,
    pub(super) blocks: Vec<Block>,
}

/// Ranges of one device, as its events come.
#[derive(Default)]
pub(super) struct Ranges {
    /// What the recording says of ranges: length, pool and stream by first address.
    known: BTreeMap<u64, (u64, u32, u32)>,
    /// What holds every block there ever was: ends by first address.
    made: BTreeMap<u64, u64>,
    /// A block lay outside of what was known, or what was told of ranges contradicts itself.
    unknown: bool,
    /// Ranges grew and shrank by parts.
    pub(super) paged: bool,
}

impl Ranges {
    /// Whether the recording's own ranges hold all its blocks.
    pub(super) fn are_known(&self) -> bool {
        !self.unknown
    }

    pub(super) fn reserve(&mut self, row: &Row) {
        let end = row.address.saturating_add(row.bytes);
        let before = self.known.range(..end).next_back();
        let overlaps = before.is_some_and(|(start, known)| start.saturating_add(known.0) > row.address);
        if row.address == 0 || row.bytes == 0 || overlaps {
            self.unknown = true;
            return;
        }
        self.known.insert(row.address, (row.bytes, row.pool, row.stream));
    }

    /// Takes a range out, which may be parts of several that lie side by side.
    pub(super) fn release(&mut self, row: &Row) {
        let end = row.address.saturating_add(row.bytes);
        if self
            .known
            .get(&row.address)
            .is_some_and(|known| known.0 == row.bytes)
        {
            self.known.remove(&row.address);
            return;
        }
        self.paged = true;
        let mut at = row.address;
        while at < end {
            let Some((&start, &(bytes, pool, stream))) = self.known.range(..=at).next_back() else {
                self.unknown = true;
                return;
            };
            let stop = start.saturating_add(bytes);
            if stop <= at {
                self.unknown = true;
                return;
            }
            self.known.remove(&start);
            if start < at {
                self.known.insert(start, (at - start, pool, stream));
            }
            if stop > end {
                self.known.insert(end, (stop - end, pool, stream));
            }
            at = stop;
        }
    }

    /// A block is there from now on.
    pub(super) fn block(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        self.unknown |= !self.holds(address, end);
        let (mut from, mut to) = (address / GRAIN * GRAIN, end.div_ceil(GRAIN).saturating_mul(GRAIN));
        if let Some((&start, &stop)) = self.made.range(..=from).next_back()
            && stop >= from
        {
            if stop >= to {
                return;
            }
            from = start;
        }
        while let Some((&start, &stop)) = self.made.range(from..=to).next() {
            self.made.remove(&start);
            to = to.max(stop);
        }
        self.made.insert(from, to);
    }

    /// Whether a range lies in known ones, which may be several side by side.
    fn holds(&self, address: u64, end: u64) -> bool {
        let mut at = address;
        while at < end {
            match self.known.range(..=at).next_back() {
                Some((start, known)) if start.saturating_add(known.0) > at => {
                    at = start.saturating_add(known.0);
                }
                _ => return false,
            }
        }
        true
    }

    /// The segments at the end with their blocks, and how many blocks have no room of their own in any.
    pub(super) fn segments(&self, mut blocks: Vec<Block>) -> (Vec<Segment>, u64) {
        let mut segments: Vec<Segment> = Vec::new();
        let empty = |address, bytes, pool, stream| Segment {
            address,
            bytes,
            pool,
            stream,
            blocks: Vec::new(),
        };
        if self.unknown {
            let made = self.made.iter();
            segments.extend(made.map(|(&from, &to)| empty(from, to - from, 0, 0)));
        }
        for (&address, &(bytes, pool, stream)) in self.known.iter().filter(|_| !self.unknown) {
            match segments.last_mut() {
                // Parts that lie side by side are one where ranges grow by parts.
                Some(last)
                    if self.paged
                        && last.address.saturating_add(last.bytes) == address
                        && (last.pool, last.stream) == (pool, stream) =>
                {
                    last.bytes = last.bytes.saturating_add(bytes);
                }
                _ => segments.push(empty(address, bytes, pool, stream)),
            }
        }
        blocks.sort_unstable_by_key(|block| (block.address, block.row.id));
        let mut left_out = 0;
        let mut at = 0;
        for block in blocks {
            while segments
                .get(at)
                .is_some_and(|segment| segment.address.saturating_add(segment.bytes) <= block.address)
            {
                at += 1;
            }
            let room = segments.get_mut(at).filter(|segment| {
                let from = segment.blocks.last().map_or(segment.address, Block::end);
                block.address >= from && block.end() <= segment.address.saturating_add(segment.bytes)
            });
            match room {
                Some(segment) => segment.blocks.push(block),
                None => left_out += 1,
            }
        }
        (segments, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(kind: Kind, address: u64, bytes: u64) -> Row {
        Row {
            address,
            bytes,
            ..Row::new(kind, 0)
        }
    }

    fn shape(ranges: &Ranges, blocks: &[(u64, u64)]) -> (Vec<(u64, u64, usize)>, u64) {
        let block = |(id, (address, bytes)): (usize, &(u64, u64))| Block {
            row: Row {
                id: id as u64,
                ..range(Kind::Alloc, *address, *bytes)
            },
            address: *address,
            waits: false,
        };
        let (segments, left_out) = ranges.segments(blocks.iter().enumerate().map(block).collect());
        let shape = segments
            .iter()
            .map(|segment| (segment.address, segment.bytes, segment.blocks.len()));
        (shape.collect(), left_out)
    }

    #[test]
    fn known_ranges_are_shown_as_they_are() {
        let mut ranges = Ranges::default();
        ranges.reserve(&range(Kind::Reserve, 1 << 20, 4096));
        ranges.reserve(&range(Kind::Reserve, 2 << 20, 4096));
        ranges.block((1 << 20) + 512, 1024);
        ranges.release(&range(Kind::Release, 2 << 20, 4096));
        assert!(ranges.are_known() && !ranges.paged);
        let blocks = [((1 << 20) + 512, 1024)];
        assert_eq!(shape(&ranges, &blocks), (vec![(1 << 20, 4096, 1)], 0));
    }

    #[test]
    fn pages_that_come_and_go_are_parts_of_one_range() {
        let mut ranges = Ranges::default();
        for page in 0..4 {
            ranges.reserve(&range(Kind::Reserve, (8 + page) << 20, 1 << 20));
        }
        ranges.block((8 << 20) + 100, 3 << 20);
        ranges.release(&range(Kind::Release, (9 << 20) + 4096, 4096));
        assert!(ranges.are_known() && ranges.paged);
        let split = vec![
            (8 << 20, (1 << 20) + 4096, 0),
            ((9 << 20) + 8192, (3 << 20) - 8192, 0),
        ];
        assert_eq!(shape(&ranges, &[]), (split, 0));
    }

    #[test]
    fn ranges_are_made_up_around_all_blocks() {
        let mut ranges = Ranges::default();
        ranges.block(5, 10);
        ranges.block(3 << 20, 1 << 20);
        ranges.block(100 << 20, 1);
        ranges.block(u64::MAX - 1, 100);
        assert!(!ranges.are_known());
        let (shape, left_out) = shape(&ranges, &[(3 << 20, 1 << 20), ((3 << 20) + 1, 1), (5, 10)]);
        assert_eq!(shape[..2], [(0, 4 << 20, 2), (100 << 20, 2 << 20, 0)]);
        assert_eq!((shape.len(), left_out), (3, 1));
    }

    #[test]
    fn blocks_without_addresses_get_places_of_their_own() {
        let mut places = Places::default();
        let block = |kind, id, bytes| Row {
            id,
            ..range(kind, 0, bytes)
        };
        let one = places.of(&block(Kind::Alloc, 1, 1000));
        let two = places.of(&block(Kind::Alloc, 2, 1));
        assert!(two >= one + 1000);
        assert_eq!(places.of(&block(Kind::FreeRequested, 1, 1000)), one);
        assert_eq!(places.of(&block(Kind::FreeCompleted, 1, 1000)), one);
        assert_eq!(places.of(&block(Kind::Alloc, 3, 900)), one);
    }
}
