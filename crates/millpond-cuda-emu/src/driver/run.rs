//! The three executors: in the call, on a thread for each stream, or on a wait, in an order that a seed chooses.

use super::{Shared, State};
use crate::error::Code;
use crate::event_page::Record;
use crate::options::Streams;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Chooses among work that may run. Each stream has a random rank, and the highest rank runs. Now and then the stream that ran
/// falls behind all others. So streams run far ahead of each other, which would be rare with equal chances.
#[derive(Debug)]
pub(crate) struct Chooser {
    state: u64,
    ranks: BTreeMap<u64, u64>,
}

impl Chooser {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: seed ^ 0x9e37_79b9_7f4a_7c15,
            ranks: BTreeMap::new(),
        }
    }

    /// Returns the next number of splitmix64.
    pub(crate) fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn choose(&mut self, ready: &[(u64, u64)]) -> Option<u64> {
        for &(_, stream) in ready {
            if !self.ranks.contains_key(&stream) {
                let rank = self.random() | 1 << 32;
                self.ranks.insert(stream, rank);
            }
        }
        let rank = |stream: u64| self.ranks.get(&stream).copied().unwrap_or_default();
        let &(id, stream) = ready
            .iter()
            .max_by_key(|(id, stream)| (rank(*stream), std::cmp::Reverse(*id)))?;
        if self.random().is_multiple_of(4) {
            let behind = self.random() >> 32;
            self.ranks.insert(stream, behind);
        }
        Some(id)
    }
}

/// The time between two polls of other processes.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// With seeded streams, the time without a call after which functions of the client run. A device runs them without a further call, and the
/// client may wait for them.
const QUIET: Duration = Duration::from_millis(10);

/// A record that other processes may wait for. It is complete when this task is.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(crate) record: Record,
    pub(crate) task: u64,
}

impl Shared {
    /// Starts work that was queued on a stream: runs it now, or notifies the thread that may run it.
    pub(crate) fn queued<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>, task: u64, stream: u64) {
        match self.options.streams {
            Streams::InPlace => drop(self.wait_for(state, &[task])),
            Streams::Seeded => {
                if state.queue.first_call().is_some() {
                    self.tell(&mut state);
                }
            }
            Streams::Threads => self.worker(state, stream),
        }
    }

    fn worker(self: &Arc<Self>, mut state: MutexGuard<'_, State>, stream: u64) {
        if state.workers.insert(stream) {
            let shared = Arc::clone(self);
            let work = move || shared.work(stream);
            let name = format!("cuda stream {stream:#x}");
            if std::thread::Builder::new().name(name).spawn(work).is_err() {
                // Without a thread, the work runs when a call waits for it.
                state.workers.remove(&stream);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Runs a stream's thread until the stream or the driver is gone.
    fn work(self: &Arc<Self>, stream: u64) {
        let mut state = self.state();
        loop {
            let next = state.queue.ready().find(|ready| ready.1 == stream);
            if let Some((task, _)) = next {
                state = self.run(state, task);
            } else if state.closing || !state.streams.contains_key(&stream) && !state.queue.has_work(stream) {
                state.workers.remove(&stream);
                return;
            } else {
                state = self.pause(state);
            }
        }
    }

    /// Waits for a change. Other processes cannot signal a change here, so waits for them poll.
    fn pause<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let held = state.queue.held().inspect(|awaited| awaited.want()).count();
        if held > 0 {
            self.pause_a_little(state)
        } else {
            self.sleep(state)
        }
    }

    fn sleep<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change here, or for a short time so that another process can work.
    pub(crate) fn pause_a_little<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, LOOK_AGAIN);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Starts a thread that polls whether another process waits for a record of this one, and then waits for it here. With
    /// seeded streams, work runs only when a call waits, and the waiting call may be in another process.
    pub(crate) fn tell_others(self: &Arc<Self>, state: &mut State, promise: Promise) {
        if self.options.streams != Streams::Seeded {
            return;
        }
        state.promises.push(promise);
        self.tell(state);
    }

    /// Starts the thread that runs work without a call of the client, if it does not run.
    fn tell(self: &Arc<Self>, state: &mut State) {
        if !state.telling {
            let shared = Arc::clone(self);
            let work = move || shared.keep_promises();
            let name = "cuda events".to_owned();
            // Without a thread, other processes wait until a call waits here.
            state.telling = std::thread::Builder::new().name(name).spawn(work).is_ok();
        }
        self.changed.notify_all();
    }

    fn keep_promises(self: &Arc<Self>) {
        let mut state = self.state();
        let (mut last, mut since) = (state.activity, Instant::now());
        while !state.closing {
            let State { promises, queue, .. } = &mut *state;
            promises.retain(|promise| !queue.is_done(promise.task));
            let wanted = |promise: &&Promise| promise.record.is_wanted();
            let task = state.promises.iter().find(wanted).map(|promise| promise.task);
            if state.activity != last || state.running > 0 {
                (last, since) = (state.activity, Instant::now());
            }
            let call = state.queue.first_call();
            let task = task.or(call.filter(|_| since.elapsed() >= QUIET));
            state = match task {
                Some(task) => self.wait_for(state, &[task]),
                None if state.promises.is_empty() && call.is_none() => self.sleep(state),
                None => self.pause_a_little(state),
            };
        }
    }

    /// Runs one piece of work that is ready. No lock is held meanwhile.
    fn run<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>, task: u64) -> MutexGuard<'a, State> {
        let Some(work) = state.queue.start(task) else {
            return state;
        };
        state.memory.hold();
        state.running += 1;
        let failed = state
            .contexts
            .get(&work.context)
            .and_then(|context| context.failed);
        drop(state);
        let until = Instant::now() + Duration::from_nanos(if self.options.pace { work.length } else { 0 });
        let perform = || self.perform(&work.action, work.device, failed);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(perform));
        let outcome = outcome.unwrap_or(Err(Code::UNKNOWN));
        if self.options.pace {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        let mut state = self.state();
        state.memory.unhold();
        state.running -= 1;
        state.activity += 1;
        state.queue.finish(task);
        if let Err(code) = outcome {
            if code == Code::ILLEGAL_ADDRESS {
                state.strict.illegal(work.origin);
            }
            state.fail(work.context, code);
        }
        self.changed.notify_all();
        state
    }

    /// Returns when all of these are complete. With seeded streams, this runs the work.
    pub(crate) fn wait_for<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        tasks: &[u64],
    ) -> MutexGuard<'a, State> {
        loop {
            let Some(open) = tasks.iter().find(|task| !state.queue.is_done(**task)).copied() else {
                return state;
            };
            let next = match self.options.streams {
                Streams::Seeded => state.choose().map(|task| (task, 0)),
                // The work may wait for tasks that no call runs by itself, such as the branches of a graph.
                Streams::InPlace => state.queue.ready().find(|ready| ready.0 <= open),
                Streams::Threads => {
                    let mut ready = state.queue.ready();
                    ready.find(|ready| !state.workers.contains(&ready.1))
                }
            };
            state = match next {
                Some((task, _)) => self.run(state, task),
                None => self.pause(state),
            };
        }
    }

    /// Runs one piece of work with seeded streams, so that a loop of queries ends.
    pub(crate) fn poll<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if self.options.streams == Streams::Seeded
            && let Some(task) = state.choose()
        {
            return self.run(state, task);
        }
        state.queue.held().for_each(Record::want);
        state
    }
}

impl State {
    fn choose(&mut self) -> Option<u64> {
        let ready: Vec<(u64, u64)> = self.queue.ready().collect();
        self.chooser.choose(&ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_one_order_and_different_seeds_give_many() {
        let order = |seed| {
            let mut chooser = Chooser::new(seed);
            let mut ready: Vec<(u64, u64)> = (0..12).map(|task| (task, task % 3)).collect();
            let mut order = Vec::new();
            while let Some(task) = chooser.choose(&ready) {
                ready.retain(|entry| entry.0 != task);
                order.push(task);
            }
            order
        };
        assert_eq!(order(5), order(5));
        let orders: std::collections::BTreeSet<_> = (0..50).map(order).collect();
        assert!(orders.len() > 30, "{}", orders.len());
    }
}
