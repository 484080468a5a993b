//! Changes of the program with which it needs less memory, each replayed.

use crate::allocator::Setup;
use crate::edit::{self, AppliedEdit};
use crate::family::Family;
use crate::parallel;
use crate::prepared::Prepared;
use crate::program::Program;
use crate::report::Verdict;
use crate::run::run;
use crate::trials::{TunedFamily, smallest};
use millpond_engine::policies;
use serde::Serialize;

/// The least share of the memory needed that a proposal must save.
const WORTH: f64 = 0.02;

/// The most proposals. The changes with which the program holds least are measured.
const MOST: usize = 6;

/// A change of the program with which it needs less memory. All figures but `fits` are smallest devices on which a
/// replay finishes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proposal {
    /// The change.
    #[serde(flatten)]
    pub edit: AppliedEdit,
    /// The most bytes that the changed program requests and holds at once.
    pub peak_requested_bytes: u64,
    /// The policy that the program runs under.
    pub policy: String,
    /// The memory that the program as recorded needs under its own allocator.
    pub unchanged_bytes: u64,
    /// The same for the changed program.
    pub needs_bytes: u64,
    /// The recommended setting of this allocator. Empty for the defaults.
    pub best_conf: String,
    /// The memory that the changed program needs under this setting.
    pub best_needs_bytes: u64,
    /// Whether the changed program finishes on the device under this setting.
    pub fits: bool,
}

/// Returns the changes that save enough memory. The change with which the program needs least is first.
pub(super) fn proposals(
    prepared: &Prepared<'_>,
    family: Option<&TunedFamily>,
    verdict: &Verdict,
) -> Vec<Proposal> {
    let (trace, options) = (prepared.trace(), prepared.options());
    let own = &prepared.own().setup;
    // If the program is too large for the device, only the verdict has searched settings.
    let better = || Setup::of(Family::of(&own.policy)?, &verdict.better.as_ref()?.result.conf);
    let best = family.and_then(best).or_else(better);
    let best = best.unwrap_or_else(|| own.clone());
    let Some(unchanged) = verdict.own.needs() else {
        return Vec::new();
    };
    let device = options.device;
    let edits = edit::propose(trace, prepared.program());
    let edited = |index: usize| {
        let edited = edit::apply(trace, &edits[index..=index]).ok()?;
        let program = Program::new(&edited.trace, options.selection).ok()?;
        Some((edited, program))
    };
    // What the program holds is a bound that no allocator changes.
    let mut promising = parallel::map(options.threads, edits.len(), |index| {
        Some((edited(index)?.1.peak_requested, index))
    });
    promising.sort_unstable();
    promising.truncate(MOST);
    let finishes = |program: &Program| {
        let policy = policies::build(&best.policy, &best.settings).ok()?;
        Some(run(program, policy, device.source(), &mut ()).stop.is_none())
    };
    let mut found = parallel::map(options.threads, promising.len(), |index| {
        let (edited, program) = edited(promising[index].1)?;
        let needs =
            |setup: &Setup| Some(smallest(&program, &setup.policy, &setup.settings, device.paged)?.bytes);
        let needs_bytes = needs(own)?;
        if needs_bytes as f64 > unchanged as f64 * (1.0 - WORTH) {
            return None;
        }
        Some(Proposal {
            edit: edited.edits.into_iter().next()?,
            peak_requested_bytes: program.peak_requested,
            policy: own.policy.clone(),
            unchanged_bytes: unchanged,
            needs_bytes,
            best_conf: best.conf.clone(),
            best_needs_bytes: match (&best.policy, &best.conf) == (&own.policy, &own.conf) {
                true => needs_bytes,
                false => needs(&best)?,
            },
            fits: device.bytes.is_none() || finishes(&program)?,
        })
    });
    found.sort_by(|a, b| {
        let key = |proposal: &Proposal| (proposal.best_needs_bytes, proposal.needs_bytes);
        key(a).cmp(&key(b)).then_with(|| a.edit.edit.cmp(&b.edit.edit))
    });
    found
}

/// Returns an allocator with its recommended settings.
fn best(family: &TunedFamily) -> Option<Setup> {
    Setup::of(family.family, &family.trials.get(family.best)?.conf)
}
