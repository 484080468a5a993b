//! What a host source has mapped: reserved ranges, and segments.

use super::runs::Runs;
use crate::os::{Map, Part};
use std::collections::BTreeSet;

/// Reserved addresses.
///
/// Invariant: what `runs` names is open, and what neither `runs` nor `unclosed` names is closed and of one
/// piece between its neighbours.
#[derive(Debug)]
pub(super) struct Reserved {
    pub(super) map: Map,
    /// Bytes of the token, at most the map's.
    pub(super) bytes: u64,
    pub(super) runs: Runs,
    /// Parts given back that the system would not close yet, and bytes still charged for them.
    pub(super) unclosed: Vec<(Part, u64)>,
    pub(super) seams: Seams,
}

/// A segment in a caller's hand. Invariant: the whole map is open.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) map: Map,
    /// Bytes of the token.
    pub(super) bytes: u64,
    pub(super) charged: u64,
    pub(super) seams: Seams,
}

/// Offsets at which an open part may be of several pieces for the system, since pages were put under a part of it. The
/// system moves one piece in a call.
#[derive(Debug, Default)]
pub(super) struct Seams(BTreeSet<u64>);

impl Seams {
    pub(super) fn add(&mut self, offset: u64) {
        self.0.insert(offset);
    }

    /// Those inside a part, its ends not.
    pub(super) fn inside(&self, part: Part) -> impl Iterator<Item = u64> + '_ {
        let inside = self.0.range(part.offset..part.end());
        inside.copied().filter(move |seam| *seam > part.offset)
    }

    /// A part is of one piece again, as a fresh map was put over it.
    fn mend(&mut self, part: Part) {
        let gone: Vec<u64> = self.0.range(part.offset..=part.end()).copied().collect();
        for seam in gone {
            self.0.remove(&seam);
        }
    }
}

fn overlap(one: Part, other: Part) -> bool {
    one.offset < other.end() && other.offset < one.end()
}

impl Reserved {
    /// Tries again to close what could not be closed and lies in a part; answers the bytes that are no longer
    /// charged.
    pub(super) fn close_over(&mut self, part: Part) -> u64 {
        let mut refund = 0;
        let map = &self.map;
        self.unclosed.retain(|(other, charged)| {
            let closed = overlap(*other, part) && map.close(*other).is_ok();
            refund += if closed { *charged } else { 0 };
            !closed
        });
        refund
    }

    /// Tries again to close a few parts that could not be closed.
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

    /// Closes a part; answers how many of the bytes charged for it are no longer.
    pub(super) fn close(&mut self, part: Part, charged: u64) -> u64 {
        if self.map.close(part).is_ok() {
            self.seams.mend(part);
            return charged + self.close_some();
        }
        // What can be done is done now: the memory goes, and the access if that cuts no map.
        let emptied = self.map.empty(part).is_ok();
        let _ = self.map.shut(part);
        let (refund, charged) = if emptied { (charged, 0) } else { (0, charged) };
        self.unclosed.push((part, charged));
        refund
    }

    /// Whether pages can be put into a part.
    pub(super) fn is_vacant(&self, part: Part) -> bool {
        self.runs.is_free(part) && self.unclosed.iter().all(|(other, _)| !overlap(*other, part))
    }
}
