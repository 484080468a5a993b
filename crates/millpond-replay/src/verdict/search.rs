//! Searches the settings that the program itself can use for those with which it needs less memory.

use super::{Replay, WORTH};
use crate::allocator::{Own, Setup};
use crate::error::ReplayError;
use crate::outcome::PolicyResult;
use crate::parallel;
use crate::prepared::Prepared;
use crate::tune::{Family, TuneOptions, each_alone};

/// The number of settings for which the smallest device is found. A search by the peak, which takes one replay
/// for each setting, selects them.
const FINALISTS: usize = 3;

/// A program whose host waits at more than one in this number of allocations is too slow to be recommended.
const ALLOCATIONS_PER_STALL: f64 = 100.0;

/// Settings that the program can use.
struct Candidate {
    setup: Setup,
    apply: String,
}

/// Settings with their replay.
pub(super) struct Found<T> {
    pub(super) setup: Setup,
    /// The line to paste, or the call to make.
    pub(super) apply: String,
    pub(super) result: PolicyResult,
    pub(super) more: T,
}

/// Returns the settings with which the program needs the least memory. Among settings that differ by less than
/// one per cent, those with the fewest keys win. Returns `None` if nothing saves one per cent, unless the
/// program's own allocator does not finish on the device and another one does.
pub(super) fn better<T: Send>(
    prepared: &Prepared<'_>,
    own: &Own,
    own_result: &PolicyResult,
    replay: Replay<'_, T>,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Option<Found<T>>, ReplayError> {
    let candidates = candidates(prepared, own, progress)?;
    let mut finalists = parallel::map(prepared.options().threads, candidates.len(), |index| {
        let Candidate { setup, apply } = &candidates[index];
        let (result, more) = replay(setup).ok()?;
        Some(Found {
            setup: setup.clone(),
            apply: apply.clone(),
            result,
            more,
        })
    });
    finalists.retain(|one| {
        let fit = one.result.fit.as_ref();
        fit.is_some_and(|fit| fit.stalls_per_allocation * ALLOCATIONS_PER_STALL <= 1.0)
    });
    let finishes = |result: &PolicyResult| result.first_failure.is_none();
    if finalists.iter().any(|one| finishes(&one.result)) {
        finalists.retain(|one| finishes(&one.result));
    }
    let least = finalists
        .iter()
        .filter_map(|one| one.result.smallest_device_bytes)
        .min();
    let Some(least) = least else { return Ok(None) };
    let needs = |result: &PolicyResult| result.smallest_device_bytes.unwrap_or(u64::MAX) as f64;
    finalists.retain(|one| needs(&one.result) <= least as f64 * (1.0 + WORTH));
    let keys = |one: &Found<T>| one.setup.conf.split(',').count();
    let best = finalists.into_iter().min_by_key(keys);
    Ok(best.filter(|best| {
        let saves = needs(&best.result) < needs(own_result) * (1.0 - WORTH);
        saves || (finishes(&best.result) && !finishes(own_result))
    }))
}

/// Returns the most promising settings.
fn candidates(
    prepared: &Prepared<'_>,
    own: &Own,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Candidate>, ReplayError> {
    let options = prepared.options();
    let family = match own.setup.policy.as_str() {
        "torch-native" | "torch-expandable" | "cuda-async" => Family::Torch,
        "millpond" => Family::Millpond,
        "rmm-pool" => return Ok(resources(prepared)),
        _ => return Ok(Vec::new()),
    };
    let tune = TuneOptions {
        families: vec![family],
        device: options.device,
        selection: options.selection,
        costs: options.costs.clone(),
        threads: options.threads,
    };
    let trials = each_alone(prepared.program(), family, &tune, progress)?;
    let others = trials.into_iter().filter(|trial| trial.conf != own.setup.conf);
    let candidates = others.filter_map(|trial| {
        let (policy, settings) = family.settings(&trial.conf)?;
        Some(Candidate {
            apply: family.line(&trial.conf)?,
            setup: Setup {
                policy: policy.to_owned(),
                settings,
                conf: trial.conf,
            },
        })
    });
    Ok(candidates.take(FINALISTS).collect())
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
