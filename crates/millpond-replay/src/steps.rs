//! Finds the repeating steps of a program, and measures the cost of each step under a policy.

use crate::program::{Op, OpKind, Program};
use crate::run::Observer;
use millpond_engine::plan::{Detector, Found, Plan, Planner, Slot, Step, solve};
use millpond_engine::{Calls, Engine, Source, Stream};
use serde::Serialize;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The granularity to which sizes are rounded. The default policy rounds sizes in the same way.
const ROUNDING: u64 = 256;

/// The steps of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// The step, with the fewest and the most bytes of each allocation in any of the steps.
    pub step: Step,
    /// Index into [`Program::ops`] of the first call of each step, and one past the last call. Other calls may lie between
    /// two steps.
    pub starts: Vec<usize>,
    /// Bytes that live when a step begins.
    pub base: u64,
    /// The most bytes that are live at once in any of the steps.
    pub peak: u64,
    /// The most bytes that are live at once in the whole program.
    pub program_peak: u64,
}

/// Returns whether a repeating sequence is a loop and not a step. The peak of a loop stays far below the
/// program's peak.
pub(crate) fn is_loop(peak: u128, program_peak: u128) -> bool {
    peak * 10 < program_peak * 9
}

impl Steps {
    /// Searches for the repeating step of a program, as the policy `planned` does.
    #[must_use]
    pub fn find(program: &Program) -> Option<Self> {
        let mut detector = Detector::new();
        let mut numbers = vec![u64::MAX; program.allocations as usize];
        let mut found: Option<Found> = None;
        let (mut live, mut base) = (0u64, 0);
        // Indices of calls that allocate, by the detector's number.
        let mut calls = Vec::new();
        for (at, op) in program.ops.iter().enumerate() {
            let bytes = rounded(op);
            match op.kind {
                OpKind::Alloc => {
                    if found.as_ref().is_some_and(|f| f.begins == calls.len() as u64) {
                        base = live;
                    }
                    live += bytes;
                    if op.pool == 0 {
                        let number = detector.allocated(bytes, Stream(u32::from(op.stream)));
                        calls.push(at);
                        if let Some(slot) = numbers.get_mut(op.allocation as usize) {
                            *slot = number;
                        }
                        if found.is_none() {
                            found = detector.found(1);
                        }
                    }
                }
                OpKind::Free | OpKind::FreeCompleted => {
                    live = live.saturating_sub(bytes);
                    if let Some(number) = numbers.get(op.allocation as usize).filter(|n| **n != u64::MAX) {
                        detector.freed(*number, bytes);
                    }
                }
                OpKind::FreeRequested | OpKind::SegmentFree => {}
            }
        }
        let found = found?;
        let mut step = found.step;
        let starts = starts(program, &calls, &step);
        let (end, all) = starts.split_last()?;
        let (first, end) = (*all.first()?, *end);
        for start in all {
            let from = calls.partition_point(|call| call < start);
            for (slot, call) in step.slots.iter_mut().zip(&calls[from..]) {
                let bytes = rounded(&program.ops[*call]);
                (slot.least, slot.bytes) = (slot.least.min(bytes), slot.bytes.max(bytes));
            }
        }
        Some(Self {
            step,
            starts,
            base,
            peak: peak_during(program, first..end),
            program_peak: program.peak_requested,
        })
    }

    /// Returns whether these are rounds of a loop and not steps.
    #[must_use]
    pub fn are_a_loop(&self) -> bool {
        is_loop(self.peak.into(), self.program_peak.into())
    }
}

/// Returns the most bytes that the program holds during these calls.
fn peak_during(program: &Program, calls: Range<usize>) -> u64 {
    let (mut live, mut peak) = (0u64, 0);
    for (at, op) in program.ops[..calls.end].iter().enumerate() {
        match op.kind {
            OpKind::Alloc => live = live.saturating_add(op.bytes),
            OpKind::Free | OpKind::FreeRequested => live = live.saturating_sub(op.bytes),
            OpKind::FreeCompleted | OpKind::SegmentFree => {}
        }
        if calls.contains(&at) {
            peak = peak.max(live);
        }
    }
    peak
}

fn rounded(op: &Op) -> u64 {
    rounded_bytes(op.bytes)
}

/// Rounds bytes as the default policy does.
pub(crate) fn rounded_bytes(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(ROUNDING).saturating_mul(ROUNDING)
}

/// Returns the first call of every whole step, and one past the last call of the last step. Other calls may lie between
/// two steps.
fn starts(program: &Program, calls: &[usize], step: &Step) -> Vec<usize> {
    let mut matcher = Matcher::new(step);
    let (mut starts, mut end) = (Vec::new(), 0);
    for (at, call) in calls.iter().enumerate() {
        let op = &program.ops[*call];
        if matcher.next(&(rounded(op), Stream(u32::from(op.stream)))) {
            end = at + 1;
            starts.push(calls[end - step.period()]);
        }
    }
    starts.push(calls.get(end).copied().unwrap_or(program.ops.len()));
    starts
}

/// Searches for a step in a sequence of calls. An allocation whose size varies from step to step may have any size.
///
/// If no size varies, this is the algorithm of Knuth, Morris and Pratt. A simpler search would be slow, because steps
/// with few sizes match themselves at nearly every position.
#[derive(Clone, Debug)]
pub(crate) struct Matcher {
    slots: Vec<Slot>,
    /// The length of the longest shorter prefix that each prefix of the step ends with. Empty if sizes vary.
    shorter: Vec<usize>,
    matched: usize,
    /// The matched calls, if sizes vary.
    recent: VecDeque<(u64, Stream)>,
    /// Comparisons that were earned and not yet used.
    credit: usize,
}

/// Number of comparisons that each call adds to the credit if sizes vary.
const EARNED: usize = 16;
/// The largest credit. A search begins with it.
const MOST_CREDIT: usize = 1 << 20;

/// Returns whether a call can be an allocation of the step.
fn suits(slot: &Slot, call: &(u64, Stream)) -> bool {
    slot.stream == call.1 && (slot.varies() || slot.bytes == call.0)
}

impl Matcher {
    pub(crate) fn new(step: &Step) -> Self {
        let mut matcher = Self {
            slots: step.slots.clone(),
            shorter: Vec::new(),
            matched: 0,
            recent: VecDeque::new(),
            credit: MOST_CREDIT,
        };
        if step.slots.iter().any(Slot::varies) {
            return matcher;
        }
        matcher.shorter = vec![0; step.slots.len()];
        for at in 1..step.slots.len() {
            let call = (step.slots[at].bytes, step.slots[at].stream);
            matcher.shorter[at] = matcher.longer(matcher.shorter[at - 1], &call);
        }
        matcher
    }

    /// Reads a call if sizes vary. Returns how many of the last calls match the beginning of the step. If the credit is
    /// used up, the search starts again at the next call.
    fn longer_of_recent(&mut self, call: &(u64, Stream)) -> usize {
        self.recent.push_back(*call);
        self.credit = (self.credit + EARNED).min(MOST_CREDIT);
        let mut fits = self.slots.get(self.matched).is_some_and(|slot| suits(slot, call));
        while !fits {
            self.recent.pop_front();
            let pairs = || self.recent.iter().zip(&self.slots);
            let alike = pairs()
                .take(self.credit)
                .take_while(|(call, slot)| suits(slot, call));
            let alike = alike.count();
            self.credit -= alike;
            if self.credit == 0 {
                self.recent.clear();
            }
            fits = alike >= self.recent.len();
        }
        self.recent.len()
    }

    fn longer(&self, mut matched: usize, call: &(u64, Stream)) -> usize {
        loop {
            if self.slots.get(matched).is_some_and(|slot| suits(slot, call)) {
                return matched + 1;
            }
            match matched.checked_sub(1) {
                Some(last) => matched = self.shorter[last],
                None => return 0,
            }
        }
    }

    /// Reads a call. Returns whether it completes a whole step that shares no call with the step found
    /// before.
    pub(crate) fn next(&mut self, call: &(u64, Stream)) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        self.matched = if self.shorter.is_empty() {
            self.longer_of_recent(call)
        } else {
            self.longer(self.matched, call)
        };
        let whole = self.matched == self.slots.len();
        if whole {
            self.matched = 0;
            self.recent.clear();
        }
        whole
    }
}

/// Returns whether the whole step occurs among the calls for which `planned` may follow it: the allocations outside
/// private pools. An allocation whose size varies may have any size.
pub(crate) fn occurs(program: &Program, step: &Step) -> bool {
    let calls = program
        .ops
        .iter()
        .filter(|op| op.kind == OpKind::Alloc && op.pool == 0);
    let mut matcher = Matcher::new(step);
    calls
        .map(|op| (rounded(op), Stream(u32::from(op.stream))))
        .any(|call| matcher.next(&call))
}

/// The cost of one step under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepResult {
    /// Position in the program of the step's first call. The first entry of the list contains all calls before
    /// the first repeating step.
    pub first_event: u64,
    /// The number of driver calls that allocate, free, move or map memory.
    pub driver_calls: u64,
    /// The number of driver calls that record events or wait for them, to order streams.
    pub event_calls: u64,
    /// Host time of the policy in nanoseconds per event. It varies from run to run.
    pub ns_per_event: f64,
}

/// Measures the cost of each step.
#[derive(Debug)]
pub struct StepClock {
    /// The numbers of calls after which a step ends, in order.
    ends: Vec<usize>,
    done: usize,
    seen: usize,
    from: (Calls, Instant, usize),
    /// The results so far.
    pub results: Vec<StepResult>,
}

impl StepClock {
    /// Creates a clock for a program with these steps.
    #[must_use]
    pub fn new(steps: Option<&Steps>) -> Self {
        Self {
            ends: steps
                .iter()
                .flat_map(|s| &s.starts)
                .copied()
                .filter(|end| *end > 0)
                .collect(),
            done: 0,
            seen: 0,
            from: (Calls::default(), Instant::now(), 0),
            results: Vec::new(),
        }
    }

    #[cold]
    fn end(&mut self, calls: &Calls) {
        let now = Instant::now();
        let (before, then, first) = self.from;
        let events = |c: &Calls| c.event_record + c.event_wait;
        let event_calls = events(calls) - events(&before);
        self.results.push(StepResult {
            first_event: first as u64,
            driver_calls: calls.total() - before.total() - event_calls,
            event_calls,
            ns_per_event: (now - then).as_nanos() as f64 / (self.seen - first).max(1) as f64,
        });
        self.done += 1;
        self.from = (*calls, Instant::now(), self.seen);
    }
}

impl<S: Source> Observer<S> for StepClock {
    #[inline]
    fn stepped(&mut self, _op: &Op, engine: &mut Engine<S>) {
        if self.seen == 0 {
            self.from.1 = Instant::now();
        }
        self.seen += 1;
        if self.ends.get(self.done) == Some(&self.seen) {
            self.end(&engine.meter().calls);
        }
    }
}

/// A plan that was solved for a policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Solved {
    /// The number of allocations in the step.
    pub allocations: u64,
    /// The most bytes of these allocations that live at once.
    pub lower_bound_bytes: u64,
    /// Bytes that the plan needs.
    pub plan_bytes: u64,
    /// Time to solve the plan on its own thread. It varies from run to run.
    pub solve_ms: f64,
    /// The part of this time for which the replay waited. A replay makes calls faster than the program
    /// itself.
    pub waited_ms: f64,
}

/// Solves plans on another thread. The position at which the policy waits for the plan depends only on the
/// calls. So the replay does not depend on the solving time.
#[derive(Debug, Default)]
pub struct Threaded {
    running: Option<JoinHandle<(Plan, Duration)>>,
    solved: Arc<Mutex<Vec<Solved>>>,
}

impl Threaded {
    /// Returns the plans solved so far. The list grows during the replay.
    #[must_use]
    pub fn solved(&self) -> Arc<Mutex<Vec<Solved>>> {
        Arc::clone(&self.solved)
    }
}

impl Planner for Threaded {
    fn start(&mut self, step: Step) {
        self.running = Some(std::thread::spawn(move || {
            let start = Instant::now();
            (solve(step), start.elapsed())
        }));
    }

    fn finish(&mut self) -> Option<Plan> {
        let start = Instant::now();
        let (plan, time) = self.running.take()?.join().ok()?;
        self.solved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Solved {
                allocations: plan.step.period() as u64,
                lower_bound_bytes: plan.lower_bound,
                plan_bytes: plan.height,
                solve_ms: time.as_secs_f64() * 1e3,
                waited_ms: start.elapsed().as_secs_f64() * 1e3,
            });
        Some(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Selection;
    use millpond_engine::plan::Slot;
    use millpond_trace::{ReadOptions, read_bytes};

    /// Returns a program that allocates blocks of these sizes in KiB, one after the other.
    fn program(sizes: &[u64]) -> Program {
        let lines = sizes
            .iter()
            .zip(1..)
            .map(|(kib, id)| format!("{id},alloc,{id},{},0,a\n", kib * 1024));
        let csv = format!(
            "time_us,action,id,bytes,stream,tag\n{}",
            lines.collect::<String>()
        );
        let recording = read_bytes(csv.as_bytes(), "made", &ReadOptions::default()).expect("valid");
        Program::new(&recording.traces[0], Selection::default()).expect("allocations")
    }

    fn step(sizes: &[u64]) -> Step {
        let slot = |kib: &u64| Slot {
            least: kib * 1024,
            bytes: kib * 1024,
            stream: Stream::DEFAULT,
            life: 1,
        };
        Step {
            slots: sizes.iter().map(slot).collect(),
        }
    }

    #[test]
    fn a_step_is_found_at_any_position() {
        // In the first case the match begins inside an attempt that fails later.
        let calls = program(&[1, 2, 1, 2, 1, 2, 3, 1, 1]);
        for there in [
            &[1, 2, 1, 2, 3][..],
            &[1],
            &[3, 1, 1],
            &[1, 2, 1, 2, 1, 2, 3, 1, 1],
        ] {
            assert!(occurs(&calls, &step(there)), "{there:?}");
        }
        for not in [
            &[][..],
            &[4],
            &[2, 2],
            &[1, 1, 1],
            &[1, 2, 1, 2, 1, 2, 3, 1, 1, 1],
        ] {
            assert!(!occurs(&calls, &step(not)), "{not:?}");
        }
    }

    #[test]
    fn an_allocation_that_varies_may_have_any_size() {
        let varying = |sizes: &[u64]| {
            let mut step = step(sizes);
            step.slots[1].least = 256;
            step
        };
        // The match begins inside an attempt that fails later.
        let calls = program(&[1, 9, 1, 9, 1, 7, 3]);
        assert!(occurs(&calls, &varying(&[1, 2, 1])));
        assert!(occurs(&calls, &varying(&[1, 2, 3])));
        assert!(!occurs(&calls, &varying(&[9, 2, 3])));
        assert!(!occurs(&calls, &varying(&[1, 2, 9, 3])));
    }

    #[test]
    fn steps_whose_sizes_vary_have_a_common_step() {
        let mut lines = String::from("time_us,action,id,bytes,stream,tag\n");
        let mut id = 0;
        for percent in [100, 60, 80, 100, 50, 90] {
            let first = id + 1;
            for at in 0..150 {
                id += 1;
                let bytes = if at % 3 == 0 {
                    40_960
                } else {
                    (at + 1) * 1024 * percent
                };
                lines += &format!("{id},alloc,{id},{bytes},0,a\n");
            }
            for freed in first..=id {
                lines += &format!("{id},free,{freed},,0,\n");
            }
        }
        let recording = read_bytes(lines.as_bytes(), "made", &ReadOptions::default()).expect("valid");
        let program = Program::new(&recording.traces[0], Selection::default()).expect("allocations");
        let steps = Steps::find(&program).expect("the shapes repeat");
        assert_eq!(steps.step.period(), 150);
        assert_eq!(steps.starts.len(), 7);
        let varying = steps.step.slots.iter().filter(|slot| slot.varies());
        assert!(varying.clone().all(|slot| slot.least * 2 <= slot.bytes + 512));
        assert_eq!(varying.count(), 100);
    }
}
