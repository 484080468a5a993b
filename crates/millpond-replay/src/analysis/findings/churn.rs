//! Finds blocks that are freed by the next memory event of their thread.

use super::{Finding, Lint, WindowEnd, percent, size, who_of};
use crate::analysis::ledger::Watch;

/// The fewest such blocks that are reported.
const LEAST_BLOCKS: u64 = 1000;
/// The smallest share of all allocations that is reported.
const LEAST_SHARE: f64 = 0.25;

pub(super) struct Churn;

impl Watch for Churn {}

impl Lint for Churn {
    fn told(&self, seen: &WindowEnd<'_>) -> Option<Finding> {
        let (temporary, all) = (seen.summary.temporary, seen.summary.allocated);
        if temporary.blocks < LEAST_BLOCKS || (temporary.blocks as f64) < LEAST_SHARE * all.blocks as f64 {
            return None;
        }
        Some(Finding {
            name: "temporary churn",
            // These blocks are never held at once, so their sum would be misleading.
            bytes: u64::try_from(temporary.bytes / u128::from(temporary.blocks)).unwrap_or(u64::MAX),
            evidence: format!(
                "{} of {} allocations ({}) are freed before their thread allocates or frees anything else: {} on average, {} in total",
                temporary.blocks,
                all.blocks,
                percent(temporary.blocks.into(), all.blocks.into()),
                size(temporary.bytes / u128::from(temporary.blocks)),
                size(temporary.bytes),
            ),
            when: None,
            who: who_of(&seen.summary.temporary_by[seen.ledger.groups.usual() as usize]),
            remedy: "Allocate one buffer before the loop and use it each time, or write into an output that exists already.",
        })
    }
}
