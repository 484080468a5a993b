//! Finds bytes that were not requested but added by rounding sizes up.

use super::super::shown;
use super::{Finding, Lint, WindowEnd, largest, percent, size};
use crate::analysis::ledger::Watch;

/// The least waste at the peak that is reported, in bytes.
const LEAST_BYTES: u128 = 1 << 20;
/// The smallest reported share: one part in this many of the bytes held at the peak.
const ONE_IN: u128 = 10;

pub(super) struct RoundingWaste;

impl Watch for RoundingWaste {}

impl Lint for RoundingWaste {
    fn told(&self, seen: &WindowEnd<'_>) -> Option<Finding> {
        let peak = &seen.summary.peak;
        let waste = peak.sum.bytes.saturating_sub(peak.sum.requested);
        if waste < LEAST_BYTES || waste * ONE_IN < peak.sum.bytes {
            return None;
        }
        let of = peak.by(seen.ledger.groups.usual()).iter().map(|group| {
            let waste = group.sum.bytes.saturating_sub(group.sum.requested);
            (waste, group.name.clone(), group.sum.blocks)
        });
        Some(Finding {
            name: "rounding waste",
            bytes: shown(waste),
            evidence: format!(
                "at the peak, {} of {} ({}) were not requested but added by rounding, in {} blocks",
                size(waste),
                size(peak.sum.bytes),
                percent(waste, peak.sum.bytes),
                peak.sum.blocks,
            ),
            when: Some((peak.time, peak.time)),
            who: largest(of.collect()),
            remedy: "Use an allocator that rounds less (smaller size classes, no powers of two), or combine small blocks into one.",
        })
    }
}
