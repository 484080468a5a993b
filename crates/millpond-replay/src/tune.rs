//! Searches the settings of an allocator for those that serve one program best.
//!
//! Two rounds: every setting alone at every value worth trying, then combinations of the values that
//! were best alone. That finds what a full product would in a hundredth of the runs, because settings
//! of allocators rarely help only together; what it can miss is a pair that is useless apart.

mod rank;
mod space;

use crate::error::ReplayError;
use crate::program::{Program, Selection};
use crate::run::{Device, run};
use millpond_engine::{Costs, Settings, policies};
use millpond_trace::Trace;
use serde::Serialize;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

pub use rank::Gain;
pub use space::Family;
use space::{Dimension, Point};

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// What to search, and on which device.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Whose settings.
    pub families: Vec<Family>,
    /// The device.
    pub device: Device,
    /// Which events, and which streams.
    pub selection: Selection,
    /// What driver calls cost.
    pub costs: Costs,
    /// Threads to use; 0 means as many as the machine has.
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

/// What a search found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuned {
    /// Version of the JSON.
    pub schema: u32,
    /// Base name of the recording.
    pub trace: String,
    /// Device ordinal in the recorded process; -1 for the host.
    pub device: i32,
    /// Bytes for the program; none for no limit.
    pub device_bytes: Option<u64>,
    /// The most bytes requested and held at once.
    pub peak_requested_bytes: u64,
    /// One for each allocator searched. Empty where the program holds more than the device has: then no
    /// setting of any allocator can help.
    pub families: Vec<TunedFamily>,
}

/// What was found for one allocator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TunedFamily {
    /// The allocator.
    pub family: Family,
    /// The environment variable that takes its settings.
    pub variable: &'static str,
    /// Every setting tried: first the one to use, then the others, best first by their figures alone.
    pub trials: Vec<Trial>,
    /// Index into `trials` of the defaults.
    pub default: usize,
    /// Index into `trials` of what to use: the defaults, unless another is better by what matters. It is the first.
    pub best: usize,
    /// What the best has over the defaults; empty where the defaults are as good.
    pub gains: Vec<Gain>,
}

impl TunedFamily {
    /// The line for a shell that puts the best setting into the environment; none where nothing fits, or the
    /// defaults are to be used.
    #[must_use]
    pub fn line(&self) -> Option<String> {
        let best = self.trials.get(self.best).filter(|trial| trial.fits)?;
        Some(match best.conf.as_str() {
            "" => return None,
            // Brackets and `>` mean something to shells.
            conf if conf.contains(['[', '>']) => format!("export {}='{conf}'", self.variable),
            conf => format!("export {}={conf}", self.variable),
        })
    }
}

/// One setting, tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The policy it makes.
    pub policy: &'static str,
    /// The setting as it is written in the environment; empty for the defaults.
    pub conf: String,
    /// Whether the program finished.
    pub fits: bool,
    /// Calls served before memory ran out, or all.
    pub served: u64,
    /// The most bytes held from the device.
    pub peak_reserved_bytes: u64,
    /// Peak reserved over peak requested, as far as the program came.
    pub overhead: f64,
    /// Allocations served without calling the device over allocations.
    pub hit_rate: f64,
    /// Allocations and frees in which the host waited for the device.
    pub stalls: u64,
    /// Bytes of pages moved, or given back and taken again.
    pub moved_bytes: u64,
    /// Modelled host time of all driver calls and stalls.
    pub modelled_driver_ms: f64,
    #[serde(skip)]
    settings: u32,
}

/// Searches the settings of each allocator, several at a time.
///
/// `progress` is called with (done, all) whenever a setting has been tried; `all` grows between rounds.
///
/// # Errors
/// When the recording holds nothing to replay.
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
    };
    if options
        .device
        .bytes
        .is_some_and(|bytes| bytes < program.peak_requested)
    {
        return Ok(tuned);
    }
    let mut search = Search {
        program: &program,
        options,
        progress,
        tried: 0,
        planned: 0,
    };
    for family in &options.families {
        tuned.families.extend(search.family(*family)?);
    }
    Ok(tuned)
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

    /// Tries points that were not tried yet; the answer is in their order, whoever finished first.
    fn round(
        &mut self,
        family: Family,
        points: Vec<Point>,
        seen: &mut HashSet<String>,
    ) -> Result<Vec<Trial>, ReplayError> {
        let mut fresh = Vec::new();
        for point in points {
            let conf = point.conf();
            // A space names only settings its allocator understands; a test holds it to that.
            let Some((policy, settings)) = family.settings(&conf) else {
                continue;
            };
            if seen.insert(conf.clone()) {
                fresh.push((policy, conf, point.len(), settings));
            }
        }
        self.planned += fresh.len();
        let slots: Vec<Mutex<Option<Trial>>> = fresh.iter().map(|_| Mutex::new(None)).collect();
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(self.tried));
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((policy, conf, length, settings)) = fresh.get(index) else {
                    return;
                };
                let trial = self.trial(policy, conf, *length, settings);
                *slots[index].lock().unwrap_or_else(PoisonError::into_inner) = trial.ok();
                (self.progress)(done.fetch_add(1, Ordering::Relaxed) + 1, self.planned);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads().min(fresh.len()) {
                scope.spawn(work);
            }
            work();
        });
        self.tried = self.planned;
        let trials = slots
            .into_iter()
            .filter_map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(trials.collect())
    }

    fn threads(&self) -> usize {
        match self.options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            some => some,
        }
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
        let requested = if outcome.stop.is_none() {
            self.program.peak_requested
        } else {
            outcome.stats.requested.peak
        };
        Ok(Trial {
            policy,
            conf: conf.to_owned(),
            fits: outcome.stop.is_none(),
            served: outcome.stop.as_ref().map_or(outcome.calls, |stop| stop.op as u64),
            peak_reserved_bytes: outcome.stats.reserved.peak,
            overhead: outcome.stats.reserved.peak as f64 / requested.max(1) as f64,
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

/// Most combinations of one space.
const COMBINATIONS: usize = 64;

/// The dimensions with only those values that did best alone, few enough for every combination.
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
                // A value that changes nothing would only multiply the runs.
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
