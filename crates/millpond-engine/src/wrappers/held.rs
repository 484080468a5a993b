//! The memory that a source has provided and not got back, as recorded by a wrapper.

use crate::source::{Range, Segment};
use std::collections::BTreeMap;

/// Segments, and committed bytes of ranges, keyed by the address and size of the token.
///
/// A source rejects tokens that are not its own, but only some calls report this. A wrapper that counted every call
/// would therefore count too much.
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
    /// Returns the total bytes held.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn took(&mut self, segment: &Segment) {
        self.segments.insert(segment.address(), segment.bytes());
        self.bytes += segment.bytes();
    }

    /// Removes a segment. Returns the bytes that become free.
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

    /// Removes a range. Returns the bytes that become free, which are 0 if no page was committed.
    pub(super) fn released(&mut self, range: &Range) -> u64 {
        let bytes = self.ranges.remove(&key(range)).unwrap_or(0);
        self.bytes -= bytes;
        bytes
    }
}
