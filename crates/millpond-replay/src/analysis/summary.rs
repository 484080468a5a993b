//! Summarises a window of a recording in one walk.

use super::groups::{By, COUNT, Groups, Lines, kind_name, pool_name};
use super::held::{Group, Held, Sum};
use super::ledger::{Block, LastAllocations, Ledger, Watch, walk};
use super::tally::{GroupMemory, MemoryByGroup, held_now, now};
use super::{Map, Window, shown};
use lifetimes::Histogram;
use millpond_trace::history::{History, HistoryError, Symbols};
use millpond_trace::recording::{End, Gauge, Kind, Row, STATES};
use serde::Serialize;

mod lifetimes;

pub use lifetimes::Lifetimes;

/// The most statements of a snapshot about itself, and the most characters of each.
const STATEMENTS: usize = 8;
const STATEMENT: usize = 300;

/// The largest value of a figure, and the time at which it was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// Bytes.
    pub bytes: u64,
    /// The time, in nanoseconds since the recording began.
    pub time: u64,
}

impl Peak {
    fn raise(&mut self, bytes: u128, time: u64) {
        let bytes = shown(bytes);
        if bytes > self.bytes {
            *self = Self { bytes, time };
        }
    }
}

/// Allocations that were served without calling the pool's source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hits {
    /// The number of these allocations.
    pub hits: u64,
    /// The number of all allocations.
    pub allocations: u64,
}

/// The missing parts of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// The number of events that the whole recording reports as lost.
    pub events: u64,
    /// Bytes of lost allocations in the window.
    pub allocated_bytes: u64,
    /// Bytes of lost frees in the window.
    pub freed_bytes: u64,
    /// The number of frees of unknown blocks in the window.
    pub unknown_frees: u64,
    /// Sentences about everything that is missing. Empty if the recording is complete.
    pub sentences: Vec<String>,
}

/// The figures of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolSummary {
    /// Its name.
    pub name: String,
    /// The kind of memory, and the device it is on.
    pub kind: String,
    /// The device, or -1 for host memory and unknown devices.
    pub device: i32,
    /// The most bytes that callers held.
    pub peak: Peak,
    /// The most requested bytes that callers held.
    pub peak_requested: Peak,
    /// The most bytes taken from the source. `None` if they are not recorded.
    pub peak_reserved: Option<Peak>,
    /// Bytes that callers held at the end.
    pub end_bytes: u64,
    /// Bytes taken from the source at the end. `None` if they are not recorded.
    pub end_reserved: Option<u64>,
    /// Allocations in the window.
    pub allocations: u64,
    /// Frees in the window.
    pub frees: u64,
    /// Allocations that were served without the source. `None` if they are not recorded.
    pub hits: Option<Hits>,
}

/// The figures of a window.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The window.
    pub window: Window,
    /// Whether the recording contains only the state of an allocator at one moment, without a history. Then
    /// only the held blocks are known.
    pub state_only: bool,
    /// Whether names of sites contain line numbers.
    #[serde(skip)]
    pub lines: Lines,
    /// The first and the last row of the window.
    pub rows: (u64, u64),
    /// The beginning of the window, in nanoseconds since the recording began.
    pub from: u64,
    /// The end of the window, in the same unit.
    pub to: u64,
    /// The blocks that live at the beginning.
    pub begin: Sum,
    /// The blocks that are held at the peak.
    pub peak: Held,
    /// The most requested bytes that callers held.
    pub peak_requested: Peak,
    /// The most bytes taken from sources. `None` if they are not recorded.
    pub peak_reserved: Option<Peak>,
    /// The most bytes of the process in main memory at a measurement. `None` if they are not recorded.
    pub peak_resident: Option<Peak>,
    /// The blocks that are held at the end.
    pub end: Held,
    /// The blocks that were allocated in the window and are still held at its end.
    pub kept: Held,
    /// The sum of all allocations.
    pub allocated: Sum,
    /// The number of frees.
    pub frees: u64,
    /// The number of requests that were refused.
    pub refused: u64,
    /// Blocks that were freed by the next memory event of their thread.
    pub temporary: Sum,
    /// The lifetimes of blocks that were freed.
    pub lifetimes: Lifetimes,
    /// Allocations that were served without a source. `None` if they are not recorded.
    pub hits: Option<Hits>,
    /// The figures of each pool, with the largest peak first.
    pub pools: Vec<PoolSummary>,
    /// The missing parts.
    pub loss: Loss,
    /// The most bytes that each group holds at any time, in no order.
    #[serde(skip)]
    pub most_by: [Vec<(String, u128)>; COUNT],
    /// All bytes allocated by each group, in no order.
    #[serde(skip)]
    pub allocated_by: [Vec<Group>; COUNT],
    /// The part of these that was freed by the next memory event of its thread.
    #[serde(skip)]
    pub temporary_by: [Vec<Group>; COUNT],
}

/// The state of a walk through a window.
#[derive(Default)]
pub(super) struct Gathering {
    /// The figures that are complete at any time.
    summary: Summary,
    largest: usize,
    /// The row and the time at which the window begins.
    began: (u64, u64),
    tallies: MemoryByGroup,
    lifetimes: Histogram,
    pools: Map<u32, PoolSummary>,
    first_gauges: Map<u32, (Option<u64>, Option<u64>)>,
    last: LastAllocations,
    lost: (u128, u128),
    unknown_frees: u64,
    /// Statements of a snapshot about itself.
    statements: Vec<String>,
}

impl Watch for Gathering {
    fn begins(&mut self, ledger: &Ledger<'_>) {
        self.began = (ledger.order, ledger.time);
        self.summary.rows = (ledger.order, ledger.order);
        self.summary.begin = now(ledger);
        self.tallies = MemoryByGroup::begin(ledger, self.largest);
        self.unknown_frees = ledger.unknown_frees;
        for (number, pool) in &ledger.pools {
            let of = self.pools.entry(*number).or_default();
            of.peak.raise(pool.bytes, ledger.time);
            of.peak_requested.raise(pool.requested, ledger.time);
            self.first_gauges.insert(*number, (pool.hits, pool.allocations));
        }
        self.summary.peak_requested.raise(ledger.requested, ledger.time);
        self.note_reserved(ledger);
    }

    fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        self.tallies.opened(ledger, block);
        self.summary.peak_requested.raise(ledger.requested, ledger.time);
        let pool = self.pools.entry(block.pool).or_default();
        if let Some(state) = ledger.pools.get(&block.pool) {
            pool.peak.raise(state.bytes, ledger.time);
            pool.peak_requested.raise(state.requested, ledger.time);
        }
        if block.is_event {
            self.summary.allocated.add(block.sum(By::Tag));
            pool.allocations += 1;
            self.last.allocated(block);
        }
    }

    fn closed(&mut self, _: &Ledger<'_>, block: &Block, by: Option<&Row>) {
        self.tallies.closed(block);
        let Some(row) = by else { return };
        self.summary.frees += 1;
        self.pools.entry(block.pool).or_default().frees += 1;
        self.lifetimes.note(row.time.saturating_sub(block.time));
        if self.last.is_freed_next(block, row) {
            self.summary.temporary.add(block.sum(By::Tag));
            for by in By::ALL {
                let tally = self.tallies.tally(by, block.groups[by as usize]);
                tally.temporary.add(block.sum(by));
            }
        }
    }

    fn row(&mut self, ledger: &Ledger<'_>, row: &Row, text: Option<&str>) {
        if ledger.order == self.summary.rows.0 {
            self.began.1 = ledger.time;
        }
        self.summary.rows.1 = ledger.order;
        match row.kind {
            Kind::Refused => self.summary.refused += 1,
            Kind::Mark => self.note_statement(text.unwrap_or_default()),
            Kind::Lost => {
                self.lost.0 += u128::from(row.requested);
                self.lost.1 += u128::from(row.bytes);
            }
            Kind::Gauge if row.tag == Gauge::Resident as u32 => {
                let peak = self.summary.peak_resident.get_or_insert_default();
                peak.raise(row.bytes.into(), ledger.time);
            }
            Kind::Reserve | Kind::Release | Kind::Gauge => self.note_reserved_of(ledger, row.pool),
            _ => {}
        }
    }
}

impl Gathering {
    /// Returns the state before the first row of a window.
    pub(super) fn new(largest: usize) -> Self {
        Self {
            largest,
            ..Self::default()
        }
    }

    /// Keeps the statements of a snapshot about missing parts. Files are untrusted, so it keeps only a few
    /// lines, without control characters.
    fn note_statement(&mut self, text: &str) {
        if text.starts_with(STATES) && self.statements.len() < STATEMENTS {
            let plain = text.chars().filter(|c| !c.is_control());
            self.statements.push(plain.take(STATEMENT).collect());
        }
    }

    /// Completes the summary at the end of the window.
    pub(super) fn finish(
        mut self,
        history: &History,
        ledger: &Ledger<'_>,
        window: Window,
        lines: Lines,
    ) -> Summary {
        let (from, to) = match window {
            Window::Times { from, to } => (from.min(history.duration), to.min(history.duration)),
            Window::Rows { .. } => (self.began.1, ledger.time),
        };
        let pools = self.pools(history, ledger);
        let hits = pools.iter().filter_map(|pool| pool.hits).reduce(|a, b| Hits {
            hits: a.hits.saturating_add(b.hits),
            allocations: a.allocations.saturating_add(b.allocations),
        });
        let group_sums = |of: fn(&GroupMemory) -> Sum, all: Sum| {
            By::ALL.map(|by| {
                let sums = self.tallies.by(by).iter().map(|tally| (of(tally), None));
                ledger.named(by, sums, all)
            })
        };
        let allocated_by = group_sums(|tally| tally.allocated, self.summary.allocated);
        let temporary_by = group_sums(|tally| tally.temporary, self.summary.temporary);
        let most_by = By::ALL.map(|by| {
            let all = self.tallies.by(by).iter().enumerate();
            all.filter(|(_, tally)| tally.most > 0)
                .map(|(group, tally)| (ledger.groups.name(by, group as u32).to_owned(), tally.most))
                .collect()
        });
        let began = self.began.0;
        let mut loss = Loss {
            events: history.lost,
            allocated_bytes: shown(self.lost.0),
            freed_bytes: shown(self.lost.1),
            unknown_frees: ledger.unknown_frees - self.unknown_frees,
            sentences: Vec::new(),
        };
        loss.sentences = sentences(history, &loss);
        loss.sentences.extend(self.statements);
        let mut end = held_now(ledger, self.largest, |_| true);
        end.time = to;
        let mut kept = held_now(ledger, self.largest, |block| {
            block.is_event && block.order >= began
        });
        kept.time = to;
        Summary {
            window,
            state_only: history.state_only,
            lines,
            from,
            to,
            end,
            kept,
            lifetimes: self.lifetimes.told(),
            hits,
            pools,
            loss,
            most_by,
            allocated_by,
            temporary_by,
            peak: self.tallies.held_at_peak(ledger),
            ..self.summary
        }
    }

    fn note_reserved(&mut self, ledger: &Ledger<'_>) {
        let known: Vec<u32> = ledger.pools.keys().copied().collect();
        for pool in known {
            self.note_reserved_of(ledger, pool);
        }
    }

    fn note_reserved_of(&mut self, ledger: &Ledger<'_>, number: u32) {
        if let Some(bytes) = ledger.reserved {
            self.summary
                .peak_reserved
                .get_or_insert_default()
                .raise(bytes, ledger.time);
        }
        if let Some(bytes) = ledger.pools.get(&number).and_then(|pool| pool.reserved) {
            let pool = self.pools.entry(number).or_default();
            pool.peak_reserved
                .get_or_insert_default()
                .raise(bytes, ledger.time);
        }
    }

    fn pools(&mut self, history: &History, ledger: &Ledger<'_>) -> Vec<PoolSummary> {
        let mut pools: Vec<(u32, PoolSummary)> = self.pools.drain().collect();
        pools.sort_unstable_by_key(|(number, pool)| (std::cmp::Reverse(pool.peak.bytes), *number));
        let told = pools.into_iter().map(|(number, mut pool)| {
            let defined = history.definitions.pool(number);
            pool.name = pool_name(number, defined);
            pool.kind = kind_name(defined);
            pool.device = defined.map_or(-1, |pool| pool.device);
            if let Some(state) = ledger.pools.get(&number) {
                pool.end_bytes = shown(state.bytes);
                pool.end_reserved = state.reserved.map(shown);
                let first = self.first_gauges.get(&number).copied().unwrap_or_default();
                pool.hits = state.hits.zip(state.allocations).map(|(hits, allocations)| Hits {
                    hits: hits.saturating_sub(first.0.unwrap_or(0)),
                    allocations: allocations.saturating_sub(first.1.unwrap_or(0)),
                });
            }
            pool
        });
        told.filter(|pool| pool.allocations > 0 || pool.peak.bytes > 0 || pool.peak_reserved.is_some())
            .collect()
    }
}

/// Summarises a window of a recording, with at most `largest` of the largest blocks at each moment.
///
/// # Errors
/// Returns an error if the recording can no longer be read.
pub fn summary(
    history: &History,
    symbols: &dyn Symbols,
    lines: Lines,
    window: Window,
    largest: usize,
) -> Result<Summary, HistoryError> {
    let groups = Groups::new(&history.definitions, symbols, lines);
    let mut gathering = Gathering::new(largest);
    let ledger = walk(history, groups, window, &mut gathering)?;
    Ok(gathering.finish(history, &ledger, window, lines))
}

/// Returns sentences about everything that is missing from a recording, as far as it is known without looking
/// at blocks.
#[must_use]
pub fn missing(history: &History) -> Vec<String> {
    let loss = Loss {
        events: history.lost,
        ..Loss::default()
    };
    sentences(history, &loss)
}

/// Returns sentences about everything that is missing from a recording.
fn sentences(history: &History, loss: &Loss) -> Vec<String> {
    let mut all = Vec::new();
    if loss.events > 0 {
        let bytes = if loss.allocated_bytes > 0 || loss.freed_bytes > 0 {
            format!(
                ": in this window allocations of {} bytes and frees of {} bytes",
                loss.allocated_bytes, loss.freed_bytes
            )
        } else {
            String::new()
        };
        all.push(format!(
            "{} events are lost{bytes}; sums are off until the next keyframe after each loss",
            loss.events
        ));
    }
    match &history.end {
        Some(End::Cut { bytes }) => all.push(format!(
            "the recording is truncated after {bytes} bytes: later events are missing, and blocks held at its end may have been freed"
        )),
        Some(End::Damaged { bytes, what }) => all.push(format!(
            "the recording is damaged after {bytes} bytes ({what}): all that follows is missing"
        )),
        Some(End::Closed) | None => {}
    }
    if history.definitions.dropped > 0 {
        all.push(format!(
            "{} names are omitted, because there are too many",
            history.definitions.dropped
        ));
    }
    all.extend(
        history
            .cautions
            .iter()
            .flat_map(millpond_trace::Caution::sentences),
    );
    all
}
