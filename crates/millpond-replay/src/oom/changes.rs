//! Finds changes of the program that would have served a refused request. Each is replayed on a device of the same size.

use super::remedy::{Remedy, RemedyKind, Trials};
use crate::edit::{self, Edit};
use crate::parallel;
use crate::program::Program;
use millpond_engine::policies;
use std::cmp::Reverse;

impl Trials<'_> {
    /// Returns the changes with which the program finishes under the allocator in use, the best first, and the number
    /// of those that were tried. If no single change is enough, two are tried together.
    pub(super) fn changes(&self) -> (Vec<Remedy>, usize) {
        // The replay of a changed program starts with an empty cache. If the unchanged program also finishes from
        // an empty cache, a replay proves nothing.
        let fails = || {
            let outcome = self.replay_from_start(self.program, &self.own.policy, &self.own.settings);
            outcome.is_some_and(|run| run.stop.is_some())
        };
        if self.request.is_some() && !fails() {
            return (Vec::new(), 0);
        }
        let mut alone = edit::propose(self.trace, self.program);
        alone.truncate(Self::most_replays(self.program));
        let mut tried = self.try_changes(alone.into_iter().map(|edit| vec![edit]).collect());
        let mut count = tried.len();
        if tried.iter().all(|tried| tried.remedy.is_none()) {
            tried.sort_by_key(|tried| tried.peak);
            let alone: Vec<Edit> = tried.into_iter().flat_map(|tried| tried.edits).collect();
            tried = self.try_changes(edit::pairs(&alone));
            count += tried.len();
        }
        let mut found: Vec<Remedy> = tried.into_iter().filter_map(|tried| tried.remedy).collect();
        found.sort_by_key(|remedy| Reverse((remedy.is_of_growing(), remedy.spare_bytes)));
        (found, count)
    }

    /// Replays the changed programs. Leaves out changes that cannot be applied.
    fn try_changes(&self, changes: Vec<Vec<Edit>>) -> Vec<Tried> {
        parallel::map(&self.threads, changes.len(), |index| {
            let edits = &changes[index];
            let edited = edit::apply(self.trace, edits).ok()?;
            let program = Program::new(&edited.trace, self.selection).ok()?;
            let run = self.replay_from_start(&program, &self.own.policy, &self.own.settings)?;
            let policy = policies::build(&self.own.policy, &self.own.settings).ok()?;
            let text = edit::words(&edited.edits);
            let remedy = || {
                let edits = edited.edits.iter().map(|edit| edit.edit.clone()).collect();
                self.remedy(RemedyKind::Change, text, edits, policy.as_ref(), &run)
            };
            Some(Tried {
                edits: edits.clone(),
                peak: program.peak_requested,
                remedy: self.is_useful(&program, &run).then(remedy),
            })
        })
    }
}

/// Changes that were tried together.
struct Tried {
    edits: Vec<Edit>,
    /// The most bytes that the changed program holds.
    peak: u64,
    /// `None` if the changed program does not finish.
    remedy: Option<Remedy>,
}
