//! Changes of the program that lower its peak, each replayed.

use super::{Search, Tuned};
use crate::allocator::usual_policy;
use crate::edit::{self, AppliedEdit};
use crate::program::Program;
use crate::run::{Device, run};
use crate::{parallel, verify};
use millpond_engine::{Settings, policies};
use millpond_trace::Trace;
use serde::Serialize;

/// The least share of the peak that a proposal must save.
const WORTH: f64 = 0.02;

/// A change of the program that lowers its peak. All figures are from replays on a device without a limit, except
/// `fits`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proposal {
    /// The change.
    #[serde(flatten)]
    pub edit: AppliedEdit,
    /// The most bytes that the changed program requests and holds at once.
    pub peak_requested_bytes: u64,
    /// The policy that the program runs under.
    pub policy: &'static str,
    /// The most bytes that this policy holds from the device for the program as recorded.
    pub unchanged_reserved_bytes: u64,
    /// The same for the changed program.
    pub peak_reserved_bytes: u64,
    /// The recommended setting of the allocator of `policy`. Empty if these are the defaults.
    pub best_conf: String,
    /// The most bytes held from the device for the changed program under this setting.
    pub best_reserved_bytes: u64,
    /// Whether the changed program finishes on the device under this setting.
    pub fits: bool,
}

/// A policy with its settings.
#[derive(Debug)]
struct Setting {
    policy: &'static str,
    settings: Settings,
    conf: String,
}

impl Setting {
    fn peak(&self, program: &Program, paged: bool) -> Option<u64> {
        let policy = policies::build(self.policy, &self.settings).ok()?;
        let source = Device { bytes: None, paged }.source();
        Some(run(program, policy, source, &mut ()).stats.reserved.peak)
    }

    fn fits(&self, program: &Program, device: Device) -> bool {
        policies::build(self.policy, &self.settings)
            .is_ok_and(|policy| run(program, policy, device.source(), &mut ()).stop.is_none())
    }
}

/// Returns the changes that pay, the one with the lowest peak first.
pub(super) fn proposals(trace: &Trace, search: &Search<'_>, tuned: &Tuned) -> Vec<Proposal> {
    let own = own(trace);
    let best = best(&own, tuned);
    let device = search.options.device;
    let Some(unchanged) = own.peak(search.program, device.paged) else {
        return Vec::new();
    };
    let edits = edit::propose(trace, search.program);
    let mut found = parallel::map(search.options.threads, edits.len(), |index| {
        let edited = edit::apply(trace, &edits[index..=index]).ok()?;
        let program = Program::new(&edited.trace, search.options.selection).ok()?;
        let peak = own.peak(&program, device.paged)?;
        if peak as f64 > unchanged as f64 * (1.0 - WORTH) {
            return None;
        }
        Some(Proposal {
            edit: edited.edits.into_iter().next()?,
            peak_requested_bytes: program.peak_requested,
            policy: own.policy,
            unchanged_reserved_bytes: unchanged,
            peak_reserved_bytes: peak,
            best_conf: best.conf.clone(),
            best_reserved_bytes: if best.conf == own.conf {
                peak
            } else {
                best.peak(&program, device.paged)?
            },
            fits: device.bytes.is_none() || best.fits(&program, device),
        })
    });
    found.sort_by(|a, b| {
        let key = |proposal: &Proposal| (proposal.peak_reserved_bytes, proposal.best_reserved_bytes);
        key(a).cmp(&key(b)).then_with(|| a.edit.edit.cmp(&b.edit.edit))
    });
    found
}

/// Returns the policy that the program runs under, with its recorded settings.
fn own(trace: &Trace) -> Setting {
    let mut own = Setting {
        policy: usual_policy(trace.origin.format),
        settings: Settings::default(),
        conf: String::new(),
    };
    if own.policy == "torch-native" {
        // Settings that this version cannot read are those of a later PyTorch.
        own.settings.torch = verify::recorded_conf(&trace.settings).unwrap_or_default();
        let expandable = own
            .settings
            .torch
            .expandable_segments
            .or(trace.settings.expandable_segments);
        if expandable == Some(true) {
            own.policy = "torch-expandable";
        }
        own.conf = trace.settings.conf.clone().unwrap_or_default();
    }
    own
}

/// Returns the recommended setting of the allocator of a policy, or the policy itself.
fn best(own: &Setting, tuned: &Tuned) -> Setting {
    let family = tuned.families.iter().find(|family| {
        let policies = family.trials.iter().map(|trial| trial.policy);
        policies.into_iter().any(|policy| policy == own.policy)
    });
    let trial = family.and_then(|family| family.trials.get(family.best).map(|trial| (family.family, trial)));
    let parsed = trial.and_then(|(family, trial)| {
        let (policy, settings) = family.settings(&trial.conf)?;
        Some(Setting {
            policy,
            settings,
            conf: trial.conf.clone(),
        })
    });
    parsed.unwrap_or_else(|| Setting {
        policy: own.policy,
        settings: own.settings.clone(),
        conf: own.conf.clone(),
    })
}
