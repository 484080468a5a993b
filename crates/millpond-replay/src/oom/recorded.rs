//! Rebuilds the memory of the recorded allocator at one event.

use super::layout::{Hole, Layout};
use super::rules::Rules;
use crate::ranges::Ranges;
use millpond_trace::{Action, Event, Trace};
use std::collections::BTreeMap;

/// Bytes of a segment for small requests.
const SMALL_SEGMENT: u64 = 2 << 20;

/// The memory of the recorded allocator at a request that it refused.
#[derive(Debug, Default)]
pub(super) struct AtEvent {
    /// Bytes taken from the device. `None` if the recording names no segment.
    pub(super) reserved: Option<u64>,
    /// The layout before the allocator released its cache. `None` if addresses are missing.
    pub(super) before: Option<Layout>,
    /// The layout at the event.
    pub(super) after: Option<Layout>,
}

/// A segment, or mapped pages of an expandable one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Segment {
    stream: u16,
    pool: u16,
    small: bool,
    expandable: bool,
}

/// A block that the program holds or that waits for a stream.
#[derive(Clone, Copy, Debug)]
struct Placed {
    requested: u64,
    /// Bytes that the allocator gave it.
    bytes: u64,
    stream: u16,
    pool: u16,
    waiting: bool,
}

/// The memory while the events are applied.
struct Walk<'a> {
    rules: &'a Rules,
    segments: Ranges<Segment>,
    /// Bytes of all segments, some of which may have no address.
    reserved: u64,
    has_segments: bool,
    blocks: BTreeMap<u64, Placed>,
    /// The address of each allocation.
    places: Vec<u64>,
    /// Whether every block and every segment has an address.
    is_placed: bool,
}

/// Rebuilds the memory at the event with this index.
pub(super) fn at_event(trace: &Trace, event: usize, rules: &Rules) -> AtEvent {
    let events = &trace.events[..event.min(trace.events.len())];
    let gives_back = |event: &Event| {
        matches!(
            event.action,
            Action::SegmentFree | Action::SegmentUnmap | Action::FreeCompleted
        )
    };
    let given = events.iter().rev().take_while(|event| gives_back(event)).count();
    let mut walk = Walk::new(trace, rules);
    let (earlier, last) = events.split_at(events.len() - given);
    for event in earlier {
        walk.apply(event);
    }
    let before = walk.layout();
    for event in last {
        walk.apply(event);
    }
    AtEvent {
        reserved: walk.has_segments.then_some(walk.reserved),
        before,
        after: walk.layout(),
    }
}

impl<'a> Walk<'a> {
    fn new(trace: &Trace, rules: &'a Rules) -> Self {
        let mut walk = Self {
            rules,
            segments: Ranges::default(),
            reserved: 0,
            has_segments: false,
            blocks: BTreeMap::new(),
            places: vec![0; trace.allocations as usize],
            is_placed: true,
        };
        for segment in &trace.initial_segments {
            let of = Segment {
                stream: segment.stream,
                pool: segment.pool,
                small: segment.small,
                expandable: segment.expandable,
            };
            walk.take(segment.address, segment.bytes, of);
        }
        for block in &trace.initial_blocks {
            let placed = Placed {
                requested: block.requested,
                bytes: block.bytes.unwrap_or_else(|| rules.block_bytes(block.requested)),
                stream: block.stream,
                pool: block.pool,
                waiting: block.pending,
            };
            walk.place(block.allocation, block.address, placed);
        }
        walk
    }

    fn apply(&mut self, event: &Event) {
        let segment = |expandable| Segment {
            stream: event.stream,
            pool: event.pool,
            small: event.bytes == SMALL_SEGMENT,
            expandable,
        };
        match event.action {
            Action::Alloc => {
                let placed = Placed {
                    requested: event.bytes,
                    bytes: self.rules.block_bytes(event.bytes),
                    stream: event.stream,
                    pool: event.pool,
                    waiting: false,
                };
                self.place(event.allocation, event.address, placed);
            }
            Action::Free | Action::FreeCompleted => {
                if let Some(place) = self.places.get(event.allocation as usize) {
                    self.blocks.remove(place);
                }
            }
            Action::FreeRequested => {
                let place = self.places.get(event.allocation as usize);
                if let Some(placed) = place.and_then(|place| self.blocks.get_mut(place)) {
                    placed.waiting = true;
                }
            }
            Action::SegmentAlloc => self.take(event.address, event.bytes, segment(false)),
            Action::SegmentMap => self.take(event.address, event.bytes, segment(true)),
            Action::SegmentFree | Action::SegmentUnmap => {
                self.reserved = self.reserved.saturating_sub(event.bytes);
                self.segments.remove(event.address, event.bytes);
            }
            Action::OutOfMemory => {}
        }
    }

    fn take(&mut self, address: u64, bytes: u64, segment: Segment) {
        self.has_segments = true;
        self.reserved = self.reserved.saturating_add(bytes);
        self.is_placed &= address != 0;
        self.segments.add(address, bytes, segment);
    }

    fn place(&mut self, allocation: u32, address: u64, placed: Placed) {
        self.is_placed &= address != 0;
        if let Some(place) = self.places.get_mut(allocation as usize) {
            *place = address;
        }
        self.blocks.insert(address, placed);
    }

    /// Returns the layout now, or `None` if addresses are missing.
    fn layout(&self) -> Option<Layout> {
        if !self.is_placed || !self.has_segments {
            return None;
        }
        let mut layout = Layout {
            reserved: self.reserved,
            ..Layout::default()
        };
        for placed in self.blocks.values() {
            if placed.waiting {
                layout.waiting.push(Hole {
                    bytes: placed.bytes,
                    stream: Some(placed.stream),
                    pool: Some(placed.pool),
                    small: None,
                });
            } else {
                layout.held = layout.held.saturating_add(placed.requested);
            }
        }
        let mut open: Option<(u64, u64, Segment)> = None;
        for (start, bytes, segment) in self.segments.iter() {
            match &mut open {
                // Pages that were mapped next to each other are one range.
                Some((_, end, of)) if *end == start && of.expandable && of == segment => *end = start + bytes,
                _ => {
                    if let Some(range) = open.replace((start, start + bytes, *segment)) {
                        self.holes(range, &mut layout.holes);
                    }
                }
            }
        }
        if let Some(range) = open {
            self.holes(range, &mut layout.holes);
        }
        Some(layout)
    }

    /// Adds the free ranges between `start` and `end`.
    fn holes(&self, (start, end, segment): (u64, u64, Segment), to: &mut Vec<Hole>) {
        let mut free = start;
        // A gap of at most this size belongs to the preceding block.
        let mut kept = 0;
        let mut gap = |from: u64, until: u64, kept: u64| {
            let bytes = until.saturating_sub(from);
            if bytes > kept {
                to.push(Hole {
                    bytes,
                    stream: Some(segment.stream),
                    pool: Some(segment.pool),
                    small: (!segment.expandable).then_some(segment.small),
                });
            }
        };
        for (&address, placed) in self.blocks.range(start..end) {
            gap(free, address, kept);
            free = free.max(address.saturating_add(placed.bytes));
            kept = self.rules.kept(placed.bytes, segment.small);
        }
        gap(free, end, kept);
    }
}
