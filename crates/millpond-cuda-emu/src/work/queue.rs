//! Queued work and its dependencies.
#![forbid(unsafe_code)]

use super::action::Action;
use crate::access::Origin;
use crate::event_page::Record;
use std::collections::{BTreeMap, BTreeSet};

/// A piece of work with its stream, context and device.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) stream: u64,
    pub(crate) context: u64,
    pub(crate) device: u32,
    pub(crate) action: Action,
    pub(crate) origin: Origin,
    /// Its length in modelled nanoseconds.
    pub(crate) length: u64,
}

#[derive(Debug)]
struct Task {
    work: Work,
    waiting: usize,
    dependents: Vec<u64>,
}

/// All incomplete work. A number that is not in the queue is complete. Numbers increase, so no work waits for itself.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    tasks: BTreeMap<u64, Task>,
    ready: BTreeSet<u64>,
    /// The functions of the client.
    calls: BTreeSet<u64>,
    next: u64,
}

impl Queue {
    /// Adds work that may run when all of `after` is complete.
    pub(crate) fn add(&mut self, work: Work, after: &[u64]) -> u64 {
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
        if let Action::Call(_) = work.action {
            self.calls.insert(id);
        }
        let dependents = Vec::new();
        let task = Task {
            work,
            waiting,
            dependents,
        };
        self.tasks.insert(id, task);
        id
    }

    pub(crate) fn is_done(&self, id: u64) -> bool {
        !self.tasks.contains_key(&id)
    }

    /// Returns the oldest function of the client that is incomplete.
    pub(crate) fn first_call(&self) -> Option<u64> {
        self.calls.first().copied()
    }

    pub(crate) fn has_work(&self, stream: u64) -> bool {
        self.tasks.values().any(|task| task.work.stream == stream)
    }

    /// Returns the work that may run now, with its stream, the oldest first.
    pub(crate) fn ready(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let free = |(_, work): &(u64, &Work)| work.action.held_by().is_none();
        self.unblocked().filter(free).map(|(id, work)| (id, work.stream))
    }

    /// Returns the records of other processes that block work which is ready otherwise.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Record> + '_ {
        self.unblocked().filter_map(|(_, work)| work.action.held_by())
    }

    /// Returns the work that waits for no other queued work.
    fn unblocked(&self) -> impl Iterator<Item = (u64, &Work)> + '_ {
        self.ready
            .iter()
            .filter_map(|id| Some((*id, &self.tasks.get(id)?.work)))
    }

    /// Returns the incomplete work of a context.
    pub(crate) fn open(&self, context: u64) -> Vec<u64> {
        let tasks = self.tasks.iter();
        let of = tasks.filter(|(_, task)| task.work.context == context);
        of.map(|(id, _)| *id).collect()
    }

    /// Takes work that is ready in order to run it.
    pub(crate) fn start(&mut self, id: u64) -> Option<Work> {
        if !self.ready.remove(&id) {
            return None;
        }
        self.tasks.get(&id).map(|task| task.work.clone())
    }

    /// Completes work. Work that waited only for it becomes ready.
    pub(crate) fn finish(&mut self, id: u64) {
        let Some(task) = self.tasks.remove(&id) else {
            return;
        };
        self.calls.remove(&id);
        for dependent in &task.dependents {
            if let Some(next) = self.tasks.get_mut(dependent) {
                next.waiting -= 1;
                if next.waiting == 0 {
                    self.ready.insert(*dependent);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_ready_when_its_dependencies_are_complete() {
        let mut queue = Queue::default();
        let work = Work {
            stream: 1,
            context: 1,
            device: 0,
            action: Action::Nothing,
            origin: Origin::default(),
            length: 0,
        };
        let mut add = |after: &[u64]| queue.add(work.clone(), after);
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
