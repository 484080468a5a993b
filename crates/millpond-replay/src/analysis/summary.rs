//! What a window of a recording comes to, found in one walk.

use super::groups::{By, COUNT, Groups, Lines, kind_name, pool_name};
use super::held::{Group, Held, Sum};
use super::ledger::{Block, Ledger, Watch, walk};
use super::tally::{Tallies, held_now, now};
use super::{Map, Window, shown};
use lifetimes::Histogram;
use millpond_trace::history::{History, HistoryError, Symbols};
use millpond_trace::recording::{End, Kind, Row, STATES};
use serde::Serialize;

mod lifetimes;

pub use lifetimes::Lifetimes;

/// Threads of which the last event is remembered.
const THREADS: usize = 1 << 16;
/// What snapshots say of themselves: lines, and letters of each.
const STATEMENTS: usize = 8;
const STATEMENT: usize = 300;

/// The largest figure of its kind, and when it was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// Bytes.
    pub bytes: u64,
    /// When, in nanoseconds since the recording began.
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

/// Allocations that a pool's source was not called for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hits {
    /// These.
    pub hits: u64,
    /// All allocations.
    pub allocations: u64,
}

/// What is missing from a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Events that it says are lost, in the whole of it.
    pub events: u64,
    /// Bytes of lost allocations in the window.
    pub allocated_bytes: u64,
    /// Bytes of lost frees in the window.
    pub freed_bytes: u64,
    /// Frees in the window of blocks that nobody knew.
    pub unknown_frees: u64,
    /// Sentences on all that is missing, for people; empty where the recording is whole.
    pub sentences: Vec<String>,
}

/// What a pool came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolSummary {
    /// Its name.
    pub name: String,
    /// The kind of memory, and the device it is on.
    pub kind: String,
    /// The device; -1 for the host's memory and where it is not known.
    pub device: i32,
    /// The most bytes in callers' hands.
    pub peak: Peak,
    /// The most bytes they had asked for.
    pub peak_requested: Peak,
    /// The most bytes taken from the source; none where nothing tells.
    pub peak_reserved: Option<Peak>,
    /// Bytes in callers' hands at the end.
    pub end_bytes: u64,
    /// Bytes taken from the source, at the end; none where nothing tells.
    pub end_reserved: Option<u64>,
    /// Allocations in the window.
    pub allocations: u64,
    /// Frees in the window.
    pub frees: u64,
    /// Allocations that did without the source; none where nothing tells.
    pub hits: Option<Hits>,
}

/// What a window of a recording comes to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The window.
    pub window: Window,
    /// Whether the recording only has what an allocator held at one moment, without a history. Only the held blocks are known then.
    pub state_only: bool,
    /// Whether names of sites have lines of code.
    #[serde(skip)]
    pub lines: Lines,
    /// Its first and its last row.
    pub rows: (u64, u64),
    /// Nanoseconds since the recording began at which it begins.
    pub from: u64,
    /// At which it ends.
    pub to: u64,
    /// What lives when it begins.
    pub begin: Sum,
    /// What is held when most is.
    pub peak: Held,
    /// The most that callers had asked for.
    pub peak_requested: Peak,
    /// The most taken from sources; none where nothing tells.
    pub peak_reserved: Option<Peak>,
    /// What is held when it ends.
    pub end: Held,
    /// What was handed out in the window and is still held when it ends.
    pub kept: Held,
    /// Allocations, and what they came to.
    pub allocated: Sum,
    /// Frees.
    pub frees: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Blocks given back as the very next thing their thread did with memory.
    pub temporary: Sum,
    /// How long blocks lived that were given back.
    pub lifetimes: Lifetimes,
    /// Allocations that did without a source; none where nothing tells.
    pub hits: Option<Hits>,
    /// Each pool, the one with the largest peak first.
    pub pools: Vec<PoolSummary>,
    /// What is missing.
    pub loss: Loss,
    /// The most bytes that each group holds at any time, in no order.
    #[serde(skip)]
    pub most_by: [Vec<(String, u128)>; COUNT],
    /// Bytes allocated in all by group, in no order.
    #[serde(skip)]
    pub allocated_by: [Vec<Group>; COUNT],
    /// Of these, what was given back at once.
    #[serde(skip)]
    pub temporary_by: [Vec<Group>; COUNT],
}

/// A window as it goes by.
pub(super) struct Gathering {
    largest: usize,
    /// The first row of the window, and the last so far.
    rows: (u64, u64),
    began: (u64, u64),
    begin: Sum,
    tallies: Tallies,
    peak_requested: Peak,
    peak_reserved: Option<Peak>,
    allocated: Sum,
    frees: u64,
    refused: u64,
    temporary: Sum,
    lifetimes: Histogram,
    pools: Map<u32, PoolSummary>,
    first_gauges: Map<u32, (Option<u64>, Option<u64>)>,
    /// The last event of each thread, where that was an allocation.
    last: Map<u32, u64>,
    lost: (u128, u128),
    unknown_frees: u64,
    /// What a snapshot says of itself.
    statements: Vec<String>,
}

impl Watch for Gathering {
    fn begins(&mut self, ledger: &Ledger<'_>) {
        self.began = (ledger.order, ledger.time);
        self.rows = (ledger.order, ledger.order);
        self.begin = now(ledger);
        self.tallies = Tallies::begin(ledger, self.largest);
        self.unknown_frees = ledger.unknown_frees;
        for (number, pool) in &ledger.pools {
            let of = self.pools.entry(*number).or_default();
            of.peak.raise(pool.bytes, ledger.time);
            of.peak_requested.raise(pool.requested, ledger.time);
            self.first_gauges.insert(*number, (pool.hits, pool.allocations));
        }
        self.peak_requested.raise(ledger.requested, ledger.time);
        self.note_reserved(ledger);
    }

    fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        self.tallies.opened(ledger, block);
        self.peak_requested.raise(ledger.requested, ledger.time);
        let pool = self.pools.entry(block.pool).or_default();
        if let Some(state) = ledger.pools.get(&block.pool) {
            pool.peak.raise(state.bytes, ledger.time);
            pool.peak_requested.raise(state.requested, ledger.time);
        }
        if block.is_event {
            self.allocated.add(block.bytes, block.requested);
            pool.allocations += 1;
            if self.last.len() < THREADS || self.last.contains_key(&block.thread) {
                self.last.insert(block.thread, block.id);
            }
        }
    }

    fn closed(&mut self, _: &Ledger<'_>, block: &Block, by: Option<&Row>) {
        self.tallies.closed(block);
        let Some(row) = by else { return };
        self.frees += 1;
        self.pools.entry(block.pool).or_default().frees += 1;
        self.lifetimes.note(row.time.saturating_sub(block.time));
        if self.last.remove(&row.thread) == Some(block.id) {
            self.temporary.add(block.bytes, block.requested);
            for by in By::ALL {
                let tally = self.tallies.tally(by, block.groups[by as usize]);
                tally.temporary.add(block.bytes, block.requested);
            }
        }
    }

    fn row(&mut self, ledger: &Ledger<'_>, row: &Row, text: Option<&str>) {
        if ledger.order == self.rows.0 {
            self.began.1 = ledger.time;
        }
        self.rows.1 = ledger.order;
        match row.kind {
            Kind::Refused => self.refused += 1,
            Kind::Mark => self.note_statement(text.unwrap_or_default()),
            Kind::Lost => {
                self.lost.0 += u128::from(row.requested);
                self.lost.1 += u128::from(row.bytes);
            }
            Kind::Reserve | Kind::Release | Kind::Gauge => self.note_reserved_of(ledger, row.pool),
            _ => {}
        }
    }
}

impl Gathering {
    /// Nothing of a window seen yet.
    pub(super) fn new(largest: usize) -> Self {
        Self {
            largest,
            rows: (0, 0),
            began: (0, 0),
            begin: Sum::default(),
            tallies: Tallies::default(),
            peak_requested: Peak::default(),
            peak_reserved: None,
            allocated: Sum::default(),
            frees: 0,
            refused: 0,
            temporary: Sum::default(),
            lifetimes: Histogram::default(),
            pools: Map::default(),
            first_gauges: Map::default(),
            last: Map::default(),
            lost: (0, 0),
            unknown_frees: 0,
            statements: Vec::new(),
        }
    }

    /// Keeps what a snapshot says that it lacks. Files are strangers': a few lines, without what would steer a terminal.
    fn note_statement(&mut self, text: &str) {
        if text.starts_with(STATES) && self.statements.len() < STATEMENTS {
            let plain = text.chars().filter(|c| !c.is_control());
            self.statements.push(plain.take(STATEMENT).collect());
        }
    }

    /// The window has ended.
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
        let group_sums = |of: &dyn Fn(&super::tally::Tally) -> Sum| {
            By::ALL.map(|by| {
                let all = self.tallies.by(by).iter().enumerate();
                all.map(|(group, tally)| Group {
                    name: ledger.groups.name(by, group as u32).to_owned(),
                    sum: of(tally),
                    oldest: None,
                })
                .filter(|group| group.sum.blocks > 0)
                .collect()
            })
        };
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
            rows: self.rows,
            from,
            to,
            begin: self.begin,
            peak_requested: self.peak_requested,
            peak_reserved: self.peak_reserved,
            end,
            kept,
            allocated: self.allocated,
            frees: self.frees,
            refused: self.refused,
            temporary: self.temporary,
            lifetimes: self.lifetimes.told(),
            hits,
            pools,
            loss,
            most_by,
            allocated_by: group_sums(&|tally| tally.allocated),
            temporary_by: group_sums(&|tally| tally.temporary),
            peak: self.tallies.held_at_peak(ledger),
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
            self.peak_reserved
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

/// What a window of a recording comes to, with so many of the largest blocks at each moment.
///
/// # Errors
/// The recording cannot be walked any more.
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

/// All that is missing from a recording, in sentences for people, as far as it is known without looking at blocks.
#[must_use]
pub fn missing(history: &History) -> Vec<String> {
    let loss = Loss {
        events: history.lost,
        ..Loss::default()
    };
    sentences(history, &loss)
}

/// All that is missing from a recording, in words.
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
            "the recording is cut after {bytes} bytes: what happened later is missing, and what is held at its end may have been given back"
        )),
        Some(End::Damaged { bytes, what }) => all.push(format!(
            "the recording is damaged after {bytes} bytes ({what}): all that follows is missing"
        )),
        Some(End::Closed) | None => {}
    }
    if history.definitions.dropped > 0 {
        all.push(format!(
            "{} names are left out, because they are too many",
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
