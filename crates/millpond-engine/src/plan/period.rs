//! Finds the repeating step of a program.
//!
//! Each allocation has a *size* (bytes and stream) and a *shape* (stream, and the ages of the blocks that were freed
//! since the previous allocation). The sizes repeat even if frees come early or late, and the shapes repeat even if a
//! batch of another length changes the sizes. A part of the sequence is a step if two conditions hold:
//!
//! - The sequence repeats, either by sizes or by shapes. By sizes, each allocation has the size of the one a *period*
//!   before it, for nearly a whole period. The last eighth is not checked, because the plan is needed by the end of the
//!   second period. The code that follows the plan compares every allocation anyway. By shapes, each allocation has the
//!   shape of the one a period before it, for nearly two periods.
//! - The program holds as much as one period ago. If the sizes repeat, it holds as many bytes. If the shapes repeat, it
//!   holds as many blocks, and its fewest bytes within the period are the same as in the period before. This
//!   distinguishes a training step from the layers inside it. The allocations of a layer repeat as well, but each layer
//!   keeps its activations. For [growing](Detector::growing) steps it may hold more, by up to a quarter of the
//!   period's span.
//!
//! Candidates come from a table with the last position of each run of [`GRAM`] sizes or shapes (a rolling hash, as in
//! Karp and Rabin). For sizes and for shapes, a period is tried until it fails, and then the next candidate is looked up.
//! While the program is inside a loop, the candidate is the loop. At the end of the loop that candidate fails, so only
//! the step remains. Each call takes constant time.

use super::{Slot, Step};
use crate::block::Stream;

/// Number of symbols that must recur before their distance is tried as a period.
const GRAM: usize = 32;
/// Slots of the table of grams, a power of two. A newer gram replaces an older one.
const TABLE: usize = 1 << 16;
/// Number of allocations remembered.
const HISTORY: usize = 1 << 17;
/// The longest period, in allocations.
const LONGEST: usize = 1 << 15;
/// The shortest period, in allocations.
const SHORTEST: usize = 16;
/// Number of allocations that must have repeated, however short the period.
const LEAST_RUN: usize = 256;
/// Number of comparisons that each allocation adds to the credit.
const EARNED: usize = 8;
/// The multiplier of the rolling hash, odd.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// A recorded allocation.
#[derive(Clone, Copy, Debug)]
struct Seen {
    bytes: u64,
    stream: Stream,
    /// Number of allocations from this one to its free, or 0 while it lives.
    life: u32,
    /// The sum of the hashed ages of the blocks that were freed since the previous allocation.
    ages: u64,
    /// Bytes and blocks that were live before it.
    before: u64,
    blocks: u32,
}

/// A step that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The step. It begins at the point where the fewest bytes are live.
    pub step: Step,
    /// Number of the allocation with which the next step begins.
    pub begins: u64,
    /// Recorded bytes that are live when it begins.
    pub base: u64,
}

/// Detects a period in a sequence of allocations and frees.
#[derive(Clone, Debug)]
pub struct Detector {
    seen: Vec<Seen>,
    /// Number of the first allocation remembered.
    first: u64,
    live: u64,
    blocks: u32,
    /// The ages of the blocks that were freed since the last allocation.
    ages: u64,
    /// Hashes of the last sizes and of the last shapes.
    rolling: [u64; 2],
    /// Number of the last allocation of each gram, by its hash.
    grams: Vec<(u64, u64)>,
    /// The periods on trial, by sizes and by shapes.
    trials: [Trial; 2],
    /// The symbols by which a step was found last.
    leading: Symbol,
    /// Comparisons that were earned and not yet used.
    credit: usize,
    /// Numbers of the allocations at the program's last two step marks.
    marks: (u64, u64),
    /// The divisor of a period's span. The quotient is the number of bytes by which the program may grow in a period.
    growth: u64,
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

/// The property of an allocation that is compared with the allocation one period before.
#[derive(Clone, Copy, Debug)]
enum Symbol {
    Size,
    Shape,
}

const SYMBOLS: [Symbol; 2] = [Symbol::Size, Symbol::Shape];

/// A period on trial.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    period: usize,
    /// Number of allocations in a row that match it.
    run: usize,
    /// The run at which to check again.
    again: usize,
}

impl Seen {
    fn hash(&self, of: Symbol) -> u64 {
        match of {
            Symbol::Size => symbol(self.bytes, self.stream),
            Symbol::Shape => symbol(!self.ages, self.stream),
        }
    }

    fn is_like(&self, other: &Self, in_what: Symbol) -> bool {
        self.stream == other.stream
            && match in_what {
                Symbol::Size => self.bytes == other.bytes,
                Symbol::Shape => self.ages == other.ages,
            }
    }
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
    /// Creates a detector that has recorded nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::with_growth(1024)
    }

    /// Creates a detector that also finds steps after which the program holds more than before, as a program with a leak does. A loop
    /// over layers can look the same, so the caller must check that the steps reach over most of the program.
    #[must_use]
    pub fn growing() -> Self {
        Self::with_growth(4)
    }

    fn with_growth(growth: u64) -> Self {
        Self {
            seen: Vec::new(),
            first: 0,
            live: 0,
            blocks: 0,
            ages: 0,
            rolling: [0; 2],
            grams: Vec::new(),
            trials: [Trial::default(); 2],
            leading: Symbol::Size,
            credit: 0,
            marks: (0, 0),
            growth,
        }
    }

    /// Returns the number of the next allocation.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first + self.seen.len() as u64
    }

    /// Returns the recorded bytes that are live.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Records an allocation. Returns its number.
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
            ages: std::mem::take(&mut self.ages),
            before: self.live,
            blocks: self.blocks,
        });
        self.live += bytes;
        self.blocks += 1;
        self.credit = (self.credit + EARNED).min(LONGEST);
        for of in SYMBOLS {
            self.roll(of);
            let period = self.trials[of as usize].period;
            if period > 0 && self.repeats(self.seen.len() - 1, period, of) {
                self.trials[of as usize].run += 1;
            } else {
                self.try_another(of);
            }
        }
        self.remember(number);
        number
    }

    /// Records the free of an allocation, given by its number.
    pub fn freed(&mut self, number: u64, bytes: u64) {
        self.live = self.live.saturating_sub(bytes);
        self.blocks = self.blocks.saturating_sub(1);
        let next = self.next();
        // A block that is older than any period belongs to no step.
        if next - number <= LONGEST as u64 {
            self.ages = self.ages.wrapping_add(symbol(next - number, Stream::DEFAULT));
        }
        if let Some(seen) = number
            .checked_sub(self.first)
            .and_then(|at| self.seen.get_mut(at as usize))
        {
            seen.life = u32::try_from(next - number).unwrap_or(u32::MAX);
        }
    }

    /// Returns whether the period of the step that was found last is still on trial, in constant time.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.trials[self.leading as usize].period > 0
    }

    /// Returns the step if it has repeated at least `times` times after its first occurrence.
    pub fn found(&mut self, times: u32) -> Option<Found> {
        SYMBOLS
            .into_iter()
            .find_map(|of| self.found_by(of, times as usize))
    }

    fn found_by(&mut self, of: Symbol, times: usize) -> Option<Found> {
        let Trial { period, run, again } = self.trials[of as usize];
        let times = match of {
            Symbol::Size => times.max(1),
            Symbol::Shape => times.max(1) + 1,
        };
        let wanted = (period * times - period / 8).max(LEAST_RUN);
        let end = self.seen.len();
        if period < SHORTEST || run < wanted.max(again) {
            return None;
        }
        // A check costs a whole period, so it does not run at every call.
        self.trials[of as usize].again = run + period / 16 + 1;
        let last = &self.seen[end - period..];
        let (low, high) = last.iter().fold((u64::MAX, 0), |(low, high), s| {
            (low.min(s.before), high.max(s.before + s.bytes))
        });
        let span = high - low;
        let (now, then) = (&self.seen[end - 1], &self.seen[end - 1 - period]);
        let holds_as_much = match of {
            Symbol::Size => {
                now.before <= then.before + span / self.growth && then.before <= now.before + span / 1024
            }
            Symbol::Shape => {
                let before = &self.seen[end.saturating_sub(2 * period)..end - period];
                let before = before.iter().map(|s| s.before).min().unwrap_or(0);
                now.blocks == then.blocks && low.abs_diff(before) <= span / 1024
            }
        };
        if !holds_as_much {
            return None;
        }
        // A loop far below the program's peak is not its step.
        let before = &self.seen[end.saturating_sub(8 * period)..];
        let peak = before.iter().map(|s| s.before + s.bytes).max().unwrap_or(0);
        if high < peak / 4 * 3 {
            return None;
        }
        let begins = (0..period).find(|&at| last[at].before <= low + span / 1024)?;
        let base = last[begins].before;
        self.leading = of;
        Some(Found {
            step: self.step(end - period + begins),
            begins: self.first + (end + begins) as u64,
            base,
        })
    }

    /// Returns the step of the leading trial that begins at index `from`. Its last allocations may lie in the future.
    fn step(&self, from: usize) -> Step {
        let Trial { period, run, .. } = self.trials[self.leading as usize];
        let slots = (from..from + period).map(|at| {
            // An allocation that lies in the future was recorded one period ago.
            let at = if at < self.seen.len() { at } else { at - period };
            let seen = &self.seen[at];
            let twin_of = |at: &usize| at.checked_sub(period).filter(|_| at + run >= self.seen.len());
            let twin_life = twin_of(&at).map_or(0, |twin| self.seen[twin].life);
            let life = if seen.life == 0 && (twin_life as usize) < self.seen.len() - at {
                // It lives longer than it did one period ago, or for ever.
                0
            } else {
                seen.life.max(twin_life)
            };
            let planned = life as usize <= period;
            let same = std::iter::successors(Some(at), twin_of).map(|at| self.seen[at].bytes);
            let (least, bytes) = same.fold((seen.bytes, seen.bytes), |(least, most), bytes| {
                (least.min(bytes), most.max(bytes))
            });
            Slot {
                least,
                bytes,
                stream: seen.stream,
                life: if planned { life } else { 0 },
            }
        });
        Step {
            slots: slots.collect(),
        }
    }

    /// Returns whether the last allocations match the end of a step that was followed before. If they do not match,
    /// this takes constant time.
    #[must_use]
    pub fn ends_like(&self, step: &Step, gram: u64) -> bool {
        self.ends_in(step, gram, LEAST_RUN)
    }

    /// Returns whether the whole step has just been recorded. The end of the step is not enough for a step that was
    /// never followed: if a step repeats a part of itself, its end occurs earlier as well.
    #[must_use]
    pub fn ends_with(&self, step: &Step, gram: u64) -> bool {
        self.ends_in(step, gram, step.period())
    }

    /// Returns whether the last allocations match the last `most` of a step.
    fn ends_in(&self, step: &Step, gram: u64, most: usize) -> bool {
        let slots = &step.slots[step.period().saturating_sub(most)..];
        self.rolling[Symbol::Size as usize] == gram
            && self.seen.len() >= slots.len()
            && (self.seen.iter().rev().zip(slots.iter().rev()))
                .all(|(seen, slot)| slot.admits(seen.bytes, seen.stream))
    }

    /// Returns the hash by which [`ends_like`](Self::ends_like) recognises the end of a step, or `None` if the step is
    /// too short or if sizes at its end vary.
    #[must_use]
    pub fn end_gram(step: &Step) -> Option<u64> {
        let last = &step.slots[step.period().checked_sub(GRAM.max(SHORTEST))?..];
        if last.iter().any(Slot::varies) {
            return None;
        }
        Some(last.iter().fold(0u64, |hash, slot| {
            hash.wrapping_mul(BASE)
                .wrapping_add(symbol(slot.bytes, slot.stream))
        }))
    }

    /// Records that the program marks the start of a step here. Returns the previous step if it repeated the one before
    /// it.
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
        let of = SYMBOLS
            .into_iter()
            .find(|of| (end - period..end).all(|at| self.repeats(at, period, *of)))?;
        self.leading = of;
        self.trials[of as usize] = Trial {
            period,
            run: period,
            again: 0,
        };
        Some(Found {
            step: self.step(end - period),
            begins: here,
            base: self.live,
        })
    }

    fn repeats(&self, at: usize, period: usize, of: Symbol) -> bool {
        let before = at.checked_sub(period);
        before.is_some_and(|before| self.seen[at].is_like(&self.seen[before], of))
    }

    /// Adds the newest symbol to the hash of the last ones, and removes the oldest one.
    fn roll(&mut self, of: Symbol) {
        const FACTOR: u64 = oldest_factor();
        let last = self.seen.len() - 1;
        let oldest = last.checked_sub(GRAM).map_or(0, |at| self.seen[at].hash(of));
        let rolling = &mut self.rolling[of as usize];
        *rolling = rolling
            .wrapping_mul(BASE)
            .wrapping_add(self.seen[last].hash(of))
            .wrapping_sub(oldest.wrapping_mul(FACTOR));
    }

    fn entry(hash: u64) -> usize {
        (hash.wrapping_mul(BASE) >> 40) as usize % TABLE
    }

    fn try_another(&mut self, of: Symbol) {
        self.trials[of as usize] = Trial::default();
        let end = self.seen.len();
        let gram = self.rolling[of as usize];
        let Some(&(hash, number)) = self.grams.get(Self::entry(gram)) else {
            return;
        };
        let last = number.checked_sub(self.first).filter(|last| *last < end as u64);
        let Some(last) = last else { return };
        let period = end - 1 - last as usize;
        if hash != gram || period == 0 || period > LONGEST || end < GRAM {
            return;
        }
        // A comparison over a whole period is expensive, so each call earns only a few comparisons.
        let most = end.min(period).min(LEAST_RUN + self.credit);
        let run = (0..most)
            .take_while(|back| self.repeats(end - 1 - back, period, of))
            .count();
        self.credit -= run.min(self.credit);
        if run >= GRAM.min(period) {
            let trial = &mut self.trials[of as usize];
            (trial.period, trial.run) = (period, run);
        }
    }

    fn remember(&mut self, number: u64) {
        if self.grams.is_empty() {
            self.grams = vec![(0, u64::MAX); TABLE];
        }
        for hash in self.rolling {
            self.grams[Self::entry(hash)] = (hash, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a training step with `layers` layers. Each layer keeps an activation, and the activations are freed at the
    /// end.
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
    fn the_step_and_not_a_layer_is_found_before_its_second_occurrence_ends() {
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
    fn a_step_whose_sizes_change_is_found_with_its_range_of_sizes() {
        let mut detector = Detector::new();
        let found = (1..6)
            .flat_map(|factor| train(60, &mut detector, factor))
            .collect::<Vec<_>>();
        let step = &found.first().expect("the shapes repeat").step;
        assert_eq!(step.period(), 60 * 9 + 1);
        let varying: Vec<&Slot> = step.slots.iter().filter(|slot| slot.varies()).collect();
        assert_eq!(varying.len(), 60);
        assert!(
            varying
                .iter()
                .all(|slot| slot.least >= 768 && slot.bytes <= 5 * 768)
        );
    }

    /// Each round frees a block and keeps a smaller one. The number of live blocks is the same after each round, but the
    /// program holds less and less.
    #[test]
    fn a_loop_that_frees_more_than_it_keeps_is_no_step() {
        let run = |shrinks: u64| {
            let mut detector = Detector::new();
            let mut kept = std::collections::VecDeque::new();
            let mut found = false;
            for n in 0..100 {
                for at in 0..24 {
                    let bytes = 4096 * (1 + at + n % 7);
                    let scratch = detector.allocated(bytes, Stream::DEFAULT);
                    found |= detector.found(1).is_some();
                    detector.freed(scratch, bytes);
                }
                if kept.len() == 16
                    && let Some((block, bytes)) = kept.pop_front()
                {
                    detector.freed(block, bytes);
                }
                let bytes = 4096 * (1000 - shrinks * n);
                kept.push_back((detector.allocated(bytes, Stream::DEFAULT), bytes));
                found |= detector.found(1).is_some();
            }
            found
        };
        assert!(run(0), "the same loop repeats if it keeps as much as it frees");
        assert!(!run(1));
    }

    /// Frees come at other times in each step, and the sizes repeat.
    #[test]
    fn late_frees_do_not_hide_a_step() {
        let mut detector = Detector::new();
        let mut found = None;
        for step in 0..3u64 {
            let mut late = Vec::new();
            for at in 0..300u64 {
                let bytes = 256 * (1 + at);
                late.push((detector.allocated(bytes, Stream::DEFAULT), bytes));
                found = found.or_else(|| detector.found(1));
                if (at * 7 + step) % 3 == 0 {
                    late.drain(..)
                        .for_each(|(number, bytes)| detector.freed(number, bytes));
                }
            }
            late.drain(..)
                .for_each(|(number, bytes)| detector.freed(number, bytes));
        }
        assert_eq!(found.map(|found| found.step.period()), Some(300));
    }

    #[test]
    fn a_step_of_another_length_only_delays_the_detection() {
        let mut detector = Detector::new();
        train(60, &mut detector, 1);
        assert!(train(31, &mut detector, 1).is_empty());
        assert!(train(60, &mut detector, 1).is_empty());
        let found = train(60, &mut detector, 1);
        assert_eq!(found.first().map(|f| f.step.period()), Some(60 * 9 + 1));
    }

    #[test]
    fn blocks_that_live_longer_than_a_period_have_no_place() {
        let mut detector = Detector::new();
        let mut crossing = None;
        let mut all = Vec::new();
        for _ in 0..4 {
            // Each step allocates a few bytes that are never freed.
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

    /// Each step leaves a block behind. The next steps begin with more live bytes.
    #[test]
    fn a_step_that_leaks_is_found_only_if_growth_is_allowed() {
        let run = |mut detector: Detector, leak: u64| {
            let mut found = None;
            for _ in 0..4 {
                found = train(60, &mut detector, 1).pop().or(found);
                detector.allocated(leak, Stream::DEFAULT);
                found = detector.found(1).or(found);
            }
            found.map(|found| found.step.period())
        };
        // A step holds 180 activations of 4 KiB.
        assert_eq!(run(Detector::new(), 100 << 10), None);
        assert_eq!(run(Detector::growing(), 100 << 10), Some(60 * 9 + 2));
        assert_eq!(run(Detector::growing(), 400 << 10), None);
        // The layers of a forward pass are no steps.
        let mut detector = Detector::growing();
        assert!(train(200, &mut detector, 1).is_empty());
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
