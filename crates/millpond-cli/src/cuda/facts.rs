//! What a replay on a device came to, as scripts read it: the report of any replay, and what the driver did.

use millpond::cuda::DriverCalls;
use millpond_bench::device::Checked;
use millpond_replay::Report;
use serde::Serialize;

/// One recording.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    /// The results are those of the device.
    #[serde(flatten)]
    pub(super) report: Report,
    pub(super) source: SourceFacts,
    /// Name of the recording, with its device where a file holds several.
    #[serde(skip)]
    pub(super) label: String,
}

impl Facts {
    /// Returns a sentence for each run in which the contents of a block were not what was written.
    pub(super) fn wrong(&self) -> Vec<String> {
        let of = |run: &RunFacts| {
            let checked = run.check.as_ref().filter(|checked| checked.wrong > 0)?;
            Some(format!(
                "{}: {}: the contents of {} of {} blocks are not what was written: {}",
                self.label,
                run.policy,
                checked.wrong,
                checked.blocks,
                checked.first_wrong.join("; ")
            ))
        };
        self.source.runs.iter().filter_map(of).collect()
    }
}

/// The device, and what was done with it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SourceFacts {
    /// As `--source` has it.
    pub(super) device: String,
    pub(super) name: String,
    /// Whether the driver is the emulated one, whose times are no card's.
    pub(super) emulated: bool,
    /// How memory is asked for: in pages, from the driver's pool, or plainly.
    pub(super) memory: &'static str,
    pub(super) total_bytes: u64,
    /// Not in use by any process before the first run.
    pub(super) free_bytes: u64,
    /// In use before the first run, by the driver, this process's context and other processes.
    pub(super) unexplained_bytes: u64,
    /// What the program could have; none for all that the device gives.
    pub(super) limit_bytes: Option<u64>,
    /// Whether the limit is what was free, because a policy would have needed more.
    pub(super) limit_is_what_was_free: bool,
    pub(super) runs: Vec<RunFacts>,
    /// Runs that ended with an error of the driver, a sentence each; they have no result.
    pub(super) failed: Vec<String>,
}

/// One policy's run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RunFacts {
    pub(super) policy: String,
    /// The most bytes that the device gave at once, counted where the driver is called.
    pub(super) peak_reserved_bytes: u64,
    /// The most that the simulation of the same device reserves.
    pub(super) simulated_peak_reserved_bytes: u64,
    /// The first less the second.
    pub(super) difference_bytes: i64,
    /// Whether the device was asked for the same as the simulation too: calls by kind, but for
    /// ranges of addresses, stalls and moved bytes.
    pub(super) same_calls: bool,
    /// Where the simulation has its peak: by how much less the driver says was free than before the run, less what was
    /// reserved. None where the run did not come so far.
    pub(super) unexplained_at_peak_bytes: Option<i64>,
    /// The same at the end of the run.
    pub(super) unexplained_at_end_bytes: i64,
    /// Bytes of pages that were mapped at another place.
    pub(super) moved_bytes: u64,
    /// Streams that were made, because they were ordered against each other.
    pub(super) streams: usize,
    /// Time in calls of the driver, all of them.
    pub(super) driver_ms: f64,
    /// What the table of costs has for the calls that it knows.
    pub(super) modelled_driver_ms: f64,
    /// The comparison of the blocks' contents, with `--check`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) check: Option<CheckFacts>,
    /// By function, those that took longest first.
    pub(super) driver_calls: Vec<CallFacts>,
}

impl RunFacts {
    /// Whether the device gave what the simulation says, to the byte.
    pub(super) fn is_equal(&self) -> bool {
        self.difference_bytes == 0
    }
}

/// The comparison of the contents of blocks.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CheckFacts {
    pub(super) blocks: u64,
    pub(super) words: u64,
    pub(super) wrong: u64,
    pub(super) too_small: u64,
    pub(super) first_wrong: Vec<String>,
}

impl From<Checked> for CheckFacts {
    fn from(checked: Checked) -> Self {
        Self {
            blocks: checked.blocks,
            words: checked.words,
            wrong: checked.wrong,
            too_small: checked.too_small,
            first_wrong: checked.first_wrong,
        }
    }
}

/// Calls of one function of the driver.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CallFacts {
    pub(super) function: &'static str,
    pub(super) calls: u64,
    /// Of these, those that did not answer success; "not ready" of an event is among them.
    pub(super) failed: u64,
    pub(super) ms: f64,
}

/// What was called between two looks at a process's calls.
pub(super) fn calls_between(before: &[DriverCalls], after: &[DriverCalls]) -> Vec<CallFacts> {
    let mut calls: Vec<CallFacts> = after
        .iter()
        .map(|now| {
            let then = before.iter().find(|then| then.function == now.function);
            let since = |of: &dyn Fn(&DriverCalls) -> u64| of(now) - then.map_or(0, of);
            let time = now.time - then.map_or_else(Default::default, |then| then.time);
            CallFacts {
                function: now.function.split("_v").next().unwrap_or(now.function),
                calls: since(&|of| of.calls),
                failed: since(&|of| of.failed),
                ms: time.as_secs_f64() * 1e3,
            }
        })
        .filter(|of| of.calls > 0)
        .collect();
    calls.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    calls
}
