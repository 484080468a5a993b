//! Changes of the program with which it needs less memory, each replayed.

use crate::allocator::Setup;
use crate::edit::{self, AppliedEdit, Edit, Edited};
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

/// The most proposals. The changes with the lowest peaks of the program are measured.
const MOST: usize = 6;

/// A change of the program, or two together, with which it needs less memory. All figures but `fits` are smallest
/// devices on which a replay finishes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proposal {
    /// The changes. Two are proposed only if no single change is enough for the device.
    pub edits: Vec<AppliedEdit>,
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

impl Proposal {
    /// Returns a description of the changes. A sentence puts "with" before it.
    #[must_use]
    pub fn words(&self) -> String {
        edit::words(&self.edits)
    }
}

/// Returns the changes that save enough memory. The change with which the program needs least is first, and those that
/// need more devices are last. If some fit the device, the others are left out.
pub(super) fn proposals(
    prepared: &Prepared<'_>,
    family: Option<&TunedFamily>,
    verdict: &Verdict,
) -> Vec<Proposal> {
    let own = &prepared.own().setup;
    // If the program is too large for the device, only the verdict has searched settings.
    let better = || Setup::of(Family::of(&own.policy)?, &verdict.better.as_ref()?.result.conf);
    let best = family.and_then(best).or_else(better);
    let Some(unchanged) = verdict.own.needs() else {
        return Vec::new();
    };
    let replays = Replays {
        prepared,
        best: best.as_ref().unwrap_or(own),
        unchanged,
    };
    let alone = edit::propose(prepared.trace(), prepared.program());
    let mut found = replays.measure(alone.into_iter().map(|edit| vec![edit]).collect());
    if !found.iter().any(|(_, proposal)| proposal.fits) {
        let alone: Vec<Edit> = found.iter().flat_map(|(edits, _)| edits).cloned().collect();
        found.extend(replays.measure(edit::pairs(&alone)));
        Replays::sort(&mut found);
    }
    if found.iter().any(|(_, proposal)| proposal.fits) {
        found.retain(|(_, proposal)| proposal.fits);
    }
    found.into_iter().map(|(_, proposal)| proposal).collect()
}

/// The replays of changed programs.
struct Replays<'a> {
    prepared: &'a Prepared<'a>,
    /// The recommended settings.
    best: &'a Setup,
    /// The memory that the program as recorded needs.
    unchanged: u64,
}

/// Changes that are made together, and their result.
type Measured = (Vec<Edit>, Proposal);

impl Replays<'_> {
    /// Replays the program with the changes that give it the lowest peaks. Returns those that save enough memory.
    fn measure(&self, changes: Vec<Vec<Edit>>) -> Vec<Measured> {
        let threads = &self.prepared.options().threads;
        // The peak of the program is a lower bound for every allocator.
        let mut promising = parallel::map(threads, changes.len(), |index| {
            Some((self.edited(&changes[index])?.1.peak_requested, index))
        });
        promising.sort_unstable();
        promising.truncate(MOST);
        let mut found = parallel::map(threads, promising.len(), |at| {
            let edits = &changes[promising[at].1];
            Some((edits.clone(), self.replay(edits)?))
        });
        Self::sort(&mut found);
        found
    }

    /// Sorts changes, the best first.
    fn sort(found: &mut [Measured]) {
        found.sort_by_key(|(edits, proposal)| {
            let edits: Vec<String> = edits.iter().map(Edit::to_string).collect();
            let needs_devices = edit::need_devices(edits.iter().map(String::as_str));
            (
                needs_devices,
                proposal.best_needs_bytes,
                proposal.needs_bytes,
                edits,
            )
        });
    }

    /// Returns the changed recording and its program. Returns `None` if the changes cannot be applied.
    fn edited(&self, edits: &[Edit]) -> Option<(Edited, Program)> {
        let edited = edit::apply(self.prepared.trace(), edits).ok()?;
        let program = Program::new(&edited.trace, self.prepared.options().selection).ok()?;
        Some((edited, program))
    }

    /// Returns the result of changes. Returns `None` if they do not save enough.
    fn replay(&self, edits: &[Edit]) -> Option<Proposal> {
        let options = self.prepared.options();
        let (own, best) = (&self.prepared.own().setup, self.best);
        let device = self.prepared.limited();
        let (edited, program) = self.edited(edits)?;
        let needs = |setup: &Setup| Some(smallest(&program, &setup.policy, &setup.settings, options)?.bytes);
        let needs_bytes = needs(own)?;
        if needs_bytes as f64 > self.unchanged as f64 * (1.0 - WORTH) {
            return None;
        }
        let finishes = || {
            let policy = policies::build(&best.policy, &best.settings).ok()?;
            Some(run(&program, policy, device.source(), &mut ()).stop.is_none())
        };
        Some(Proposal {
            edits: edited.edits,
            peak_requested_bytes: program.peak_requested,
            policy: own.policy.clone(),
            unchanged_bytes: self.unchanged,
            needs_bytes,
            best_conf: best.conf.clone(),
            best_needs_bytes: match (&best.policy, &best.conf) == (&own.policy, &own.conf) {
                true => needs_bytes,
                false => needs(best)?,
            },
            fits: device.bytes.is_none() || finishes()?,
        })
    }
}

/// Returns an allocator with its recommended settings.
fn best(family: &TunedFamily) -> Option<Setup> {
    Setup::of(family.family, &family.trials.get(family.best)?.conf)
}
