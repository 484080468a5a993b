//! Computes the device memory that a recorded program would have taken under other policies, as lines over
//! the recording.

use super::told::tame;
use crate::error::ReplayError;
use crate::options::Options;
use crate::prepared::Prepared;
use crate::program::Op;
use crate::run::Observer;
use millpond_engine::{Engine, Simulated, policies};
use millpond_trace::export::{ExportError, ExportOptions, Traces, traces};
use millpond_trace::history::History;
use serde_json::{Value, json};

/// The most changes of a line. A longer line is divided into this many ranges, and only the maximum of each
/// is kept.
const MOST_CHANGES: usize = 1 << 16;

/// A recording that cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WhatIfError {
    /// The calls could not be extracted from the recording.
    #[error(transparent)]
    Traces(#[from] ExportError),
    /// A policy cannot replay it.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// A recording prepared for replays. It is completely in memory.
#[derive(Debug)]
pub struct WhatIf {
    traces: Traces,
}

/// The changes of the memory taken from all devices together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReservedLine {
    /// Pairs of a time in nanoseconds since the recording began and the bytes from then on.
    changes: Vec<(u64, u64)>,
    /// The largest value.
    peak: u64,
    /// The time at which the policy could not continue, if any.
    stopped: Option<u64>,
}

impl WhatIf {
    /// Extracts the calls to allocators from a recording.
    ///
    /// # Errors
    /// Returns an error if the recording can no longer be read, or if it has no memory events.
    pub fn new(history: &History) -> Result<Self, WhatIfError> {
        let traces = traces(history, "recording", &ExportOptions::default())?;
        Ok(Self { traces })
    }

    /// Replays the recording under a policy, each device separately and without a limit. Returns the line of
    /// reserved bytes as JSON for the page.
    ///
    /// # Errors
    /// Returns an error if the policy does not exist, or if the recording holds more than
    /// [`MOST_HELD`](crate::MOST_HELD) at once.
    pub fn under(&self, policy: &str) -> Result<Value, WhatIfError> {
        let options = Options {
            policies: vec![policy.to_owned()],
            ..Options::default()
        };
        let built = policies::build(policy, &options.settings).map_err(ReplayError::from)?;
        let mut lines = Vec::new();
        for (trace, times) in self.traces.recording.traces.iter().zip(&self.traces.times) {
            let prepared = match Prepared::new(trace, &options) {
                // The recording contains only address ranges of this device.
                Err(ReplayError::NothingToReplay { .. }) => continue,
                other => other?,
            };
            let mut pen = Pen::new(times);
            let (_, run) = prepared.run_on(policy, options.device.source(), &mut pen)?;
            let stop = run.stop.and_then(|stop| prepared.program().ops.get(stop.op));
            pen.line.stopped = stop.map(|op| pen.time(op));
            // The changes omit memory that is taken and released within one call.
            pen.line.peak = run.stats.reserved.peak;
            lines.push(pen.line);
        }
        let line = together(lines);
        let (changes, coarse) = thinned(&line.changes, MOST_CHANGES);
        let mut told = json!({
            "policy": policy,
            "fidelity": built.fidelity().as_str(),
            "peak": line.peak,
            "stopped": line.stopped,
            "coarse": coarse,
            "times": changes.iter().map(|(time, _)| time).collect::<Vec<_>>(),
            "bytes": changes.iter().map(|(_, bytes)| bytes).collect::<Vec<_>>(),
        });
        tame(&mut told);
        Ok(told)
    }
}

/// Returns the sum of the lines of all devices, up to the point where the first of them ends. A program stops
/// when one device is full.
fn together(mut lines: Vec<ReservedLine>) -> ReservedLine {
    if lines.len() == 1 {
        return lines.pop().unwrap_or_default();
    }
    let stopped = lines.iter().filter_map(|line| line.stopped).min();
    let mut all: Vec<(u64, usize, u64)> = Vec::new();
    for (device, line) in lines.iter().enumerate() {
        let before = line
            .changes
            .iter()
            .take_while(|(time, _)| stopped.is_none_or(|end| *time <= end));
        all.extend(before.map(|(time, bytes)| (*time, device, *bytes)));
    }
    // The sort is stable, so the changes of each device keep their order.
    all.sort_by_key(|(time, ..)| *time);
    let mut now = vec![0; lines.len()];
    let (mut sum, mut peak) = (0u64, 0);
    let mut changes: Vec<(u64, u64)> = Vec::new();
    for (time, device, bytes) in all {
        sum = sum.saturating_sub(now[device]).saturating_add(bytes);
        now[device] = bytes;
        peak = peak.max(sum);
        changes.push((time, sum));
    }
    ReservedLine {
        changes,
        peak,
        stopped,
    }
}

/// Returns a line of at most `most` changes, and whether it is coarser than the original. Each range is
/// represented by its start and its largest value.
fn thinned(changes: &[(u64, u64)], most: usize) -> (Vec<(u64, u64)>, bool) {
    let stretch = changes.len().div_ceil(most).max(1);
    let highest = |some: &[(u64, u64)]| {
        let bytes = some.iter().map(|(_, bytes)| *bytes).max();
        (some[0].0, bytes.unwrap_or(0))
    };
    (changes.chunks(stretch).map(highest).collect(), stretch > 1)
}

/// Records the reserved bytes of one device's policy.
struct Pen<'a> {
    times: &'a [u64],
    line: ReservedLine,
}

impl<'a> Pen<'a> {
    fn new(times: &'a [u64]) -> Self {
        Self {
            times,
            line: ReservedLine::default(),
        }
    }

    /// Returns the time of a call. Calls before the recording are at time 0.
    fn time(&self, op: &Op) -> u64 {
        self.times.get(op.event as usize).copied().unwrap_or(0)
    }
}

impl Observer for Pen<'_> {
    fn stepped(&mut self, op: &Op, engine: &mut Engine<Simulated>) {
        let reserved = engine.stats().reserved.current;
        let (latest, last) = self.line.changes.last().copied().unwrap_or_default();
        if last != reserved {
            // Times of a recording may go back, but its order is correct.
            self.line.changes.push((self.time(op).max(latest), reserved));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_devices_are_summed_until_the_first_one_ends() {
        let line = |changes: &[(u64, u64)], stopped| ReservedLine {
            changes: changes.to_vec(),
            peak: changes.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0),
            stopped,
        };
        let first = line(&[(1, 10), (4, 30), (9, 5)], None);
        let second = line(&[(2, 100), (4, 50), (6, 70)], Some(6));
        let sum = together(vec![first.clone(), second]);
        assert_eq!(sum.changes, [(1, 10), (2, 110), (4, 130), (4, 80), (6, 100)]);
        assert_eq!((sum.peak, sum.stopped), (130, Some(6)));
        assert_eq!(together(vec![first.clone()]), first);
        assert_eq!(together(Vec::new()), ReservedLine::default());
    }

    #[test]
    fn a_line_of_many_changes_keeps_the_maximum_of_each_range() {
        let changes: Vec<(u64, u64)> = (0..10).map(|time| (time, [7, 1, 9][time as usize % 3])).collect();
        assert_eq!(thinned(&changes, 10), (changes.clone(), false));
        let (few, coarse) = thinned(&changes, 4);
        assert!(coarse);
        assert_eq!(few, [(0, 9), (3, 9), (6, 9), (9, 7)]);
        assert_eq!(thinned(&[], 4), (Vec::new(), false));
    }
}
