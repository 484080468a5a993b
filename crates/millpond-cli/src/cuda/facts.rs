//! The result of a replay on a device, in the shape of its JSON: the report of any replay, and the calls to the driver.

use millpond::cuda::DriverCalls;
use millpond_bench::device::Checked;
use millpond_replay::Report;
use serde::Serialize;

/// The result of one recording.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    /// The results are those of the device.
    #[serde(flatten)]
    pub(super) report: Report,
    pub(super) source: SourceFacts,
    /// The name of the recording, with its device if a file contains several.
    #[serde(skip)]
    pub(super) label: String,
}

impl Facts {
    /// Returns a sentence for each run in which a block did not contain the written data.
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

/// The device, and the runs on it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SourceFacts {
    /// The device in the format of `--source`.
    pub(super) device: String,
    pub(super) name: String,
    /// Whether the driver is the emulated one, whose times are not those of a card.
    pub(super) emulated: bool,
    /// The way in which memory is allocated: in pages, from the driver's pool, or with plain calls.
    pub(super) memory: &'static str,
    pub(super) total_bytes: u64,
    /// Memory that no process used before the first run.
    pub(super) free_bytes: u64,
    /// Memory that was in use before the first run, by the driver, this process's context and other processes.
    pub(super) unexplained_bytes: u64,
    /// The memory limit of the program. `None` if it could use all of the device.
    pub(super) limit_bytes: Option<u64>,
    /// Whether the limit is the memory that was free, because a policy needed more.
    pub(super) limit_is_what_was_free: bool,
    pub(super) runs: Vec<RunFacts>,
    /// Runs that ended with an error of the driver, one sentence each. They have no result.
    pub(super) failed: Vec<String>,
}

/// The run of one policy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RunFacts {
    pub(super) policy: String,
    /// The most bytes held from the device at once, counted in the calls to the driver.
    pub(super) peak_reserved_bytes: u64,
    /// The most bytes that the simulation of the same device reserves.
    pub(super) simulated_peak_reserved_bytes: u64,
    /// The peak on the device minus the peak in the simulation.
    pub(super) difference_bytes: i64,
    /// Whether the simulation had the same calls by kind (except reservations of addresses), stalls and moved bytes.
    pub(super) same_calls: bool,
    /// The decrease of the driver's free memory since the start of the run, minus the reserved bytes, at the simulation's peak.
    /// `None` if the run did not get there.
    pub(super) unexplained_at_peak_bytes: Option<i64>,
    /// The same figure at the end of the run.
    pub(super) unexplained_at_end_bytes: i64,
    /// Bytes of pages that were mapped at another address.
    pub(super) moved_bytes: u64,
    /// The number of streams that were created because they were ordered against each other.
    pub(super) streams: usize,
    /// The time in all calls to the driver.
    pub(super) driver_ms: f64,
    /// The modelled time of the calls in the table of costs.
    pub(super) modelled_driver_ms: f64,
    /// The comparison of the blocks' contents, with `--check`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) check: Option<CheckFacts>,
    /// Calls by function, those with the longest total time first.
    pub(super) driver_calls: Vec<CallFacts>,
}

impl RunFacts {
    /// Returns whether the peak on the device equals the peak in the simulation, to the byte.
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
    /// The number of these calls that did not succeed, including "not ready" for an event.
    pub(super) failed: u64,
    pub(super) ms: f64,
}

/// Returns the calls between two snapshots of a process's calls.
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
