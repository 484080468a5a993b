//! The address ranges of a snapshot and their blocks.
//!
//! If a recording contains the ranges that its pools reserved, and every block lies in one, these ranges are used.
//! Otherwise ranges are created that cover every block of the recording. A viewer looks up the segment of each block at
//! any time, so every block needs one.

use crate::hash::Map;
use crate::recording::{Kind, Row};
use std::collections::BTreeMap;

/// Created ranges begin and end at multiples of this.
const GRAIN: u64 = 2 << 20;
/// The first address for blocks without a recorded address.
const NOWHERE: u64 = 0x1000_0000_0000;
/// Bytes reserved for the smallest of these blocks.
const SMALLEST: u64 = 512;

/// The addresses of blocks, either recorded or created without overlap.
#[derive(Default)]
pub(super) struct Places {
    made: Map<u64, u64>,
    /// Free places, by size.
    free: Map<u64, Vec<u64>>,
    end: u64,
}

impl Places {
    /// Returns the address of the block of an event. If the event ends the block, frees its place.
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

/// Returns the size of a place. There are few sizes, so that places can be reused.
fn room(row: &Row) -> u64 {
    let size = size(row).clamp(SMALLEST, 1 << 62);
    let step = (size.next_power_of_two() / 8).max(SMALLEST);
    size.next_multiple_of(step)
}

/// Returns the size of a block, which is at least the requested size.
pub(super) fn size(row: &Row) -> u64 {
    row.bytes.max(row.requested)
}

/// A block that is live at the end of the recording.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) row: Row,
    pub(super) address: u64,
    /// Whether it was freed and streams still use it.
    pub(super) waits: bool,
}

impl Block {
    fn end(&self) -> u64 {
        self.address.saturating_add(size(&self.row))
    }
}

/// A range and its blocks, in order and without overlap.
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) pool: u32,
    pub(super) stream: u32,
    pub(super) blocks: Vec<Block>,
}

/// The ranges of one device, built from its events.
#[derive(Default)]
pub(super) struct Ranges {
    /// The recorded ranges: size, pool and stream, by first address.
    known: BTreeMap<u64, (u64, u32, u32)>,
    /// Ranges that cover every block of the recording: end by first address.
    made: BTreeMap<u64, u64>,
    /// Whether a block lay outside the recorded ranges, or these contradict each other.
    unknown: bool,
    /// Whether ranges grew and shrank in parts.
    pub(super) paged: bool,
}

impl Ranges {
    /// Returns whether the recorded ranges contain all blocks.
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

    /// Removes a range, which may consist of parts of several adjacent ones.
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

    /// Records a block.
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

    /// Returns whether a range lies in recorded ranges, which may be several adjacent ones.
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

    /// Returns the segments at the end with their blocks, and the number of blocks that fit in none.
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
                // If ranges grow in parts, adjacent parts belong to one range.
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
    fn recorded_ranges_are_used_unchanged() {
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
    fn ranges_reserved_in_parts_are_joined_and_split() {
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
    fn ranges_are_created_around_blocks_outside_recorded_ranges() {
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
    fn blocks_without_addresses_get_addresses_that_do_not_overlap() {
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
