//! The steps of a recorded program: those it names, else those between marks that repeat, else those its allocations repeat.

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

/// Steps remembered; more are counted only.
const MOST: usize = 1 << 16;
/// Marks of one text that make steps.
const LEAST_MARKS: usize = 3;
/// Texts of marks told apart.
const MOST_TEXTS: usize = 1 << 10;
/// Pools whose allocations are looked at for a pattern.
const POOLS: usize = 8;

/// How steps are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepSource {
    /// The recording names them.
    Recorded,
    /// Marks of this text, in which numbers differ.
    Marks(String),
    /// So many allocations that repeat.
    Pattern(u64),
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RecordedStep {
    /// Its number.
    pub number: u64,
    /// When it begins.
    pub from: u64,
    /// When it ends.
    pub to: u64,
    /// The row with which it begins.
    pub first_row: u64,
    /// One past its last row.
    pub end_row: u64,
    /// Bytes that live when it begins.
    pub begin_bytes: u64,
    /// When most lives.
    pub peak: Peak,
    /// Bytes that were handed out in it and live when it ends.
    pub kept_bytes: u64,
    /// Allocations.
    pub allocations: u64,
}

/// The steps of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordedSteps {
    /// How they are known.
    pub source: StepSource,
    /// These, in order.
    pub steps: Vec<RecordedStep>,
    /// Steps beyond those that are remembered.
    pub more: u64,
}

/// Where a step begins.
#[derive(Clone, Copy)]
struct Begin {
    number: u64,
    row: u64,
    time: u64,
}

/// Finds the steps of a recording; none where there are fewer than two. What repeats far below the program's peak is a loop in it, and
/// not its step.
///
/// # Errors
/// The recording cannot be walked any more.
pub fn recorded_steps(history: &History) -> Result<Option<RecordedSteps>, HistoryError> {
    let signs = Signs::read(history)?;
    let end = (history.len, history.duration);
    let found = if signs.named.len() > 1 {
        Some((StepSource::Recorded, signs.named, end))
    } else if let Some((text, marks)) = signs.repeating_marks() {
        Some((StepSource::Marks(text), marks, end))
    } else if let Some((pool, step)) = signs.pattern {
        let period = step.period() as u64;
        let (begins, end) = occurrences(history, pool, &step)?;
        (begins.len() > 1).then_some((StepSource::Pattern(period), begins, end))
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

/// All in a recording that tells of steps.
#[derive(Default)]
struct Signs {
    named: Vec<Begin>,
    marks: Map<String, Vec<Begin>>,
    pattern: Option<(u32, Step)>,
}

impl Signs {
    fn read(history: &History) -> Result<Self, HistoryError> {
        let mut signs = Self::default();
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
                    let found = pools.entry(row.pool).or_default().note(row);
                    signs.pattern = found.map(|step| (row.pool, step));
                }
                _ => {}
            }
            row_number += 1;
            Flow::On
        })?;
        Ok(signs)
    }

    /// Whether a pattern is still looked for: not where steps are named.
    fn is_patternless(&self) -> bool {
        self.pattern.is_none() && self.named.len() < 2
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

    /// The marks that come most often.
    fn repeating_marks(&self) -> Option<(String, Vec<Begin>)> {
        let often = self.marks.iter().filter(|(_, marks)| marks.len() >= LEAST_MARKS);
        let most = often.max_by(|a, b| a.1.len().cmp(&b.1.len()).then_with(|| b.0.cmp(a.0)));
        most.map(|(text, marks)| (text.clone(), marks.clone()))
    }
}

/// `step 12` and `step 13` as `step #`.
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

/// The allocations of a pool, as the detector wants them.
#[derive(Default)]
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

/// Sizes and streams tell calls apart. Sizes no memory has would not fit the detector's sums.
fn call(row: &Row) -> (u64, Stream) {
    (
        crate::steps::rounded_bytes(row.bytes.min(1 << 40)),
        Stream(row.stream),
    )
}

/// Where a step occurs, and where the last of them ends.
fn occurrences(history: &History, pool: u32, step: &Step) -> Result<(Vec<Begin>, (u64, u64)), HistoryError> {
    let mut matcher = Matcher::new(step);
    let mut recent: VecDeque<(u64, u64)> = VecDeque::with_capacity(step.period());
    let mut begins: Vec<Begin> = Vec::new();
    let mut end = None;
    let mut row_number = 0;
    history.walk(|row, _| {
        if row.kind == Kind::Alloc && row.pool == pool {
            end = end.or((!begins.is_empty()).then_some((row_number, row.time)));
            if recent.len() == step.period() {
                recent.pop_front();
            }
            recent.push_back((row_number, row.time));
            if matcher.next(&call(row)) {
                let number = begins.len() as u64;
                let first = recent.front().copied();
                begins.extend(first.map(|(row, time)| Begin { number, row, time }));
                end = None;
            }
        }
        row_number += 1;
        Flow::On
    })?;
    Ok((begins, end.unwrap_or((history.len, history.duration))))
}

/// What each step holds, and the most that is held at all.
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
    /// The step after the one that goes on.
    next: usize,
    /// Whether the last step has ended.
    is_past: bool,
    /// Bytes that live, after the row before.
    bytes: u128,
    /// The most at any time.
    most: u128,
    peak: (u128, u64),
    kept: u128,
    allocations: u64,
}

impl Measuring {
    /// A row comes; it may be the first of a step.
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
