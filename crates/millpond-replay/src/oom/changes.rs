//! Finds changes of the program that would have served a refused request. Each is replayed on a device of the same size.

use super::remedy::{Remedy, RemedyKind, Trials};
use crate::edit;
use crate::parallel;
use crate::program::Program;
use millpond_engine::policies;
use millpond_trace::{Action, Event, Trace};
use std::cmp::Reverse;

impl Trials<'_> {
    /// Returns the changes with which the program finishes under the allocator in use, the best first, and the number
    /// of those that were tried.
    pub(super) fn changes(&self) -> (Vec<Remedy>, usize) {
        let served = self.event.map(|event| with_request(self.trace, event));
        let trace = served.as_ref().unwrap_or(self.trace);
        let Ok(program) = Program::new(trace, self.selection) else {
            return (Vec::new(), 0);
        };
        // The replay of a changed program starts with an empty cache. If the unchanged program finishes from there
        // too, a replay proves nothing.
        let fails = |program: &Program| {
            let outcome = self.replay_from_start(program, &self.own.policy, &self.own.settings);
            outcome.is_some_and(|run| run.stop.is_some())
        };
        if served.is_some() && !fails(&program) {
            return (Vec::new(), 0);
        }
        let mut edits = edit::propose(trace, &program);
        edits.truncate(Self::most_replays(&program));
        let mut found = parallel::map(self.threads, edits.len(), |index| {
            let edited = edit::apply(trace, &edits[index..=index]).ok()?;
            let program = Program::new(&edited.trace, self.selection).ok()?;
            let run = self.replay_from_start(&program, &self.own.policy, &self.own.settings)?;
            if !self.is_useful(&program, &run) {
                return None;
            }
            let policy = policies::build(&self.own.policy, &self.own.settings).ok()?;
            let edit = edited.edits.into_iter().next()?;
            Some(self.remedy(
                RemedyKind::Change,
                edit.words(),
                Some(edit.edit),
                policy.as_ref(),
                &run,
            ))
        });
        found.sort_by_key(|remedy| Reverse(remedy.spare_bytes));
        (found, edits.len())
    }
}

/// Returns the recording as if a refused request had been served and its block freed at once.
fn with_request(trace: &Trace, event: u32) -> Trace {
    let mut trace = trace.clone();
    let at = event as usize;
    let Some(refused) = trace.events.get(at).copied() else {
        return trace;
    };
    let alloc = Event {
        action: Action::Alloc,
        address: 0,
        allocation: trace.allocations,
        ..refused
    };
    let free = Event {
        action: Action::Free,
        ..alloc
    };
    trace.allocations += 1;
    trace.events.splice(at..=at, [alloc, free]);
    trace
}
