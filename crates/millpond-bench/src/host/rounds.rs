//! Runs some workloads in turn, and summarises the runs.

use crate::host::child::{self, Again};
use crate::host::contender::Contender;
use crate::host::figures::{Figures, Memory};
use crate::host::spec::Spec;
use crate::host::work::Effort;
use crate::measure::{Samples, Spread, order};

/// The summary of all rounds of one part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) part: String,
    pub(crate) time: Spread,
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
pub(crate) struct WorkloadResult {
    pub(crate) spec: Spec,
    pub(crate) rows: Vec<Row>,
}

impl WorkloadResult {
    /// Returns the median of a contender's part.
    pub(crate) fn median(&self, contender: Contender, part: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.contender == contender)?;
        Some(row.part(part)?.time.median)
    }
}

/// Runs all of these in turn in `rounds` rounds, and returns the results of each.
pub(crate) fn in_turn<C>(
    who: &[C],
    rounds: usize,
    mut run: impl FnMut(&C) -> Option<Figures>,
) -> Vec<Vec<Figures>> {
    let mut runs = vec![Vec::new(); who.len()];
    for (_, at) in order(who.len(), rounds) {
        runs[at].extend(run(&who[at]));
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
) -> Vec<WorkloadResult> {
    let measured = |&spec: &Spec| {
        let who: Vec<Contender> = peers.iter().copied().filter(|c| c.runs(spec)).collect();
        let runs = in_turn(&who, rounds, |&contender| {
            let answer = child::start(spec, contender, effort, again);
            answer.map_err(|error| failed.push(error)).ok()
        });
        let filled = who.into_iter().zip(runs).filter(|(_, all)| !all.is_empty());
        let rows = filled.map(|(contender, all)| summary(contender, &all)).collect();
        WorkloadResult { spec, rows }
    };
    specs.iter().map(measured).collect()
}

pub(crate) fn summary(contender: Contender, rounds: &[Figures]) -> Row {
    let parts = rounds.iter().map(|r| r.times.len()).min().unwrap_or(0);
    let part = |at: usize| {
        let of_rounds = || rounds.iter().map(|round| &round.times[at]);
        Summary {
            part: rounds[0].times[at].part.clone(),
            time: of_rounds()
                .map(|time| time.nanoseconds)
                .collect::<Samples>()
                .spread(),
            faults: of_rounds().map(|time| time.faults).collect::<Samples>().median(),
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
    let stage = |at: usize| {
        let mut all: Vec<u64> = of.iter().map(|memory| memory.stages()[at]).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    };
    let [start, peak, live, freed, trimmed, left] = [0, 1, 2, 3, 4, 5].map(stage);
    Some(Memory::from_stages([
        start?, peak?, live?, freed?, trimmed?, left?,
    ]))
}
