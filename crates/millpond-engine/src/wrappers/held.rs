//! What a source has given and not got back, as a wrapper knows it.

use crate::source::{Range, Segment};
use std::collections::BTreeMap;

/// Segments, and committed bytes of ranges, by address and bytes of the token.
///
/// A source refuses tokens that are not its own, and says so of some calls only; a wrapper that counted all of
/// them would count too much.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    segments: BTreeMap<u64, u64>,
    ranges: BTreeMap<(u64, u64), u64>,
    bytes: u64,
}

fn key(range: &Range) -> (u64, u64) {
    (range.address(), range.bytes())
}

impl Held {
    /// Bytes held in all.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn took(&mut self, segment: &Segment) {
        self.segments.insert(segment.address(), segment.bytes());
        self.bytes += segment.bytes();
    }

    /// Answers the bytes that come free when this segment is given.
    pub(super) fn gave(&mut self, segment: &Segment) -> u64 {
        if self.segments.get(&segment.address()) != Some(&segment.bytes()) {
            return 0;
        }
        self.segments.remove(&segment.address());
        self.bytes -= segment.bytes();
        segment.bytes()
    }

    pub(super) fn reserved(&mut self, range: &Range) {
        self.ranges.insert(key(range), 0);
    }

    pub(super) fn committed(&mut self, range: &Range, bytes: u64) {
        *self.ranges.entry(key(range)).or_default() += bytes;
        self.bytes += bytes;
    }

    pub(super) fn decommitted(&mut self, range: &Range, bytes: u64) {
        let held = self.ranges.entry(key(range)).or_default();
        *held = held.saturating_sub(bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub(super) fn moved(&mut self, from: &Range, to: &Range, bytes: u64) {
        self.decommitted(from, bytes);
        self.committed(to, bytes);
    }

    /// Answers the bytes that come free when this range is released, which are none where it is left empty.
    pub(super) fn released(&mut self, range: &Range) -> u64 {
        let bytes = self.ranges.remove(&key(range)).unwrap_or(0);
        self.bytes -= bytes;
        bytes
    }
}
