//! Rebuilds the state before the first event by undoing all events on the final state.
//!
//! ```text
//! event            undone, the block or segment at its address is
//! alloc            absent
//! free_requested   present, held by the program
//! free_completed   present, waiting for a stream
//! segment_alloc    absent               segment_map      that range is not mapped
//! segment_free     present              segment_unmap    that range is mapped
//! ```
//!
//! For a consistent file the result is exact: the live blocks, every requested size, and every segment's range. Two
//! facts are not in the file. The rounded size of a block that was freed during the history is unknown (its `bytes` are
//! `None`). The kind of a segment that does not exist at the end is inferred from sizes. If an event cannot be undone,
//! the file contradicts itself. This is counted, and the nearest plausible state is used.

use crate::caution::{Finding, Findings};
use crate::hash::Map;
use crate::model::{InitialBlock, NO_ALLOCATION};
use crate::{Action, Event};
use std::collections::BTreeMap;

/// Size of the segments of small pools. They serve no request above half of it.
const SMALL_SEGMENT: u64 = 2 << 20;

/// A range that the allocator has reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) bytes: u64,
    pub(super) stream: u16,
    pub(super) pool: u16,
    /// `None` while the kind is only inferred from a freed segment.
    pub(super) small: Option<bool>,
    pub(super) expandable: bool,
}

/// The state at a point of a device's history, moved backwards.
pub(super) struct Rewind<'f> {
    pub(super) segments: BTreeMap<u64, Segment>,
    /// Blocks that the program holds or that wait for a stream, by address.
    pub(super) blocks: Map<u64, InitialBlock>,
    /// Whether events contain their pool. Otherwise the pool is that of the segment around the address.
    pub(super) pools_recorded: bool,
    /// Whether the kind of a segment is still inferred.
    pub(super) kinds_open: bool,
    pub(super) findings: &'f mut Findings,
}

/// Returns whether a range overlaps one of `segments`.
pub(super) fn overlaps(segments: &BTreeMap<u64, Segment>, address: u64, bytes: u64) -> bool {
    let end = address.saturating_add(bytes);
    segments
        .range(..end)
        .next_back()
        .is_some_and(|(&start, segment)| start.saturating_add(segment.bytes) > address)
}

/// Returns the block that an event frees.
fn block(event: &Event, pending: bool) -> InitialBlock {
    InitialBlock {
        address: event.address,
        requested: event.bytes,
        bytes: None,
        allocation: NO_ALLOCATION,
        tag: 0,
        stream: event.stream,
        pool: event.pool,
        pending,
    }
}

impl Rewind<'_> {
    /// Undoes all events, last first. Sets the pool of events that do not contain one.
    pub(super) fn all(&mut self, events: &mut [Event]) {
        let infer_pools = !self.pools_recorded && self.segments.values().any(|segment| segment.pool != 0);
        for event in events.iter_mut().rev() {
            if infer_pools {
                self.infer_pool(event);
            }
            self.undo(event);
        }
        for segment in self.segments.values_mut() {
            segment.small.get_or_insert(segment.bytes == SMALL_SEGMENT);
        }
    }

    fn infer_pool(&self, event: &mut Event) {
        if let Some((_, segment)) = self.around(event.address) {
            event.pool = segment.pool;
        }
    }

    pub(super) fn around(&self, address: u64) -> Option<(u64, Segment)> {
        let (&start, &segment) = self.segments.range(..=address).next_back()?;
        (address - start < segment.bytes).then_some((start, segment))
    }

    fn undo(&mut self, event: &Event) {
        let Event { address, bytes, .. } = *event;
        match event.action {
            Action::Alloc => {
                if self.blocks.remove(&address).is_none() {
                    self.findings.count(Finding::StateDisagrees);
                }
                self.note_large(address, bytes);
            }
            Action::FreeCompleted => {
                if self.blocks.insert(address, block(event, true)).is_some() {
                    self.findings.count(Finding::StateDisagrees);
                }
                self.note_large(address, bytes);
            }
            Action::FreeRequested | Action::Free => self.undo_request(event),
            Action::SegmentAlloc => match self.segments.remove(&address) {
                Some(segment) if segment.bytes == bytes => {}
                _ => self.findings.count(Finding::StateDisagrees),
            },
            Action::SegmentFree => self.add(event, false),
            Action::SegmentMap => {
                if self.cut(address, bytes) != bytes {
                    self.findings.count(Finding::StateDisagrees);
                }
            }
            Action::SegmentUnmap => self.add(event, true),
            Action::OutOfMemory => {}
        }
    }

    fn undo_request(&mut self, event: &Event) {
        match self.blocks.get_mut(&event.address) {
            Some(block) if block.pending => block.pending = false,
            // The block was freed and never completed, but the final state does not show it as waiting.
            found => {
                if found.is_none() {
                    self.blocks.insert(event.address, block(event, false));
                }
                self.findings.count(Finding::StateDisagrees);
            }
        }
    }

    /// Records that a segment of inferred kind is not small, because it served a large request.
    fn note_large(&mut self, address: u64, bytes: u64) {
        if self.kinds_open
            && bytes > SMALL_SEGMENT / 2
            && let Some((start, Segment { small: None, .. })) = self.around(address)
            && let Some(segment) = self.segments.get_mut(&start)
        {
            segment.small = Some(false);
        }
    }

    /// Adds the segment or range of `event` again.
    fn add(&mut self, event: &Event, expandable: bool) {
        let Event {
            address,
            bytes,
            stream,
            pool,
            ..
        } = *event;
        let Some(end) = address.checked_add(bytes) else {
            self.findings.count(Finding::AbsurdBytes);
            return;
        };
        if bytes == 0 || overlaps(&self.segments, address, bytes) {
            self.findings.count(Finding::StateDisagrees);
            return;
        }
        let mut start = address;
        let mut added = Segment {
            bytes,
            stream,
            pool,
            small: None,
            expandable,
        };
        if expandable {
            // In a snapshot, adjacent mapped ranges are one segment of one kind.
            let joins = |found: &Segment| found.expandable && found.stream == stream;
            let before = self.segments.range(..address).next_back();
            if let Some((&at, &found)) = before
                && at.saturating_add(found.bytes) == address
                && joins(&found)
            {
                self.segments.remove(&at);
                start = at;
                added = Segment {
                    bytes: found.bytes + added.bytes,
                    ..found
                };
            }
            if let Some(&found) = self.segments.get(&end)
                && joins(&found)
                && (added.small.is_none() || found.small.is_none() || found.small == added.small)
                && (start == address || found.pool == added.pool)
            {
                self.segments.remove(&end);
                let bytes = added.bytes.saturating_add(found.bytes);
                added = if added.small.is_none() {
                    Segment { bytes, ..found }
                } else {
                    Segment { bytes, ..added }
                };
            }
        }
        self.kinds_open |= added.small.is_none();
        self.segments.insert(start, added);
    }

    /// Removes a range from the expandable segments. Returns how many bytes of it were mapped.
    fn cut(&mut self, address: u64, bytes: u64) -> u64 {
        let end = address.saturating_add(bytes);
        let mut taken = 0;
        while let Some((&start, &segment)) = self.segments.range(..end).next_back() {
            let segment_end = start.saturating_add(segment.bytes);
            if segment_end <= address {
                break;
            }
            self.segments.remove(&start);
            taken += segment_end.min(end) - start.max(address);
            if end < segment_end {
                let bytes = segment_end - end;
                self.segments.insert(end, Segment { bytes, ..segment });
            }
            if start < address {
                let bytes = address - start;
                self.segments.insert(start, Segment { bytes, ..segment });
                break;
            }
        }
        taken
    }
}
