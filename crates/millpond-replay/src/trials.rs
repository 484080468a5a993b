//! Searches the settings of an allocator for those that serve one program best.
//!
//! The search has two rounds. The first tries every setting alone at every value worth trying. The second
//! tries combinations of the values that were best alone. This finds what a full product would find in a
//! hundredth of the runs, because settings of allocators rarely help only together. It can miss a pair of
//! values that are useless alone.
//!
//! Both rounds compare peaks, which take one replay each. The peak of an allocator that caches freed memory is
//! higher than the memory that the program needs, because the allocator releases its cache before it fails.
//! Therefore the smallest device is found for the best settings and for the defaults, and decides between them.

mod rank;

use crate::error::ReplayError;
use crate::family::{self, Dimension, Family, Point};
use crate::fit::{Smallest, smallest_device};
use crate::options::Options;
use crate::outcome::Fit;
use crate::parallel;
use crate::prepared::Prepared;
use crate::program::Program;
use crate::run::{Device, run};
use crate::ticks::Ticks;
use millpond_engine::{Costs, Settings, policies};
use serde::Serialize;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

pub use rank::Gain;

/// The most settings of an allocator for which the smallest device is found. The policies that the settings select
/// share them equally.
const FINALISTS: usize = 6;

/// The result for one allocator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TunedFamily {
    /// The allocator.
    pub family: Family,
    /// The environment variable that takes its settings.
    pub variable: &'static str,
    /// Every setting tried. The recommended one is first. Those with a smallest device follow, and then the
    /// others, each sorted by their figures with the best first.
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
    /// The smallest device on which the program finishes. It is found only for the defaults and for the best of
    /// the other settings.
    pub smallest_device_bytes: Option<u64>,
    /// The replay on this device.
    pub fit: Option<Fit>,
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
    /// Whether the program seldom stalls on the smallest device, or on one that is one per cent smaller than what it
    /// needs under the defaults.
    #[serde(skip)]
    seldom_stalls: bool,
}

/// Tries every setting of an allocator alone. Returns the trials, the best first.
pub(crate) fn each_alone(
    prepared: &Prepared<'_>,
    family: Family,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Trial>, ReplayError> {
    let mut search = Search::new(prepared, progress);
    let spaces = family::spaces(family, prepared.program(), prepared.limited());
    let alone = spaces
        .iter()
        .flat_map(|dimensions| family::one_at_a_time(dimensions))
        .collect();
    let mut trials = search.round(family, alone, &mut HashSet::new())?;
    rank::sort(&mut trials);
    Ok(trials)
}

/// A search of the settings of allocators for one program.
pub(crate) struct Search<'a> {
    program: &'a Program,
    options: &'a Options,
    /// The device on which the settings are compared.
    device: Device,
    progress: &'a (dyn Fn(usize, usize) + Sync),
    tried: usize,
    planned: usize,
}

impl<'a> Search<'a> {
    pub(crate) fn new(prepared: &'a Prepared<'a>, progress: &'a (dyn Fn(usize, usize) + Sync)) -> Self {
        Self {
            program: prepared.program(),
            options: prepared.options(),
            device: prepared.limited(),
            progress,
            tried: 0,
            planned: 0,
        }
    }
}

impl Search<'_> {
    /// Searches the settings of one allocator. Returns `None` if it has no defaults.
    pub(crate) fn family(&mut self, family: Family) -> Result<Option<TunedFamily>, ReplayError> {
        let spaces = family::spaces(family, self.program, self.device);
        let mut trials: Vec<Trial> = Vec::new();
        let mut seen: HashSet<String> = HashSet::new();
        let alone: Vec<Point> = spaces
            .iter()
            .flat_map(|dimensions| family::one_at_a_time(dimensions))
            .collect();
        let first = self.round(family, alone, &mut seen)?;
        let combined: Vec<Point> = spaces
            .iter()
            .flat_map(|dimensions| family::combinations(&kept(dimensions, &first)))
            .collect();
        trials.extend(first);
        trials.extend(self.round(family, combined, &mut seen)?);
        rank::sort(&mut trials);
        self.measure(family, &mut trials);
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

    /// Finds the smallest device for the defaults, and for the best trials under each policy of the family. `trials`
    /// are sorted.
    fn measure(&mut self, family: Family, trials: &mut [Trial]) {
        let policies: BTreeSet<&str> = trials.iter().map(|trial| trial.policy).collect();
        let most = FINALISTS / policies.len().max(1);
        let mut chosen: Vec<usize> = Vec::new();
        for policy in policies {
            let before = chosen.len();
            for (at, trial) in trials
                .iter()
                .enumerate()
                .filter(|(_, trial)| trial.policy == policy)
            {
                let is_new = !chosen[before..]
                    .iter()
                    .any(|other| rank::same_outcome(&trials[*other], trial));
                if trial.conf.is_empty() || (is_new && chosen.len() - before < most) {
                    chosen.push(at);
                }
            }
        }
        self.planned += chosen.len();
        let done = AtomicUsize::new(self.tried);
        let measured = parallel::map(&self.options.threads, chosen.len(), |index| {
            let (policy, settings) = family.settings(&trials[chosen[index]].conf)?;
            let smallest = smallest(self.program, policy, &settings, self.options);
            (self.progress)(done.fetch_add(1, Ordering::Relaxed) + 1, self.planned);
            Some((chosen[index], smallest?))
        });
        self.tried = self.planned;
        for (at, smallest) in measured {
            let fit = Fit::new(&smallest.run, &self.options.costs);
            trials[at].smallest_device_bytes = Some(smallest.bytes);
            trials[at].seldom_stalls = fit.seldom_stalls();
            trials[at].fit = Some(fit);
        }
        let default = trials.iter().find(|trial| trial.conf.is_empty());
        let Some(needed) = default.and_then(|trial| trial.smallest_device_bytes) else {
            return;
        };
        let slightly_smaller = Device {
            bytes: Some(needed - needed / 100),
            ..self.device
        };
        for trial in trials {
            if trial.fit.is_some() && !trial.seldom_stalls {
                let settings = family.settings(&trial.conf);
                trial.seldom_stalls = settings.is_some_and(|(policy, settings)| {
                    runs_well(self.program, policy, &settings, slightly_smaller)
                });
            }
        }
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
        let trials = parallel::map(&self.options.threads, fresh.len(), |index| {
            let (policy, conf, length, settings) = &fresh[index];
            let trial = self.trial(policy, conf, *length, settings);
            (self.progress)(done.fetch_add(1, Ordering::Relaxed) + 1, self.planned);
            trial.ok()
        });
        self.tried = self.planned;
        self.options.threads.check()?;
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
        let outcome = run(self.program, policy_built, self.device.source(), &mut ());
        Ok(Trial {
            policy,
            conf: conf.to_owned(),
            fits: outcome.stop.is_none(),
            served: outcome.stop.as_ref().map_or(outcome.calls, |stop| stop.op as u64),
            smallest_device_bytes: None,
            fit: None,
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
            seldom_stalls: false,
        })
    }
}

/// Returns whether a policy finishes and seldom stalls on a device.
pub(crate) fn runs_well(program: &Program, policy: &str, settings: &Settings, device: Device) -> bool {
    let Ok(policy) = policies::build(policy, settings) else {
        return false;
    };
    let run = run(program, policy, device.source(), &mut ());
    run.stop.is_none() && Fit::new(&run, &Costs::default()).seldom_stalls()
}

/// Returns the smallest device on which a policy finishes.
pub(crate) fn smallest(
    program: &Program,
    policy: &str,
    settings: &Settings,
    options: &Options,
) -> Option<Smallest> {
    let build =
        || policies::build(policy, settings).unwrap_or_else(|_| unreachable!("the policy was built before"));
    let paged = options.device.paged;
    let source = Device {
        paged,
        ..Device::UNLIMITED
    }
    .source();
    let unlimited = run(program, policies::build(policy, settings).ok()?, source, &mut ());
    let threads = &options.threads;
    smallest_device(program, &unlimited, paged, Ticks::NEVER, threads, &build, &|_| {})
}

/// The most combinations of one space.
const COMBINATIONS: usize = 64;

/// Returns the dimensions with only those values that did best alone, few enough to try every combination.
fn kept(dimensions: &[Dimension], first: &[Trial]) -> Vec<Dimension> {
    let least = rank::least_memory(first);
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
    if family::combinations(&two).len() <= COMBINATIONS {
        two
    } else {
        keep(1)
    }
}

#[cfg(test)]
mod tests;
