//! Searches for settings of the program's allocator, and for changes of the program, with which it needs less memory.

mod proposals;

use crate::edit::AppliedEdit;
use crate::error::ReplayError;
use crate::family::Family;
use crate::options::Options;
use crate::parallel::Threads;
use crate::prepared::Prepared;
use crate::program::Selection;
use crate::replay::answer;
use crate::report::Verdict;
use crate::run::Device;
use crate::trials::{Search, TunedFamily};
use crate::verdict::{Candidate, Candidates, candidates, others};
use millpond_engine::Costs;
use millpond_trace::Trace;
use serde::Serialize;

pub use proposals::Proposal;

/// Version of the JSON.
const SCHEMA: u32 = 2;

/// The settings to search, and the device.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// The allocators whose settings are searched. If there are none, the settings of the program's own allocator
    /// are searched.
    pub families: Vec<Family>,
    /// The device.
    pub device: Device,
    /// The events and the streams to replay.
    pub selection: Selection,
    /// The costs of driver calls.
    pub costs: Costs,
    /// The threads to use.
    pub threads: Threads,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self {
            families: Vec::new(),
            device: Device::UNLIMITED,
            selection: Selection::default(),
            costs: Costs::default(),
            threads: Threads::default(),
        }
    }
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuned {
    /// Version of the JSON.
    pub schema: u32,
    /// Base name of the recording.
    pub trace: String,
    /// The device ordinal in the recorded process, or -1 for the host.
    pub device: i32,
    /// Bytes for the program. Without a device among the options, those that the recorded program could have when it ran out of
    /// memory. `None` sets no limit.
    pub device_bytes: Option<u64>,
    /// The most bytes that were requested and held at once.
    pub peak_requested_bytes: u64,
    /// The answer in a few sentences. The settings that it recommends are the best ones that were found.
    pub verdict: Verdict,
    /// One entry for each allocator searched. Empty if the program holds more than the device has, because
    /// then no setting of any allocator can help, or if the program's own allocator has no settings to search.
    pub families: Vec<TunedFamily>,
    /// The edits that the recording went through before the search.
    pub edits: Vec<AppliedEdit>,
    /// Changes with which the program needs at least 2 % less memory. The change with which it needs least is first,
    /// and those that need more devices are last. If some fit the device, the others are left out.
    pub proposals: Vec<Proposal>,
}

/// Searches the settings of each allocator, several at a time.
///
/// `progress` is called with the finished and the total number of trials after each trial. The total grows
/// between rounds.
///
/// # Errors
/// Returns an error if the recording contains nothing to replay, or if the search was interrupted.
pub fn tune(
    trace: &Trace,
    options: &TuneOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Tuned, ReplayError> {
    let replayed = Options {
        device: options.device,
        selection: options.selection,
        costs: options.costs.clone(),
        threads: options.threads.clone(),
        ..Options::default()
    };
    let prepared = Prepared::new(trace, &replayed)?;
    let own = Family::of(&prepared.own().setup.policy);
    let peak = prepared.program().peak_requested;
    let can_fit = prepared.limited().bytes.is_none_or(|bytes| bytes >= peak);
    let searched = match options.families.as_slice() {
        [] => own.into_iter().collect(),
        named => named.to_vec(),
    };
    let mut search = Search::new(&prepared, progress);
    let mut families = Vec::new();
    for family in searched.into_iter().filter(|_| can_fit) {
        families.extend(search.family(family)?);
    }
    let of_own = families.iter().find(|family| Some(family.family) == own);
    let compared = match of_own {
        Some(found) => found.candidates(&prepared),
        None if own.is_none() => others(&prepared),
        None => candidates(&prepared, &|_, _| {})?,
    };
    let (verdict, _) = answer(&prepared, &[], &compared)?;
    let proposals = proposals::proposals(&prepared, of_own, &verdict);
    options.threads.check()?;
    Ok(Tuned {
        schema: SCHEMA,
        trace: trace.origin.name.clone(),
        device: trace.origin.device,
        device_bytes: prepared.limited().bytes,
        peak_requested_bytes: peak,
        edits: Vec::new(),
        proposals,
        verdict,
        families,
    })
}

impl TunedFamily {
    /// Returns the best settings. Only these are compared with the settings of the program.
    fn candidates(&self, prepared: &Prepared<'_>) -> Candidates {
        let best = self.trials.get(self.best);
        let best = best.filter(|best| best.conf != prepared.own().setup.conf);
        Candidates {
            list: best
                .and_then(|best| Candidate::new(self.family, &best.conf))
                .into_iter()
                .collect(),
            is_complete: true,
        }
    }
}

#[cfg(test)]
mod tests;
