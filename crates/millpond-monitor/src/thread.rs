//! The thread that samples and runs the callbacks of thresholds.

use super::builder::MonitorBuilder;
use super::identity::Identity;
use super::log::Log;
use super::read::Reader;
use super::threshold::{Crossing, Guard, Signal, Threshold};
use super::{Call, MOST_CROSSINGS, ROOM, Sample, Shared, State, lock};
use millpond_os::metadata::has_room;
use millpond_os::pressure::Share;
use millpond_os::reentrancy::inside;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

pub(super) struct Sampler {
    shared: Arc<Shared>,
    reader: Reader,
    guards: Vec<(Guard, Option<Call>)>,
}

/// The thresholds that are always checked. They are shown as warnings and have no callbacks.
const ALWAYS: [Threshold; 4] = [
    Threshold::pool_limit(Share::percent(80)),
    Threshold::budget(Share::percent(80)),
    Threshold::device(Share::percent(90)),
    Threshold::process(Share::percent(90)),
];

impl Sampler {
    /// Takes the first sample.
    pub(super) fn new(rules: &MonitorBuilder) -> (Self, Arc<Shared>) {
        let mut reader = Reader::default();
        reader.budgets.clone_from(&rules.budgets);
        let started = Instant::now();
        let snapshot = reader.read();
        let first = Sample {
            at: started.elapsed(),
            took: started.elapsed(),
            snapshot,
            passed: Vec::new(),
        };
        let mut log = Log::new(rules.points);
        log.take_in(first.at, &first.snapshot, None);
        let shared = Arc::new(Shared {
            process: process::id(),
            started,
            interval: rules.interval,
            identity: Identity::new(rules.rank.as_deref(), rules.host.as_deref()),
            state: Mutex::new(State {
                log,
                last: Arc::new(first),
                crossings: Vec::new(),
                crossed: 0,
                panics: 0,
                missed: 0,
            }),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
        });
        let sampler = Self {
            shared: Arc::clone(&shared),
            reader,
            guards: Vec::new(),
        };
        (sampler, shared)
    }

    /// Adds thresholds with their callbacks.
    pub(super) fn with_calls(mut self, thresholds: Vec<(Threshold, Option<Call>)>) -> Self {
        let asked = |signal: Signal| thresholds.iter().any(|(threshold, _)| threshold.signal == signal);
        let rest: Vec<Threshold> = ALWAYS.into_iter().filter(|of| !asked(of.signal)).collect();
        self.guards = thresholds
            .into_iter()
            .chain(rest.into_iter().map(|of| (of, None)))
            .map(|(threshold, call)| (Guard::new(threshold), call))
            .collect();
        self
    }

    /// Samples until the monitor is stopped, and once more at the end.
    pub(super) fn run(mut self) {
        let crossed = {
            let _inside = inside();
            let first = Arc::clone(&lock(&self.shared.state).last);
            self.hold_against(&first)
        };
        self.tell(crossed);
        let mut next = Instant::now() + self.shared.interval;
        loop {
            let stop = self.shared.sleep_until(next);
            let crossed = self.sample();
            self.tell(crossed);
            if stop {
                return;
            }
            millpond_os::end_if_abandoned();
            // Missed samples are skipped.
            next = (next + self.shared.interval).max(Instant::now());
        }
    }

    /// Takes a sample. Returns the thresholds that were crossed, with their indices in `guards`.
    fn sample(&mut self) -> Vec<(usize, Crossing)> {
        if !has_room(ROOM) {
            lock(&self.shared.state).missed += 1;
            return Vec::new();
        }
        let _inside = inside();
        let began = Instant::now();
        let snapshot = self.reader.read();
        let mut sample = Sample {
            at: self.shared.started.elapsed(),
            took: began.elapsed(),
            snapshot,
            passed: Vec::new(),
        };
        let crossed = self.hold_against(&sample);
        sample.passed = self.passed();
        let mut state = lock(&self.shared.state);
        let before = Arc::clone(&state.last);
        state
            .log
            .take_in(sample.at, &sample.snapshot, Some(&before.snapshot));
        state.last = Arc::new(sample);
        drop(state);
        drop(before);
        crossed
    }

    fn passed(&self) -> Vec<Crossing> {
        let mut passed: Vec<Crossing> = self
            .guards
            .iter()
            .flat_map(|(guard, _)| guard.passed())
            .cloned()
            .collect();
        passed.sort_by(|a, b| b.share.cmp(&a.share).then_with(|| a.of.cmp(&b.of)));
        passed
    }

    /// Returns the thresholds that this sample crosses, with their indices in `guards`.
    fn hold_against(&mut self, sample: &Sample) -> Vec<(usize, Crossing)> {
        let mut crossed = Vec::new();
        for (place, (guard, _)) in self.guards.iter_mut().enumerate() {
            let new = guard.look(&sample.snapshot);
            crossed.extend(new.into_iter().map(|crossing| (place, crossing)));
        }
        if !crossed.is_empty() {
            let mut state = lock(&self.shared.state);
            state.crossed += crossed.len() as u64;
            let room = MOST_CROSSINGS.saturating_sub(state.crossings.len());
            let kept = crossed.iter().take(room);
            let kept = kept.map(|(_, crossing)| (sample.at, crossing.clone()));
            state.crossings.extend(kept);
        }
        crossed
    }

    /// Runs the callbacks outside every lock.
    fn tell(&mut self, crossed: Vec<(usize, Crossing)>) {
        for (place, crossing) in crossed {
            let Some((_, Some(call))) = self.guards.get_mut(place) else {
                continue;
            };
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| call(&crossing))) else {
                continue;
            };
            // The payload of a panic may panic again when it is dropped.
            if let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(panic))) {
                std::mem::forget(again);
            }
            lock(&self.shared.state).panics += 1;
        }
    }
}
