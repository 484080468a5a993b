//! Runs some workloads in turn, and summarises the runs.

use crate::host::child::{self, Again};
use crate::host::contender::Contender;
use crate::host::figures::{Figures, Memory};
use crate::host::spec::Spec;
use crate::host::work::Effort;

/// The summary of all rounds of one part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) part: String,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    pub(crate) faults: f64,
    pub(crate) bytes: u64,
}

/// The rounds of one allocator with one workload.
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
    /// Returns the median of a contender's part.
    pub(crate) fn median(&self, contender: Contender, part: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.contender == contender)?;
        Some(row.part(part)?.median)
    }
}

/// Runs all of these in `rounds` rounds and returns the results of each. The first one changes from round to round, and every
/// other round runs backwards, so that no contender always follows the same one.
pub(crate) fn in_turn<C>(
    who: &[C],
    rounds: usize,
    mut run: impl FnMut(&C) -> Option<Figures>,
) -> Vec<Vec<Figures>> {
    let mut order: Vec<usize> = (0..who.len()).collect();
    let mut runs = vec![Vec::new(); who.len()];
    for round in 0..rounds {
        if round > 0 {
            order.reverse();
            let one = usize::from(!order.is_empty());
            order.rotate_left(one);
        }
        for &at in &order {
            runs[at].extend(run(&who[at]));
        }
    }
    runs
}

/// Runs all workloads.
pub(crate) fn measure(
    specs: &[Spec],
    peers: &[Contender],
    rounds: usize,
    again: &Again,
    effort: Effort,
    failed: &mut Vec<String>,
) -> Vec<Rows> {
    let measured = |&spec: &Spec| {
        let who: Vec<Contender> = peers.iter().copied().filter(|c| c.runs(spec)).collect();
        let runs = in_turn(&who, rounds, |&contender| {
            let answer = child::start(spec, contender, effort, again);
            answer.map_err(|error| failed.push(error)).ok()
        });
        let filled = who.into_iter().zip(runs).filter(|(_, all)| !all.is_empty());
        let rows = filled.map(|(contender, all)| summary(contender, &all)).collect();
        Rows { spec, rows }
    };
    specs.iter().map(measured).collect()
}

pub(crate) fn summary(contender: Contender, rounds: &[Figures]) -> Row {
    let parts = rounds.iter().map(|r| r.times.len()).min().unwrap_or(0);
    let part = |at: usize| {
        let of =
            |get: fn(&crate::host::figures::Time) -> f64| sorted(rounds.iter().map(|r| get(&r.times[at])));
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

/// Returns the median of each stage.
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
