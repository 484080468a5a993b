//! The memory that a source has provided and that was not returned yet, as recorded by a wrapper.

use super::SourceEvent;
use std::collections::BTreeMap;

/// Segments by address, and ranges with their committed bytes.
///
/// A source rejects segments and ranges of other sources, but only some calls report this. If a wrapper counted every
/// returned segment and range, it would therefore count too much.
#[derive(Clone, Debug, Default)]
#[doc(hidden)]
pub struct HeldMemory {
    segments: BTreeMap<u64, u64>,
    ranges: BTreeMap<u64, ReservedRange>,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct ReservedRange {
    bytes: u64,
    committed: u64,
}

impl HeldMemory {
    /// Returns the total bytes held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records a call after its outcome is known. Returns the bytes that it took from the source and the bytes that it
    /// returned.
    pub fn record(&mut self, event: &SourceEvent<'_>) -> (u64, u64) {
        let (taken, returned) = match *event {
            SourceEvent::Take {
                bytes,
                outcome: Ok(address),
            } => {
                self.segments.insert(address, bytes);
                (bytes, 0)
            }
            SourceEvent::Give { address, bytes } if self.segments.get(&address) == Some(&bytes) => {
                self.segments.remove(&address);
                (0, bytes)
            }
            SourceEvent::Reserve {
                bytes,
                outcome: Ok(address),
            } => {
                self.ranges.insert(address, ReservedRange { bytes, committed: 0 });
                (0, 0)
            }
            SourceEvent::Commit {
                address,
                bytes,
                outcome: Ok(()),
                ..
            } => {
                self.commit(address, bytes);
                (bytes, 0)
            }
            SourceEvent::Decommit {
                address,
                bytes,
                handles: 1..,
            } => {
                self.decommit(address, bytes);
                (0, bytes)
            }
            SourceEvent::Relocate {
                address,
                bytes,
                copied,
                outcome: Ok(()),
            } => {
                self.decommit(address, bytes);
                self.commit(address, copied);
                (copied, bytes)
            }
            SourceEvent::Release { address, bytes } => (0, self.release(address, bytes)),
            _ => (0, 0),
        };
        if let Some((from, to, bytes)) = event.moved() {
            self.decommit(from, bytes);
            self.commit(to, bytes);
        }
        self.bytes = (self.bytes + taken).saturating_sub(returned);
        (taken, returned)
    }

    fn range_at(&mut self, address: u64) -> Option<&mut ReservedRange> {
        self.ranges
            .range_mut(..=address)
            .next_back()
            .map(|(_, range)| range)
    }

    fn commit(&mut self, address: u64, bytes: u64) {
        if let Some(range) = self.range_at(address) {
            range.committed += bytes;
        }
    }

    fn decommit(&mut self, address: u64, bytes: u64) {
        if let Some(range) = self.range_at(address) {
            range.committed = range.committed.saturating_sub(bytes);
        }
    }

    /// Removes a range. Returns the bytes that become free, which are 0 if no page was committed.
    fn release(&mut self, address: u64, bytes: u64) -> u64 {
        match self.ranges.get(&address) {
            Some(range) if range.bytes == bytes => {
                let committed = range.committed;
                self.ranges.remove(&address);
                committed
            }
            _ => 0,
        }
    }
}
