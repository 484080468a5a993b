//! Searches the settings of an allocator for those that serve one program best.
//!
//! The search has two rounds. The first tries every setting alone at every value worth trying. The second
//! tries combinations of the values that were best alone. This finds what a full product would find in a
//! hundredth of the runs, because settings of allocators rarely help only together. It can miss a pair of
//! values that are useless alone.

mod proposals;
mod rank;
mod space;

use crate::edit::AppliedEdit;
use crate::error::ReplayError;
use crate::parallel;
use crate::program::{Program, Selection};
use crate::run::{Device, run};
use millpond_engine::{Costs, Settings, policies};
use millpond_trace::Trace;
use serde::Serialize;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use proposals::Proposal;
pub use rank::Gain;
pub use space::Family;
use space::{Dimension, Point};

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// The settings to search, and the device.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// The allocators whose settings are searched.
    pub families: Vec<Family>,
    /// The device.
    pub device: Device,
    /// The events and the streams to replay.
    pub selection: Selection,
    /// The costs of driver calls.
    pub costs: Costs,
    /// The number of threads to use. 0 means as many as the machine has.
    pub threads: usize,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self {
            families: Family::all().collect(),
            device: Device::UNLIMITED,
            selection: Selection::default(),
            costs: Costs::default(),
            threads: 0,
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
    /// Bytes for the program. `None` sets no limit.
    pub device_bytes: Option<u64>,
    /// The most bytes that were requested and held at once.
    pub peak_requested_bytes: u64,
    /// One entry for each allocator searched. Empty if the program holds more than the device has, because
    /// then no setting of any allocator can help.
    pub families: Vec<TunedFamily>,
    /// The edits that the recording went through before the search.
    pub edits: Vec<AppliedEdit>,
    /// Changes of the program that lower its peak by at least 2 %, the one with the lowest peak first.
    pub proposals: Vec<Proposal>,
}

/// The result for one allocator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TunedFamily {
    /// The allocator.
    pub family: Family,
    /// The environment variable that takes its settings.
    pub variable: &'static str,
    /// Every setting tried. The recommended one is first. The others follow, best first by their figures
    /// alone.
    pub trials: Vec<Trial>,
    /// Index into `trials` of the default settings.
    pub default: usize,
    /// Index into `trials` of the recommended setting, which is always 0. This is the default unless another
    /// setting is clearly better.
    pub best: usize,
    /// The advantages of the best setting over the defaults. Empty if the defaults are as good.
    pub gains: Vec<Gain>,
}

impl TunedFamily {
    /// Returns the shell line that puts the best setting into the environment. Returns `None` if nothing fits
    /// or the defaults are recommended.
    #[must_use]
    pub fn line(&self) -> Option<String> {
        let best = self.trials.get(self.best).filter(|trial| trial.fits)?;
        self.family.line(&best.conf)
    }
}

/// The result of one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The policy that the setting selects.
    pub policy: &'static str,
    /// The setting as it is written in the environment. Empty for the defaults.
    pub conf: String,
    /// Whether the program finished.
    pub fits: bool,
    /// The number of calls served before memory ran out, or of all calls.
    pub served: u64,
    /// The most bytes held from the device.
    pub peak_reserved_bytes: u64,
    /// Peak reserved bytes over peak requested bytes, up to the point that the program reached.
    pub overhead: f64,
    /// The share of allocations that were served without calling the device.
    pub hit_rate: f64,
    /// The number of allocations and frees in which the host waited for the device.
    pub stalls: u64,
    /// Bytes of pages that were moved, or released and allocated again.
    pub moved_bytes: u64,
    /// Modelled host time of all driver calls and stalls.
    pub modelled_driver_ms: f64,
    #[serde(skip)]
    settings: u32,
}

/// Searches the settings of each allocator, several at a time.
///
/// `progress` is called with the finished and the total number of trials after each trial. The total grows
/// between rounds.
///
/// # Errors
/// Returns an error if the recording contains nothing to replay.
pub fn tune(
    trace: &Trace,
    options: &TuneOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Tuned, ReplayError> {
    let program = Program::new(trace, options.selection)?;
    let mut tuned = Tuned {
        schema: SCHEMA,
        trace: trace.origin.name.clone(),
        device: trace.origin.device,
        device_bytes: options.device.bytes,
        peak_requested_bytes: program.peak_requested,
        families: Vec::new(),
        edits: Vec::new(),
        proposals: Vec::new(),
    };
    let can_fit = options
        .device
        .bytes
        .is_none_or(|bytes| bytes >= program.peak_requested);
    let mut search = Search {
        program: &program,
        options,
        progress,
        tried: 0,
        planned: 0,
    };
    for family in options.families.iter().filter(|_| can_fit) {
        tuned.families.extend(search.family(*family)?);
    }
    tuned.proposals = proposals::proposals(trace, &search, &tuned);
    Ok(tuned)
}

/// Tries every setting of an allocator alone. Returns the trials, the best first.
pub(crate) fn each_alone(
    program: &Program,
    family: Family,
    options: &TuneOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Trial>, ReplayError> {
    let mut search = Search {
        program,
        options,
        progress,
        tried: 0,
        planned: 0,
    };
    let spaces = space::spaces(family, program, options.device);
    let alone = spaces
        .iter()
        .flat_map(|dimensions| space::one_at_a_time(dimensions))
        .collect();
    let mut trials = search.round(family, alone, &mut HashSet::new())?;
    rank::sort(&mut trials);
    Ok(trials)
}

struct Search<'a> {
    program: &'a Program,
    options: &'a TuneOptions,
    progress: &'a (dyn Fn(usize, usize) + Sync),
    tried: usize,
    planned: usize,
}

impl Search<'_> {
    fn family(&mut self, family: Family) -> Result<Option<TunedFamily>, ReplayError> {
        let spaces = space::spaces(family, self.program, self.options.device);
        let mut trials: Vec<Trial> = Vec::new();
        let mut seen: HashSet<String> = HashSet::new();
        let alone: Vec<Point> = spaces
            .iter()
            .flat_map(|dimensions| space::one_at_a_time(dimensions))
            .collect();
        let first = self.round(family, alone, &mut seen)?;
        let combined: Vec<Point> = spaces
            .iter()
            .flat_map(|dimensions| space::combinations(&kept(dimensions, &first)))
            .collect();
        trials.extend(first);
        trials.extend(self.round(family, combined, &mut seen)?);
        rank::sort(&mut trials);
        let Some(default) = trials.iter().position(|trial| trial.conf.is_empty()) else {
            return Ok(None);
        };
        let (best, gains) = rank::choose(&trials, default);
        let default = rank::lead(&mut trials, best, default);
        Ok(Some(TunedFamily {
            family,
            variable: family.variable(),
            trials,
            default,
            best: 0,
            gains,
        }))
    }

    /// Tries the points that were not tried yet. The results have the order of the points, whichever thread
    /// finished first.
    fn round(
        &mut self,
        family: Family,
        points: Vec<Point>,
        seen: &mut HashSet<String>,
    ) -> Result<Vec<Trial>, ReplayError> {
        let mut fresh = Vec::new();
        for point in points {
            let conf = point.conf();
            // A space contains only settings that its allocator understands. A test checks this.
            let Some((policy, settings)) = family.settings(&conf) else {
                continue;
            };
            if seen.insert(conf.clone()) {
                fresh.push((policy, conf, point.len(), settings));
            }
        }
        self.planned += fresh.len();
        let done = AtomicUsize::new(self.tried);
        let trials = parallel::map(self.options.threads, fresh.len(), |index| {
            let (policy, conf, length, settings) = &fresh[index];
            let trial = self.trial(policy, conf, *length, settings);
            (self.progress)(done.fetch_add(1, Ordering::Relaxed) + 1, self.planned);
            trial.ok()
        });
        self.tried = self.planned;
        Ok(trials)
    }

    fn trial(
        &self,
        policy: &'static str,
        conf: &str,
        length: usize,
        settings: &Settings,
    ) -> Result<Trial, ReplayError> {
        let policy_built = policies::build(policy, settings)?;
        let outcome = run(self.program, policy_built, self.options.device.source(), &mut ());
        Ok(Trial {
            policy,
            conf: conf.to_owned(),
            fits: outcome.stop.is_none(),
            served: outcome.stop.as_ref().map_or(outcome.calls, |stop| stop.op as u64),
            peak_reserved_bytes: outcome.stats.reserved.peak,
            overhead: outcome.overhead(self.program),
            hit_rate: outcome.stats.hit_rate(),
            stalls: outcome.stats.stalls,
            moved_bytes: outcome.meter.moved_bytes,
            modelled_driver_ms: self
                .options
                .costs
                .milliseconds(&outcome.meter, outcome.stats.stalls),
            settings: length as u32,
        })
    }
}

/// The most combinations of one space.
const COMBINATIONS: usize = 64;

/// Returns the dimensions with only those values that did best alone, few enough to try every combination.
fn kept(dimensions: &[Dimension], first: &[Trial]) -> Vec<Dimension> {
    let least = rank::least_peak(first);
    let mut ranked: Vec<&Trial> = first.iter().collect();
    ranked.sort_by(|a, b| rank::order(a, b, least));
    let place = |point: &Point| ranked.iter().position(|trial| trial.conf == point.conf());
    let base = Point::fixed(dimensions);
    let default = ranked.iter().copied().find(|trial| trial.conf == base.conf());
    let keep = |most: usize| -> Vec<Dimension> {
        let kept = dimensions.iter().map(|dimension| {
            dimension.keep(most, |value| {
                let at = place(&base.with(dimension, value))?;
                // A value that changes nothing would only multiply the number of runs.
                let same = |other: &Trial| rank::same_outcome(ranked[at], other);
                (!default.is_some_and(same)).then_some(at)
            })
        });
        kept.collect()
    };
    let two = keep(2);
    if space::combinations(&two).len() <= COMBINATIONS {
        two
    } else {
        keep(1)
    }
}

#[cfg(test)]
mod tests;
