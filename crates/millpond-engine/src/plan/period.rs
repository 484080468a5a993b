//! Finding the step by itself.
//!
//! A program's allocations are read as a sequence of symbols (bytes, stream). Two things must hold before a stretch
//! of it counts as a step:
//!
//! - the sequence repeats: each allocation equals the one a *period* before it, for nearly a whole period. The last
//!   eighth is taken on trust, because the plan is wanted by the end of the second period and whoever follows
//!   it compares every allocation anyway;
//! - the program holds as much as a period ago. That tells a training step from the layers inside it: their
//!   allocations repeat as well, but each leaves its activations behind.
//!
//! Candidates come from a table of the last place of each run of [`GRAM`] symbols (a rolling hash, as in Karp and Rabin): a period is
//! tried until it fails, and then the next one is looked up. While the program is inside a loop the candidate is
//! the loop; where the loop ends only the step is left, and it stays. All of it is constant time per call.

use super::{Slot, Step};
use crate::block::Stream;

/// Symbols that must recur before their distance is tried as a period.
const GRAM: usize = 32;
/// Slots of the table of grams, a power of two; a newer gram takes the place of an older one.
const TABLE: usize = 1 << 15;
/// Allocations remembered.
const HISTORY: usize = 1 << 17;
/// The longest period, in allocations.
const LONGEST: usize = 1 << 15;
/// The shortest.
const SHORTEST: usize = 16;
/// Allocations that must have repeated, however short the period.
const LEAST_RUN: usize = 256;
/// Comparisons earned by each allocation.
const EARNED: usize = 8;
/// The multiplier of the rolling hash, odd.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// One allocation seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    bytes: u64,
    stream: Stream,
    /// Allocations from this one to its free; 0 while it lives.
    life: u32,
    /// Bytes that lived before it.
    before: u64,
}

/// A step that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The step, beginning where least lives.
    pub step: Step,
    /// Number of the allocation with which the next one begins.
    pub begins: u64,
    /// Bytes that live when it begins, of those seen.
    pub base: u64,
}

/// Watches a sequence of allocations and frees for a period.
#[derive(Clone, Debug)]
pub struct Detector {
    seen: Vec<Seen>,
    /// Number of the first allocation remembered.
    first: u64,
    live: u64,
    /// Hash of the last symbols.
    rolling: u64,
    /// Number of the last allocation of each gram, by its hash.
    grams: Vec<(u64, u64)>,
    /// The period on trial, and how many allocations in a row have kept it.
    period: usize,
    run: usize,
    /// The run at which to look again.
    again: usize,
    /// Comparisons earned and not spent.
    credit: usize,
    /// Numbers of the allocations before which the program said that a step begins: the last two times.
    marks: (u64, u64),
}

impl Default for Detector {
    fn default() -> Self {
        Self::new()
    }
}

fn symbol(bytes: u64, stream: Stream) -> u64 {
    let mixed = (bytes ^ u64::from(stream.0).rotate_left(40)).wrapping_mul(BASE);
    (mixed ^ mixed >> 29).wrapping_mul(BASE) | 1
}

/// `BASE` to the power of [`GRAM`].
const fn oldest_factor() -> u64 {
    let (mut factor, mut n) = (1u64, 0);
    while n < GRAM {
        factor = factor.wrapping_mul(BASE);
        n += 1;
    }
    factor
}

impl Detector {
    /// Nothing seen yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            seen: Vec::new(),
            first: 0,
            live: 0,
            rolling: 0,
            grams: Vec::new(),
            period: 0,
            run: 0,
            again: 0,
            credit: 0,
            marks: (0, 0),
        }
    }

    /// Number of the next allocation.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first + self.seen.len() as u64
    }

    /// Bytes that live, of those seen.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Notes an allocation; answers its number.
    pub fn allocated(&mut self, bytes: u64, stream: Stream) -> u64 {
        if self.seen.len() >= HISTORY {
            self.seen.drain(..HISTORY / 2);
            self.first += (HISTORY / 2) as u64;
        }
        let number = self.next();
        self.seen.push(Seen {
            bytes,
            stream,
            life: 0,
            before: self.live,
        });
        self.live += bytes;
        self.credit = (self.credit + EARNED).min(LONGEST);
        self.roll();
        if self.period > 0 && self.repeats(self.seen.len() - 1, self.period) {
            self.run += 1;
        } else {
            self.try_another();
        }
        self.remember(number);
        number
    }

    /// Notes the free of an allocation by its number.
    pub fn freed(&mut self, number: u64, bytes: u64) {
        self.live = self.live.saturating_sub(bytes);
        let next = self.next();
        if let Some(seen) = number
            .checked_sub(self.first)
            .and_then(|at| self.seen.get_mut(at as usize))
        {
            seen.life = u32::try_from(next - number).unwrap_or(u32::MAX);
        }
    }

    /// Whether the period on trial still holds; it is looked at in constant time.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.period > 0
    }

    /// The period on trial, and how many allocations in a row have kept it.
    #[must_use]
    pub fn on_trial(&self) -> (usize, usize) {
        (self.period, self.run)
    }

    /// The step, once it has repeated `times` times beside the first.
    pub fn found(&mut self, times: u32) -> Option<Found> {
        let period = self.period;
        let wanted = (period * times.max(1) as usize - period / 8).max(LEAST_RUN);
        if period < SHORTEST || self.run < wanted.max(self.again) {
            return None;
        }
        // Looking costs a whole period: not at every call.
        self.again = self.run + period / 16 + 1;
        let end = self.seen.len();
        let last = &self.seen[end - period..];
        let (low, high) = last.iter().fold((u64::MAX, 0), |(low, high), s| {
            (low.min(s.before), high.max(s.before + s.bytes))
        });
        let span = high - low;
        let now = &self.seen[end - 1];
        let then = &self.seen[end - 1 - period];
        if now.before.abs_diff(then.before) > span / 1024 {
            return None;
        }
        // A loop far below the program's peak is not its step.
        let before = &self.seen[end.saturating_sub(8 * period)..];
        let peak = before.iter().map(|s| s.before + s.bytes).max().unwrap_or(0);
        if high < peak / 4 * 3 {
            return None;
        }
        let begins = (0..period).find(|&at| last[at].before <= low + span / 1024)?;
        Some(Found {
            step: self.step(end - period + begins),
            begins: self.first + (end + begins) as u64,
            base: last[begins].before,
        })
    }

    /// The period that begins `self.period` before the allocation at `from + period`, which is yet to come.
    fn step(&self, from: usize) -> Step {
        let period = self.period;
        let slots = (from..from + period).map(|at| {
            // What has not come yet was seen one period ago.
            let at = if at < self.seen.len() { at } else { at - period };
            let seen = &self.seen[at];
            let twin = at
                .checked_sub(period)
                .filter(|_| at + self.run >= self.seen.len());
            let twin = twin.map_or(0, |t| self.seen[t].life);
            let life = if seen.life == 0 && (twin as usize) < self.seen.len() - at {
                // Lives longer than a period ago, or for good.
                0
            } else {
                seen.life.max(twin)
            };
            let planned = life as usize <= period;
            Slot {
                bytes: seen.bytes,
                stream: seen.stream,
                life: if planned { life } else { 0 },
            }
        });
        Step {
            slots: slots.collect(),
        }
    }

    /// Whether the last allocations are those at the end of a step that was followed before; constant time where
    /// they are not.
    #[must_use]
    pub fn ends_like(&self, step: &Step, gram: u64) -> bool {
        self.ends_in(step, gram, LEAST_RUN)
    }

    /// Whether the whole step has just been seen. The end of a step that was never followed is not enough: where a
    /// step repeats a part within itself, its end is seen earlier as well.
    #[must_use]
    pub fn ends_with(&self, step: &Step, gram: u64) -> bool {
        self.ends_in(step, gram, step.period())
    }

    /// Whether the last allocations are the last `most` of a step.
    fn ends_in(&self, step: &Step, gram: u64, most: usize) -> bool {
        let slots = &step.slots[step.period().saturating_sub(most)..];
        self.rolling == gram
            && self.seen.len() >= slots.len()
            && (self.seen.iter().rev().zip(slots.iter().rev()))
                .all(|(seen, slot)| seen.bytes == slot.bytes && seen.stream == slot.stream)
    }

    /// The hash by which [`ends_like`](Self::ends_like) knows the end of a step; none where it is too short.
    #[must_use]
    pub fn end_gram(step: &Step) -> Option<u64> {
        let last = &step.slots[step.period().checked_sub(GRAM.max(SHORTEST))?..];
        Some(last.iter().fold(0u64, |hash, slot| {
            hash.wrapping_mul(BASE)
                .wrapping_add(symbol(slot.bytes, slot.stream))
        }))
    }

    /// Notes that a step begins here by the program's own word; answers the one before if it repeated the one
    /// before that.
    pub fn mark(&mut self) -> Option<Found> {
        let here = self.next();
        let (then, before) = self.marks;
        self.marks = (here, then);
        let period = (here - then) as usize;
        let even = then - before == period as u64 && 0 < period && period <= LONGEST;
        if !even || before < self.first {
            return None;
        }
        let end = self.seen.len();
        if !(end - period..end).all(|at| self.repeats(at, period)) {
            return None;
        }
        (self.period, self.run, self.again) = (period, period, 0);
        Some(Found {
            step: self.step(end - period),
            begins: here,
            base: self.live,
        })
    }

    fn repeats(&self, at: usize, period: usize) -> bool {
        let Some(before) = at.checked_sub(period) else {
            return false;
        };
        let (a, b) = (&self.seen[at], &self.seen[before]);
        a.bytes == b.bytes && a.stream == b.stream
    }

    fn roll(&mut self) {
        let last = self.seen.len() - 1;
        let of = |seen: &Seen| symbol(seen.bytes, seen.stream);
        self.rolling = self.rolling.wrapping_mul(BASE).wrapping_add(of(&self.seen[last]));
        if let Some(oldest) = last.checked_sub(GRAM) {
            const FACTOR: u64 = oldest_factor();
            self.rolling = self
                .rolling
                .wrapping_sub(of(&self.seen[oldest]).wrapping_mul(FACTOR));
        }
    }

    fn entry(&self) -> usize {
        (self.rolling.wrapping_mul(BASE) >> 40) as usize % TABLE
    }

    fn try_another(&mut self) {
        (self.period, self.run, self.again) = (0, 0, 0);
        let end = self.seen.len();
        let Some(&(hash, number)) = self.grams.get(self.entry()) else {
            return;
        };
        let last = number.checked_sub(self.first).filter(|last| *last < end as u64);
        let Some(last) = last else { return };
        let period = end - 1 - last as usize;
        if hash != self.rolling || period == 0 || period > LONGEST || end < GRAM {
            return;
        }
        // Looking back over a whole period pays only now and then: each call earns a few comparisons.
        let most = end.min(period).min(LEAST_RUN + self.credit);
        let run = (0..most)
            .take_while(|back| self.repeats(end - 1 - back, period))
            .count();
        self.credit -= run.min(self.credit);
        if run >= GRAM.min(period) {
            (self.period, self.run) = (period, run);
        }
    }

    fn remember(&mut self, number: u64) {
        if self.grams.is_empty() {
            self.grams = vec![(0, u64::MAX); TABLE];
        }
        let entry = self.entry();
        self.grams[entry] = (self.rolling, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A training step: `layers` layers that keep an activation each, then give them back in turn.
    fn train(layers: u64, detector: &mut Detector, factor: u64) -> Vec<Found> {
        let mut found = Vec::new();
        let mut kept = Vec::new();
        let mut call = |detector: &mut Detector, bytes: u64| {
            let number = detector.allocated(bytes, Stream::DEFAULT);
            found.extend(detector.found(1));
            number
        };
        for _ in 0..layers {
            for bytes in [512, 1024, 768 * factor] {
                let scratch = call(detector, bytes);
                kept.push((call(detector, 4096), 4096));
                detector.freed(scratch, bytes);
            }
        }
        let last = call(detector, 2048);
        while let Some((number, bytes)) = kept.pop() {
            let gradient = call(detector, 1280);
            detector.freed(number, bytes);
            detector.freed(gradient, 1280);
        }
        detector.freed(last, 2048);
        found
    }

    #[test]
    fn the_second_step_is_known_before_its_end_and_the_layers_are_not_taken_for_it() {
        let mut detector = Detector::new();
        let persistent: Vec<u64> = (0..40).map(|n| detector.allocated(n * 4096, Stream(0))).collect();
        assert!(train(60, &mut detector, 1).is_empty());
        let found = train(60, &mut detector, 1);
        let first = found.first().expect("found in the second step");
        let period = 60 * 9 + 1;
        assert_eq!(first.step.period(), period);
        assert_eq!(
            (first.begins - persistent.len() as u64) % period as u64,
            0,
            "where least lives"
        );
        assert!(first.step.slots.iter().all(Slot::is_planned));
        assert_eq!(first.step.lower_bound(), 180 * 4096 + 2048 + 1280);
    }

    #[test]
    fn a_step_that_differs_each_time_is_none() {
        let mut detector = Detector::new();
        for step in 0..20 {
            assert!(train(60, &mut detector, 1 + step).is_empty(), "step {step}");
        }
    }

    #[test]
    fn one_odd_step_delays_and_does_not_mislead() {
        let mut detector = Detector::new();
        train(60, &mut detector, 1);
        assert!(train(60, &mut detector, 2).is_empty());
        assert!(train(60, &mut detector, 1).is_empty());
        let found = train(60, &mut detector, 1);
        assert_eq!(found.first().map(|f| f.step.period()), Some(60 * 9 + 1));
    }

    #[test]
    fn what_outlives_the_step_has_no_place_and_what_crosses_its_end_has_one() {
        let mut detector = Detector::new();
        let mut crossing = None;
        let mut all = Vec::new();
        for _ in 0..4 {
            // Held for ever, a few bytes in each step.
            detector.allocated(256, Stream(3));
            let next = detector.allocated(7 * 4096, Stream::DEFAULT);
            if let Some(crossing) = crossing.replace(next) {
                detector.freed(crossing, 7 * 4096);
            }
            all = train(60, &mut detector, 1);
        }
        let step = &all.last().expect("found").step;
        let of = |stream: u32, bytes: u64| {
            let mut slots = step
                .slots
                .iter()
                .filter(|s| s.stream == Stream(stream) && s.bytes == bytes);
            slots.next().map(|s| s.life)
        };
        assert_eq!(of(3, 256), Some(0));
        assert_eq!(
            of(0, 7 * 4096),
            Some(0),
            "freed just after the next one came: longer than a period"
        );
    }

    #[test]
    fn history_is_bounded() {
        let mut detector = Detector::new();
        for n in 0..(3 * HISTORY as u64) {
            let number = detector.allocated(n * 256, Stream::DEFAULT);
            detector.freed(number, n * 256);
        }
        assert!(detector.seen.len() <= HISTORY && detector.next() == 3 * HISTORY as u64);
    }
}
