//! Queued work and what it waits for.
#![forbid(unsafe_code)]

use super::action::Action;
use crate::strict::Origin;
use std::collections::{BTreeMap, BTreeSet};

/// A piece of work in the queue.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) stream: u64,
    pub(crate) context: u64,
    pub(crate) device: u32,
    pub(crate) action: Action,
    pub(crate) origin: Origin,
    waiting: usize,
    dependents: Vec<u64>,
}

/// All work that is not done. A number that is not in it is done, and numbers grow, so nothing ever waits for itself.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    tasks: BTreeMap<u64, Task>,
    ready: BTreeSet<u64>,
    next: u64,
}

impl Queue {
    /// Adds work that may run when all of `after` is done.
    pub(crate) fn add(
        &mut self,
        stream: u64,
        context: u64,
        device: u32,
        action: Action,
        origin: Origin,
        after: &[u64],
    ) -> u64 {
        self.next += 1;
        let id = self.next;
        let mut waiting = 0;
        let mut after = after.to_vec();
        after.sort_unstable();
        after.dedup();
        for before in after {
            if let Some(task) = self.tasks.get_mut(&before) {
                task.dependents.push(id);
                waiting += 1;
            }
        }
        if waiting == 0 {
            self.ready.insert(id);
        }
        self.tasks.insert(
            id,
            Task {
                stream,
                context,
                device,
                action,
                origin,
                waiting,
                dependents: Vec::new(),
            },
        );
        id
    }

    pub(crate) fn is_done(&self, id: u64) -> bool {
        !self.tasks.contains_key(&id)
    }

    pub(crate) fn has_work(&self, stream: u64) -> bool {
        self.tasks.values().any(|task| task.stream == stream)
    }

    /// What may run now, with its stream, the oldest first.
    pub(crate) fn ready(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ready
            .iter()
            .filter_map(|id| Some((*id, self.tasks.get(id)?.stream)))
    }

    /// What is not done of a stream or, with 0, of all of a context's.
    pub(crate) fn open(&self, context: u64, stream: u64) -> Vec<u64> {
        let of = |task: &Task| task.context == context && (stream == 0 || task.stream == stream);
        self.tasks
            .iter()
            .filter(|(_, task)| of(task))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Takes work that is ready, to run it.
    pub(crate) fn start(&mut self, id: u64) -> Option<(Action, u32)> {
        if !self.ready.remove(&id) {
            return None;
        }
        self.tasks.get(&id).map(|task| (task.action.clone(), task.device))
    }

    /// It has run: what waited for it alone is ready.
    pub(crate) fn finish(&mut self, id: u64) -> Option<Task> {
        let task = self.tasks.remove(&id)?;
        for dependent in &task.dependents {
            if let Some(next) = self.tasks.get_mut(dependent) {
                next.waiting -= 1;
                if next.waiting == 0 {
                    self.ready.insert(*dependent);
                }
            }
        }
        Some(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_ready_when_what_it_waits_for_is_done() {
        let mut queue = Queue::default();
        let mut add = |after: &[u64]| queue.add(1, 1, 0, Action::Nothing, Origin::default(), after);
        let a = add(&[]);
        let b = add(&[a, a]);
        let c = add(&[a, b, 99]);
        assert_eq!(queue.ready().map(|r| r.0).collect::<Vec<_>>(), [a]);
        assert!(queue.start(b).is_none() && queue.start(a).is_some() && queue.start(a).is_none());
        queue.finish(a);
        assert!(queue.is_done(a) && queue.ready.contains(&b) && !queue.ready.contains(&c));
        queue.start(b);
        queue.finish(b);
        assert!(queue.ready.contains(&c));
    }
}
