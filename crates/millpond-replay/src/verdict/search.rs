//! Searches the settings that the program itself can use for those with which it needs less memory.

use super::{Replay, WORTH};
use crate::allocator::Setup;
use crate::error::ReplayError;
use crate::family::Family;
use crate::outcome::PolicyResult;
use crate::prepared::Prepared;
use crate::run::Device;
use crate::trials::{each_alone, runs_well};

/// The number of settings for which the smallest device is found. A search by the peak, which takes one replay
/// for each setting, selects them.
const FINALISTS: usize = 3;

/// The most private pools of a program for which more settings are tried than the finalists.
const MOST_POOLS: usize = 1 << 12;

/// Settings that the program can use.
#[derive(Debug)]
pub(crate) struct Candidate {
    setup: Setup,
    apply: String,
}

impl Candidate {
    /// Returns the allocator of a family with settings. Returns `None` if they cannot be parsed.
    pub(crate) fn new(family: Family, conf: &str) -> Option<Self> {
        let line = family.line(conf);
        Some(Self {
            setup: Setup::of(family, conf)?,
            apply: line.unwrap_or_else(|| format!("unset {}", family.variable())),
        })
    }
}

/// The settings to compare with those of the program.
#[derive(Debug)]
pub(crate) struct Candidates {
    /// The settings.
    pub(crate) list: Vec<Candidate>,
    /// Whether [`tune`](crate::tune()) tries no more settings.
    pub(crate) is_complete: bool,
}

/// Settings with their replay.
pub(super) struct Found<T> {
    pub(super) setup: Setup,
    /// The line to paste, or the call to make.
    pub(super) apply: String,
    pub(super) result: PolicyResult,
    /// Whether the program finishes on the [limited](Prepared::limited) device.
    pub(super) finishes: bool,
    pub(super) more: T,
}

/// Returns the settings with which the program needs the least memory. Settings with few keys are tried first, and
/// longer ones replace them only if they save one per cent more. Settings that save memory only with many stalls are
/// left out.
///
/// Returns `None` if nothing saves one per cent, unless the program's own allocator does not finish on the
/// [limited](Prepared::limited) device and another one does. `own_finishes` says whether it does.
pub(super) fn better<T: Send>(
    prepared: &Prepared<'_>,
    own_result: &PolicyResult,
    own_finishes: bool,
    candidates: &[Candidate],
    replay: Replay<'_, T>,
) -> Option<Found<T>> {
    let mut in_order: Vec<&Candidate> = candidates.iter().collect();
    in_order.sort_by_key(|candidate| candidate.setup.conf.split(',').count());
    let mut best: Option<Found<T>> = None;
    for Candidate { setup, apply } in in_order {
        let (so_far, so_far_finishes) = best
            .as_ref()
            .map_or((own_result, own_finishes), |best| (&best.result, best.finishes));
        // One replay shows whether the search for the smallest device is worth its many replays.
        if !can_be_better(prepared, setup, so_far, so_far_finishes) {
            continue;
        }
        let Ok((result, more)) = replay(setup) else {
            continue;
        };
        let is_usable = result
            .fit
            .as_ref()
            .is_some_and(|fit| so_far.fit.is_some() || fit.seldom_stalls());
        let finishes = prepared.finishes(setup, &result);
        if is_usable && (finishes || !so_far_finishes) {
            best = Some(Found {
                setup: setup.clone(),
                apply: apply.clone(),
                result,
                finishes,
                more,
            });
        }
    }
    best.filter(|best| {
        let needs = |result: &PolicyResult| result.smallest_device_bytes.unwrap_or(u64::MAX) as f64;
        let saves = needs(&best.result) < needs(own_result) * (1.0 - WORTH);
        saves || (best.finishes && !own_finishes)
    })
}

/// Returns whether the program finishes and seldom stalls with one per cent less memory than it needs so far, or on the
/// device if it fails there so far.
fn can_be_better(
    prepared: &Prepared<'_>,
    setup: &Setup,
    so_far: &PolicyResult,
    so_far_finishes: bool,
) -> bool {
    let device = prepared.limited();
    let runs_in = |bytes: u64| {
        let device = Device {
            bytes: Some(bytes),
            ..device
        };
        runs_well(prepared.program(), &setup.policy, &setup.settings, device)
    };
    if !so_far_finishes && device.bytes.is_some_and(runs_in) {
        return true;
    }
    so_far
        .smallest_device_bytes
        .is_none_or(|needed| runs_in(needed - needed / 100))
}

/// Returns the most promising settings of the program's own allocator, each tried alone.
pub(crate) fn candidates(
    prepared: &Prepared<'_>,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Candidates, ReplayError> {
    let own = &prepared.own().setup;
    let Some(family) = Family::of(&own.policy) else {
        return Ok(others(prepared));
    };
    let trials = each_alone(prepared, family, progress)?;
    let mut confs: Vec<String> = trials.into_iter().map(|trial| trial.conf).collect();
    confs.retain(|conf| *conf != own.conf);
    confs.truncate(FINALISTS);
    // Some settings have an effect only if the device is full, so a peak without a limit does not rank them. Each private pool takes
    // memory in such a replay.
    let has_many_pools = prepared.trace().pools.len() > MOST_POOLS;
    for conf in family.fixed(prepared.program(), prepared.limited()) {
        if !has_many_pools && conf != own.conf && !confs.contains(&conf) {
            confs.push(conf);
        }
    }
    let list = confs.iter().filter_map(|conf| Candidate::new(family, conf));
    Ok(Candidates {
        list: list.collect(),
        is_complete: false,
    })
}

/// Returns the allocators that can replace one without settings to search.
pub(crate) fn others(prepared: &Prepared<'_>) -> Candidates {
    let list = match prepared.own().setup.policy.as_str() {
        "rmm-pool" => resources(prepared),
        _ => Vec::new(),
    };
    Candidates {
        list,
        is_complete: true,
    }
}

/// Returns the other memory resources of RMM.
fn resources(prepared: &Prepared<'_>) -> Vec<Candidate> {
    let of = |(policy, resource): (&str, &str)| Candidate {
        setup: Setup {
            policy: policy.to_owned(),
            settings: prepared.options().settings.clone(),
            conf: String::new(),
        },
        apply: resource.to_owned(),
    };
    let all = [
        ("rmm-arena", "rmm::mr::arena_memory_resource"),
        ("cuda-async", "rmm::mr::cuda_async_memory_resource"),
    ];
    all.into_iter().map(of).collect()
}
