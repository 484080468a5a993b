//! Searches the settings that the program itself can use for those with which it needs less memory.

use super::{Replay, WORTH};
use crate::allocator::Setup;
use crate::error::ReplayError;
use crate::family::Family;
use crate::outcome::{Fit, PolicyResult};
use crate::parallel;
use crate::prepared::Prepared;
use crate::trials::{each_alone, runs_below};

/// The number of settings for which the smallest device is found. A search by the peak, which takes one replay
/// for each setting, selects them.
const FINALISTS: usize = 3;

/// Settings that the program can use.
#[derive(Debug)]
pub(crate) struct Candidate {
    setup: Setup,
    apply: String,
}

impl Candidate {
    /// Returns a setting of the allocator of a family. `None` if the setting cannot be parsed.
    pub(crate) fn new(family: Family, conf: &str) -> Option<Self> {
        let (policy, settings) = family.settings(conf)?;
        Some(Self {
            apply: family
                .line(conf)
                .unwrap_or_else(|| format!("unset {}", family.variable())),
            setup: Setup {
                policy: policy.to_owned(),
                settings,
                conf: conf.to_owned(),
            },
        })
    }
}

/// The settings to compare with those of the program.
#[derive(Debug)]
pub(crate) struct Candidates {
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
    pub(super) more: T,
}

/// Returns the settings with which the program needs the least memory. Among settings that differ by less than
/// one per cent, those with the fewest keys win. Settings that stall often wherever they save memory are left out. Returns `None` if nothing saves one per cent, unless the
/// program's own allocator does not finish on the device and another one does.
pub(super) fn better<T: Send>(
    prepared: &Prepared<'_>,
    own_result: &PolicyResult,
    candidates: &[Candidate],
    replay: Replay<'_, T>,
) -> Option<Found<T>> {
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
    let (program, device) = (prepared.program(), prepared.options().device);
    finalists.retain(|one| {
        let needed = own_result.smallest_device_bytes.unwrap_or(0);
        one.result.fit.as_ref().is_some_and(Fit::seldom_stalls)
            || runs_below(
                program,
                &one.setup.policy,
                &one.setup.settings,
                device.paged,
                needed,
            )
    });
    let finishes = |result: &PolicyResult| result.first_failure.is_none();
    if finalists.iter().any(|one| finishes(&one.result)) {
        finalists.retain(|one| finishes(&one.result));
    }
    let least = finalists
        .iter()
        .filter_map(|one| one.result.smallest_device_bytes)
        .min();
    let least = least?;
    let needs = |result: &PolicyResult| result.smallest_device_bytes.unwrap_or(u64::MAX) as f64;
    finalists.retain(|one| needs(&one.result) <= least as f64 * (1.0 + WORTH));
    let keys = |one: &Found<T>| one.setup.conf.split(',').count();
    let best = finalists.into_iter().min_by_key(keys);
    best.filter(|best| {
        let saves = needs(&best.result) < needs(own_result) * (1.0 - WORTH);
        saves || (finishes(&best.result) && !finishes(own_result))
    })
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
    let differing = trials.into_iter().filter(|trial| trial.conf != own.conf);
    Ok(Candidates {
        list: differing
            .filter_map(|trial| Candidate::new(family, &trial.conf))
            .take(FINALISTS)
            .collect(),
        is_complete: false,
    })
}

/// Returns what replaces an allocator without settings.
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
