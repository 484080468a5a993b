//! The mappings of a host source: reserved ranges and segments.

use super::runs::Runs;
use millpond_os::{Map, Part};
use std::collections::BTreeSet;

/// Reserved addresses.
///
/// Invariant: the parts in `runs` are open, and the parts that are neither in `runs` nor in `unclosed` are closed and in
/// one piece between their neighbours.
#[derive(Debug)]
pub(super) struct Reserved {
    pub(super) map: Map,
    /// Bytes of the token, at most those of the mapping.
    pub(super) bytes: u64,
    /// The offset in the source's memfd of the pages that this range prefers. Without a memfd it is 0.
    pub(super) home: u64,
    /// The mapped runs, in use or stale.
    pub(super) runs: Runs,
    /// Parts that were given back and that the system could not close yet, and the bytes still charged for them.
    pub(super) unclosed: Vec<(Part, u64)>,
    pub(super) seams: VmaBoundaries,
}

/// An allocated segment. Invariant: the whole mapping is open.
#[derive(Debug)]
pub(crate) struct TakenSegment {
    pub(super) map: Map,
    /// Bytes of the token.
    pub(super) bytes: u64,
    pub(super) charged: u64,
    pub(super) seams: VmaBoundaries,
}

/// The offsets at which the system may have split an open part into several mappings, because pages were moved into a part
/// of it or advice was given for a part of it. The system moves one mapping per call.
#[derive(Debug, Default)]
pub(super) struct VmaBoundaries(BTreeSet<u64>);

impl VmaBoundaries {
    pub(crate) fn add(&mut self, offset: u64) {
        self.0.insert(offset);
    }

    /// Returns the offsets inside a part, without its ends.
    pub(super) fn inside(&self, part: Part) -> impl Iterator<Item = u64> + '_ {
        let inside = self.0.range(part.offset..part.end());
        inside.copied().filter(move |seam| *seam > part.offset)
    }

    /// Records that a part is in one piece again, because a fresh mapping replaced it.
    fn mend(&mut self, part: Part) {
        let gone: Vec<u64> = self.0.range(part.offset..=part.end()).copied().collect();
        for seam in gone {
            self.0.remove(&seam);
        }
    }
}

impl Reserved {
    /// Tries again to close the parts inside `part` that could not be closed. Returns the bytes that are no longer charged.
    pub(super) fn close_over(&mut self, part: Part) -> u64 {
        let mut refund = 0;
        let map = &self.map;
        self.unclosed.retain(|(other, charged)| {
            let closed = other.overlaps(part) && map.close(*other).is_ok();
            refund += if closed { *charged } else { 0 };
            !closed
        });
        refund
    }

    /// Tries again to close a few parts that could not be closed. Returns the bytes that are no longer charged.
    pub(super) fn close_some(&mut self) -> u64 {
        const FEW: usize = 4;
        let mut refund = 0;
        for _ in 0..FEW {
            match self.unclosed.pop() {
                Some((part, charged)) if self.map.close(part).is_ok() => refund += charged,
                Some(still) => {
                    self.unclosed.push(still);
                    break;
                }
                None => break,
            }
        }
        refund
    }

    /// Closes a part for which `charged` bytes are charged. Returns the bytes that are no longer charged, including those of
    /// earlier parts that could be closed now.
    pub(super) fn close(&mut self, part: Part, charged: u64) -> u64 {
        if self.map.close(part).is_ok() {
            self.seams.mend(part);
            return charged + self.close_some();
        }
        // Everything that is possible is done now: the memory is returned, and access is removed if that splits no mapping.
        let emptied = self.map.empty(part).is_ok();
        let _ = self.map.shut(part);
        let (refund, charged) = if emptied { (charged, 0) } else { (0, charged) };
        self.unclosed.push((part, charged));
        refund
    }

    /// Returns whether pages can be moved into a part, or mapped there.
    pub(super) fn is_vacant(&self, part: Part) -> bool {
        self.runs.is_free(part) && self.unclosed.iter().all(|(other, _)| !other.overlaps(part))
    }
}
