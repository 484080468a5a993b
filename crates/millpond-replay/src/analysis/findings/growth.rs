//! Finds memory that grows from step to step. It fits a slope over all steps, and does not use the blocks
//! that happen to live at the end.

use super::super::shown;
use super::{By, Finding, Lint, Map, RecordedSteps, WindowEnd, percent, size, who};
use crate::analysis::ledger::{Block, Ledger, Watch};
use millpond_trace::recording::Row;

/// The fewest steps through which a slope is fitted. The first step is a warm-up and is not included.
const LEAST_STEPS: usize = 4;
/// The smallest total growth that is reported, in bytes.
const LEAST_BYTES: f64 = 64.0 * 1024.0;
/// The smallest growth that is reported, as a share of the peak.
const LEAST_SHARE: f64 = 0.005;
/// The smallest share of the differences between steps that the slope must explain.
const LEAST_FIT: f64 = 0.8;
/// The most groups for which slopes are fitted.
const MOST_GROUPS: usize = 4096;

pub(super) struct Growth {
    /// The first row and the time of each step.
    begins: Vec<(u64, u64)>,
    next: usize,
    /// Bytes that lived when each step began.
    totals: Vec<f64>,
    /// Bytes of each group now, and its sums over the steps: of bytes, and of bytes times the step's number.
    groups: Vec<(u128, f64, f64)>,
    bytes: u128,
}

impl Growth {
    pub(super) fn new(steps: Option<&RecordedSteps>) -> Self {
        let steps = steps.map_or(&[][..], |known| &known.steps);
        // The first step makes allocations that all later steps reuse.
        let begins = steps.iter().skip(1).map(|step| (step.first_row, step.from));
        Self {
            begins: begins.collect(),
            next: 0,
            totals: Vec::new(),
            groups: Vec::new(),
            bytes: 0,
        }
    }

    /// Handles a row that may be the first of a step.
    fn enter(&mut self, ledger: &Ledger<'_>) {
        while self
            .begins
            .get(self.next)
            .is_some_and(|(row, _)| *row <= ledger.order)
        {
            self.next += 1;
            let x = self.totals.len() as f64;
            self.totals.push(self.bytes as f64);
            for (bytes, sum, weighted) in &mut self.groups {
                *sum += *bytes as f64;
                *weighted += *bytes as f64 * x;
            }
        }
    }

    fn change(&mut self, ledger: &Ledger<'_>, block: &Block, change: impl Fn(u128, u128) -> u128) {
        self.enter(ledger);
        self.bytes = ledger.bytes;
        self.count(block, ledger.groups.usual(), change);
    }

    fn count(&mut self, block: &Block, by: By, change: impl Fn(u128, u128) -> u128) {
        let group = block.groups[by as usize] as usize;
        if group >= MOST_GROUPS {
            return;
        }
        if self.groups.len() <= group {
            self.groups.resize(group + 1, (0, 0.0, 0.0));
        }
        let of = &mut self.groups[group];
        of.0 = change(of.0, block.sum(by).bytes);
    }
}

impl Watch for Growth {
    fn begins(&mut self, ledger: &Ledger<'_>) {
        // Steps before the window are ignored.
        self.begins.retain(|(row, _)| *row >= ledger.order);
        for block in ledger.live.values() {
            self.count(block, ledger.groups.usual(), |now, bytes| now + bytes);
        }
        self.bytes = ledger.bytes;
    }

    fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        self.change(ledger, block, |now, bytes| now + bytes);
    }

    fn closed(&mut self, ledger: &Ledger<'_>, block: &Block, _: Option<&Row>) {
        self.change(ledger, block, u128::saturating_sub);
    }

    fn row(&mut self, ledger: &Ledger<'_>, _: &Row, _: Option<&str>) {
        self.enter(ledger);
    }
}

/// Returns the slope of a line through points at 0, 1, 2 and so on, and the share of their differences that
/// it explains.
fn slope(points: &[f64]) -> (f64, f64) {
    let n = points.len() as f64;
    let (middle, mean) = ((n - 1.0) / 2.0, points.iter().sum::<f64>() / n);
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (at, y) in points.iter().enumerate() {
        let (x, y) = (at as f64 - middle, y - mean);
        xx += x * x;
        xy += x * y;
        yy += y * y;
    }
    if xx == 0.0 || yy == 0.0 {
        return (0.0, 0.0);
    }
    (xy / xx, xy * xy / (xx * yy))
}

impl Lint for Growth {
    fn told(&self, seen: &WindowEnd<'_>) -> Option<Finding> {
        let count = self.totals.len();
        if count < LEAST_STEPS {
            return None;
        }
        let (slope, fit) = slope(&self.totals);
        let grown = slope * (count - 1) as f64;
        let peak = seen.summary.peak.sum.bytes;
        if fit < LEAST_FIT || grown < LEAST_BYTES || grown < peak as f64 * LEAST_SHARE {
            return None;
        }
        let n = count as f64;
        let (middle, xx) = ((n - 1.0) / 2.0, n * (n * n - 1.0) / 12.0);
        let mut growing: Map<u32, (u128, u64)> = Map::default();
        for (group, (_, sum, weighted)) in self.groups.iter().enumerate() {
            let slope = (weighted - middle * sum) / xx;
            if slope >= 1.0 {
                growing.insert(group as u32, ((slope * (n - 1.0)) as u128, 0));
            }
        }
        let grown = grown as u128;
        Some(Finding {
            name: "growth from step to step",
            bytes: shown(grown),
            evidence: format!(
                "the memory in use when a step begins grows by {} a step over {count} steps, {} in total ({} of the peak)",
                size(slope as u128),
                size(grown),
                percent(grown, peak),
            ),
            when: self
                .begins
                .first()
                .zip(self.begins.get(count - 1))
                .map(|(a, b)| (a.1, b.1)),
            who: who(seen.ledger, &growing),
            remedy: "Find what each of these keeps from step to step (lists of results, caches without a bound, values that hold their \
                     graph), and drop it when the step ends.",
        })
    }
}
