//! All runs of some workloads, in turn, and what they come to.

use crate::child;
use crate::contender::Contender;
use crate::figures::{Figures, Memory};
use crate::spec::Spec;

/// What the rounds of one part came to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) part: String,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) faults: f64,
    pub(crate) bytes: u64,
}

/// One allocator's rounds of one workload.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) contender: Contender,
    pub(crate) parts: Vec<Summary>,
    pub(crate) memory: Option<Memory>,
}

impl Row {
    pub(crate) fn part(&self, name: &str) -> Option<&Summary> {
        self.parts.iter().find(|part| part.part == name)
    }
}

/// A workload and its rows.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) spec: Spec,
    pub(crate) rows: Vec<Row>,
}

impl Rows {
    /// The median of somebody's part.
    pub(crate) fn median(&self, contender: Contender, part: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.contender == contender)?;
        Some(row.part(part)?.median)
    }
}

/// Runs everything. Who goes first changes from round to round, and every other round goes backwards, so that
/// nobody always follows the same neighbour.
pub(crate) fn measure(
    specs: &[Spec],
    peers: &[Contender],
    rounds: usize,
    failed: &mut Vec<String>,
) -> Vec<Rows> {
    let measured = |&spec: &Spec| {
        let mut order: Vec<Contender> = peers.iter().copied().filter(|c| c.runs(spec)).collect();
        let mut runs: Vec<(Contender, Vec<Figures>)> = order.iter().map(|&c| (c, Vec::new())).collect();
        for round in 0..rounds {
            if round > 0 {
                order.reverse();
                let one = usize::from(!order.is_empty());
                order.rotate_left(one);
            }
            for &contender in &order {
                match child::start(spec, contender) {
                    Ok(figures) => {
                        let of = runs.iter_mut().filter(|(c, _)| *c == contender);
                        of.for_each(|(_, all)| all.push(figures.clone()));
                    }
                    Err(error) => failed.push(error),
                }
            }
        }
        let filled = runs.into_iter().filter(|(_, all)| !all.is_empty());
        let rows = filled.map(|(contender, all)| summary(contender, &all)).collect();
        Rows { spec, rows }
    };
    specs.iter().map(measured).collect()
}

fn summary(contender: Contender, rounds: &[Figures]) -> Row {
    let parts = rounds.iter().map(|r| r.times.len()).min().unwrap_or(0);
    let part = |at: usize| {
        let of = |get: fn(&crate::figures::Time) -> f64| sorted(rounds.iter().map(|r| get(&r.times[at])));
        let times = of(|time| time.nanoseconds);
        let faults = of(|time| time.faults);
        Summary {
            part: rounds[0].times[at].part.clone(),
            median: times[times.len() / 2],
            least: times[0],
            most: times[times.len() - 1],
            faults: faults[faults.len() / 2],
            bytes: rounds[0].times[at].bytes,
        }
    };
    let memories: Vec<Memory> = rounds.iter().filter_map(|r| r.memory).collect();
    Row {
        contender,
        parts: (0..parts).map(part).collect(),
        memory: middle(&memories),
    }
}

/// Each stage's median.
fn middle(of: &[Memory]) -> Option<Memory> {
    let stage = |get: fn(&Memory) -> u64| {
        let mut all: Vec<u64> = of.iter().map(get).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    (!of.is_empty()).then(|| Memory {
        start: stage(|m| m.start),
        peak: stage(|m| m.peak),
        live: stage(|m| m.live),
        freed: stage(|m| m.freed),
        trimmed: stage(|m| m.trimmed),
        left: stage(|m| m.left),
    })
}

fn sorted(of: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = of.collect();
    all.sort_by(f64::total_cmp);
    all
}
