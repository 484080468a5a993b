//! Finds the steps of a recorded program: the steps that it names, or else the steps between repeated marks,
//! or else repeated sequences of allocations. If the program holds more after each repetition, the sequence must make up most of the
//! program, because a loop over layers grows too.

use super::Map;
use super::groups::{Groups, Lines};
use super::ledger::{Block, Ledger, Watch, walk};
use super::summary::Peak;
use super::{Window, shown};
use crate::steps::{Matcher, is_loop};
use millpond_engine::Stream;
use millpond_engine::plan::{Detector, Step};
use millpond_trace::history::{Flow, History, HistoryError};
use millpond_trace::recording::{Kind, Row, STATES};
use serde::Serialize;
use std::collections::VecDeque;

/// The most steps that are remembered. Further steps are only counted.
const MOST: usize = 1 << 16;
/// The fewest marks of one text that count as steps.
const LEAST_MARKS: usize = 3;
/// The fewest steps of a program that grows with each of them.
const LEAST_GROWING: usize = 4;
/// The most texts of marks that are distinguished.
const MOST_TEXTS: usize = 1 << 10;
/// The most pools whose allocations are searched for a pattern.
const POOLS: usize = 8;

/// The source of the steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepSource {
    /// The recording names them.
    Recorded,
    /// Marks of this text, which differ only in numbers.
    Marks(String),
    /// A repeated sequence of this many allocations.
    Pattern(u64),
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RecordedStep {
    /// The number of the step.
    pub number: u64,
    /// The time at which it begins.
    pub from: u64,
    /// The time at which it ends.
    pub to: u64,
    /// Its first row.
    pub first_row: u64,
    /// One past its last row.
    pub end_row: u64,
    /// Bytes that live at its beginning.
    pub begin_bytes: u64,
    /// The most bytes that live at once.
    pub peak: Peak,
    /// Bytes that were allocated in it and still live at its end.
    pub kept_bytes: u64,
    /// The number of allocations.
    pub allocations: u64,
}

/// The steps of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordedSteps {
    /// The source of the steps.
    pub source: StepSource,
    /// The steps in order.
    pub steps: Vec<RecordedStep>,
    /// The number of steps beyond those that are remembered.
    pub more: u64,
}

/// The beginning of a step.
#[derive(Clone, Copy)]
struct Begin {
    number: u64,
    row: u64,
    time: u64,
}

/// Finds the steps of a recording. Returns `None` if there are fewer than two. A sequence that repeats far
/// below the program's peak is a loop inside it and not a step.
///
/// # Errors
/// Returns an error if the recording can no longer be read.
pub fn recorded_steps(history: &History) -> Result<Option<RecordedSteps>, HistoryError> {
    let mut signs = Signs::read(history, Detector::new, false)?;
    if signs.is_without_steps() {
        signs = Signs::read(history, Detector::growing, true)?;
    }
    let end = (history.len, history.duration);
    let found = if signs.named.len() > 1 {
        Some((StepSource::Recorded, signs.named, end))
    } else if let Some((text, marks)) = signs.repeating_marks() {
        Some((StepSource::Marks(text), marks, end))
    } else if let Some((pool, step)) = signs.pattern {
        let period = step.period() as u64;
        let Occurrences { begins, end, after } = occurrences(history, pool, &step)?;
        let steps = begins.len() as u64 * period;
        let is_most = begins.len() >= LEAST_GROWING && steps >= after / 4 * 3;
        let is_enough = if signs.grows { is_most } else { begins.len() > 1 };
        is_enough.then_some((StepSource::Pattern(period), begins, end))
    } else {
        None
    };
    let Some((source, mut begins, end)) = found else {
        return Ok(None);
    };
    let more = begins.len().saturating_sub(MOST) as u64;
    let end = begins.get(MOST).map_or(end, |next| (next.row, next.time));
    begins.truncate(MOST);
    let (steps, most) = measure(history, &begins, end)?;
    let highest = steps.iter().map(|step| step.peak.bytes).max().unwrap_or(0);
    let of_loop = matches!(source, StepSource::Pattern(_)) && is_loop(highest.into(), most);
    Ok((!of_loop).then_some(RecordedSteps { source, steps, more }))
}

/// Everything in a recording that may indicate steps.
struct Signs {
    named: Vec<Begin>,
    marks: Map<String, Vec<Begin>>,
    pattern: Option<(u32, Step)>,
    /// Whether the pattern may grow. The last pattern is the one that counts then: before the second step, only the loops inside the
    /// first one repeat.
    grows: bool,
}

impl Signs {
    fn read(history: &History, detector: fn() -> Detector, grows: bool) -> Result<Self, HistoryError> {
        let mut signs = Self {
            named: Vec::new(),
            marks: Map::default(),
            pattern: None,
            grows,
        };
        let mut pools: Map<u32, Calls> = Map::default();
        let mut row_number = 0;
        history.walk(|row, text| {
            match row.kind {
                Kind::Step => signs.named.push(Begin {
                    number: row.bytes,
                    row: row_number,
                    time: row.time,
                }),
                Kind::Mark => signs.mark(text.unwrap_or_default(), row_number, row.time),
                Kind::Alloc | Kind::Free | Kind::FreeRequested
                    if signs.is_patternless() && (pools.len() < POOLS || pools.contains_key(&row.pool)) =>
                {
                    let calls = pools.entry(row.pool).or_insert_with(|| Calls {
                        detector: detector(),
                        numbers: Map::default(),
                    });
                    if let Some(step) = calls.note(row) {
                        signs.pattern = Some((row.pool, step));
                    }
                }
                _ => {}
            }
            row_number += 1;
            Flow::On
        })?;
        Ok(signs)
    }

    /// Returns whether a pattern is still needed. It is not needed if steps are named.
    fn is_patternless(&self) -> bool {
        (self.pattern.is_none() || self.grows) && self.named.len() < 2
    }

    /// Returns whether nothing indicates steps.
    fn is_without_steps(&self) -> bool {
        self.is_patternless() && self.repeating_marks().is_none()
    }

    fn mark(&mut self, text: &str, row: u64, time: u64) {
        if text.starts_with(STATES) {
            return;
        }
        let shape = without_digits(text);
        if self.marks.len() >= MOST_TEXTS && !self.marks.contains_key(&shape) {
            return;
        }
        let marks = self.marks.entry(shape).or_default();
        let number = marks.len() as u64;
        marks.push(Begin { number, row, time });
    }

    /// Returns the most frequent marks.
    fn repeating_marks(&self) -> Option<(String, Vec<Begin>)> {
        let often = self.marks.iter().filter(|(_, marks)| marks.len() >= LEAST_MARKS);
        let most = often.max_by(|a, b| a.1.len().cmp(&b.1.len()).then_with(|| b.0.cmp(a.0)));
        most.map(|(text, marks)| (text.clone(), marks.clone()))
    }
}

/// Returns `step 12` and `step 13` as `step #`.
fn without_digits(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if !c.is_ascii_digit() {
            out.push(c);
        } else if !out.ends_with('#') {
            out.push('#');
        }
    }
    out
}

/// The allocations of a pool, in the form that the detector needs.
struct Calls {
    detector: Detector,
    numbers: Map<u64, u64>,
}

impl Calls {
    fn note(&mut self, row: &Row) -> Option<Step> {
        let call = call(row);
        if row.kind != Kind::Alloc {
            if let Some(number) = self.numbers.remove(&row.id) {
                self.detector.freed(number, call.0);
            }
            return None;
        }
        let number = self.detector.allocated(call.0, call.1);
        self.numbers.insert(row.id, number);
        self.detector.found(1).map(|found| found.step)
    }
}

/// Calls are distinguished by size and stream. Larger sizes than any memory would overflow the detector's
/// sums, so they are limited.
fn call(row: &Row) -> (u64, Stream) {
    (
        crate::steps::rounded_bytes(row.bytes.min(1 << 40)),
        Stream(row.stream),
    )
}

/// The occurrences of a step.
struct Occurrences {
    begins: Vec<Begin>,
    /// The row and the time of the end of the last one.
    end: (u64, u64),
    /// The number of allocations of the pool from the first one on.
    after: u64,
}

/// Finds all occurrences of a step.
fn occurrences(history: &History, pool: u32, step: &Step) -> Result<Occurrences, HistoryError> {
    let mut matcher = Matcher::new(step);
    let mut recent: VecDeque<(u64, u64)> = VecDeque::with_capacity(step.period());
    let mut begins: Vec<Begin> = Vec::new();
    let mut end = None;
    let mut row_number = 0;
    let mut after = 0;
    history.walk(|row, _| {
        if row.kind == Kind::Alloc && row.pool == pool {
            after += u64::from(!begins.is_empty());
            end = end.or((!begins.is_empty()).then_some((row_number, row.time)));
            if recent.len() == step.period() {
                recent.pop_front();
            }
            recent.push_back((row_number, row.time));
            if matcher.next(&call(row)) {
                let number = begins.len() as u64;
                let first = recent.front().copied();
                if begins.is_empty() {
                    after = step.period() as u64;
                }
                begins.extend(first.map(|(row, time)| Begin { number, row, time }));
                end = None;
            }
        }
        row_number += 1;
        Flow::On
    })?;
    Ok(Occurrences {
        begins,
        end: end.unwrap_or((history.len, history.duration)),
        after,
    })
}

/// Returns the steps with their figures, and the most bytes that are held at any time.
fn measure(
    history: &History,
    begins: &[Begin],
    end: (u64, u64),
) -> Result<(Vec<RecordedStep>, u128), HistoryError> {
    let ends = begins
        .iter()
        .skip(1)
        .map(|next| (next.row, next.time))
        .chain([end]);
    let steps = begins.iter().zip(ends).map(|(begin, end)| RecordedStep {
        number: begin.number,
        from: begin.time,
        to: end.1,
        first_row: begin.row,
        end_row: end.0,
        begin_bytes: 0,
        peak: Peak::default(),
        kept_bytes: 0,
        allocations: 0,
    });
    let mut measuring = Measuring {
        steps: steps.collect(),
        ..Measuring::default()
    };
    let groups = Groups::new(&history.definitions, &history.definitions, Lines::Told);
    walk(history, groups, Window::ALL, &mut measuring)?;
    measuring.close();
    Ok((measuring.steps, measuring.most))
}

#[derive(Default)]
struct Measuring {
    steps: Vec<RecordedStep>,
    /// The index of the step after the current one.
    next: usize,
    /// Whether the last step has ended.
    is_past: bool,
    /// Bytes that live after the previous row.
    bytes: u128,
    /// The most bytes at any time.
    most: u128,
    peak: (u128, u64),
    kept: u128,
    allocations: u64,
}

impl Measuring {
    /// Handles a row that may be the first of a step.
    fn enter(&mut self, ledger: &Ledger<'_>) {
        while self
            .steps
            .get(self.next)
            .is_some_and(|step| step.first_row <= ledger.order)
        {
            self.close();
            let step = &mut self.steps[self.next];
            step.begin_bytes = shown(self.bytes);
            self.peak = (self.bytes, step.from);
            self.next += 1;
        }
        let last = self.steps.last().map_or(0, |step| step.end_row);
        if !self.is_past && self.next == self.steps.len() && ledger.order >= last {
            self.close();
            self.is_past = true;
        }
    }

    fn close(&mut self) {
        if self.is_past {
            return;
        }
        let open = self.next.checked_sub(1).and_then(|open| self.steps.get_mut(open));
        if let Some(step) = open {
            step.peak = Peak {
                bytes: shown(self.peak.0),
                time: self.peak.1,
            };
            step.kept_bytes = shown(self.kept);
            step.allocations = self.allocations;
        }
        (self.kept, self.allocations) = (0, 0);
    }

    fn first_row(&self) -> u64 {
        let open = self.next.checked_sub(1).and_then(|open| self.steps.get(open));
        open.map_or(u64::MAX, |step| step.first_row)
    }
}

impl Watch for Measuring {
    fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        self.enter(ledger);
        self.bytes = ledger.bytes;
        self.most = self.most.max(self.bytes);
        if self.bytes > self.peak.0 {
            self.peak = (self.bytes, ledger.time);
        }
        if block.is_event {
            self.kept += u128::from(block.bytes);
            self.allocations += 1;
        }
    }

    fn closed(&mut self, ledger: &Ledger<'_>, block: &Block, _: Option<&Row>) {
        self.enter(ledger);
        self.bytes = ledger.bytes;
        if block.is_event && block.order >= self.first_row() {
            self.kept = self.kept.saturating_sub(u128::from(block.bytes));
        }
    }

    fn row(&mut self, ledger: &Ledger<'_>, _: &Row, _: Option<&str>) {
        self.enter(ledger);
    }
}
