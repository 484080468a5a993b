//! Makes a coarse overview of a whole recording directly from its rows. A free repeats the bytes of its
//! allocation, so nothing must be remembered about blocks, and the walk that opens a recording suffices.
//! Groups and exact answers need a table of blocks (`blocks.rs`). The overview is shown first.
//!
//! The length of a recording is unknown before its end. So the first columns are narrow. If there are too many,
//! pairs of adjacent columns are merged.

use super::{Map, shown};
use millpond_trace::ReadOptions;
use millpond_trace::history::{Flow, History, HistoryError};
use millpond_trace::recording::{Gauge, Kind, Row};
use serde::Serialize;
use std::path::Path;

/// The most columns.
const MOST_COLUMNS: usize = 4096;
/// The most gaps that are listed one by one.
const MOST_GAPS: usize = 1000;

/// An overview of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// The end of the recording, in nanoseconds since it began.
    pub to: u64,
    /// The width of a column, in nanoseconds or rows.
    pub column: u64,
    /// Whether columns are ranges of rows, because all rows have the same time.
    pub by_rows: bool,
    /// The number of rows.
    pub rows: u64,
    /// The number of allocations.
    pub allocations: u64,
    /// The most bytes of all blocks at any time.
    pub peak: u64,
    /// The maximum in each column.
    pub most: Vec<u64>,
    /// The maximum in each column of the bytes that pools have taken from their sources. `None` if they are
    /// not recorded.
    pub reserved: Option<Vec<u64>>,
    /// Gaps as the time in nanoseconds and the number of lost events. Only the first thousand are listed.
    pub lost: Vec<(u64, u64)>,
    /// The number of blocks in each size class.
    #[serde(skip)]
    pub sizes: Sizes,
}

/// The number of blocks in each size class. There are eight classes between a power of two and the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(Vec<u64>);

impl Default for Sizes {
    fn default() -> Self {
        Self(vec![0; CLASSES])
    }
}

const CLASSES: usize = 64 * 8;

impl Sizes {
    fn class(bytes: u64) -> usize {
        let bits = bytes.max(1).ilog2();
        let below = (u128::from(bytes.max(1)) << 3 >> bits) as usize & 7;
        bits as usize * 8 + below
    }

    /// Returns the smallest size of a class.
    fn least(class: usize) -> u64 {
        let (bits, below) = (class / 8, class as u128 % 8);
        shown((8 + below) << bits >> 3)
    }

    fn note(&mut self, bytes: u64) {
        self.0[Self::class(bytes)] += 1;
    }

    /// Returns the rule that keeps at most `most` blocks, namely the largest.
    #[must_use]
    pub fn keeping(&self, most: u64) -> Keeping {
        let mut room = most;
        for class in (0..CLASSES).rev() {
            let count = self.0[class];
            if count > room {
                return Keeping {
                    all_from: Self::least(class + 1),
                    some_from: Self::least(class),
                    // The share is in units of 1/65,536. It is slightly low, because blocks are sampled and
                    // not counted.
                    share: (u128::from(room) * 63_000 / u128::from(count)) as u64,
                };
            }
            room -= count;
        }
        Keeping::ALL
    }
}

/// A rule that says which blocks are listed one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Keeping {
    /// All blocks of this size or more are kept.
    pub all_from: u64,
    /// A share of the blocks of this size or more is kept, sampled by their serial numbers.
    pub some_from: u64,
    share: u64,
}

impl Keeping {
    /// Keeps all blocks.
    pub const ALL: Self = Self {
        all_from: 0,
        some_from: 0,
        share: 0,
    };

    pub(super) fn keeps(&self, id: u64, bytes: u64) -> bool {
        // Multiplying by the golden ratio spreads consecutive serial numbers evenly.
        let drawn = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        bytes >= self.all_from || bytes >= self.some_from && drawn < self.share
    }
}

/// Opens a recording and makes an overview of it with at most `columns` columns.
///
/// # Errors
/// Returns an error if the file cannot be read or is not a recording.
pub fn open(
    path: &Path,
    options: &ReadOptions<'_>,
    columns: usize,
) -> Result<(History, Overview), HistoryError> {
    let mut seen = OverviewWalk::new(columns, false);
    let history = History::open_and_watch(path, options, |row, _| seen.note(row))?;
    // If all rows have the same time, columns are ranges of rows, which needs another walk.
    let overview = if history.duration == 0 {
        overview(&history, columns)?
    } else {
        seen.told(&history)
    };
    Ok((history, overview))
}

/// Makes an overview of an open recording with at most `columns` columns.
///
/// # Errors
/// Returns an error if the recording can no longer be read.
pub fn overview(history: &History, columns: usize) -> Result<Overview, HistoryError> {
    let mut seen = OverviewWalk::new(columns, history.duration == 0);
    history.walk(|row, _| {
        seen.note(row);
        Flow::On
    })?;
    Ok(seen.told(history))
}

/// The state of a walk.
struct OverviewWalk {
    total: u128,
    most: Vec<u128>,
    pools: Map<u32, u128>,
    reserved: Option<u128>,
    reserved_most: Vec<u128>,
    by_rows: bool,
    rows: u64,
    /// The width of a column, and the end of the current one.
    width: u64,
    until: u64,
    most_columns: usize,
    allocations: u64,
    peak: u128,
    lost: Vec<(u64, u64)>,
    sizes: Sizes,
    /// The sums of the keyframe that is being read.
    keyframe: Option<KeyframeSums>,
    /// Whether the next keyframe may name unknown blocks. This is the case at the beginning, and after events
    /// were lost.
    is_vague: bool,
}

/// The sums of the blocks that a keyframe has named.
struct KeyframeSums {
    left: u64,
    total: u128,
}

impl OverviewWalk {
    fn new(columns: usize, by_rows: bool) -> Self {
        Self {
            total: 0,
            most: vec![0],
            pools: Map::default(),
            reserved: None,
            reserved_most: vec![0],
            by_rows,
            rows: 0,
            width: 1,
            until: 1,
            most_columns: columns.clamp(2, MOST_COLUMNS),
            allocations: 0,
            peak: 0,
            lost: Vec::new(),
            sizes: Sizes::default(),
            keyframe: None,
            is_vague: true,
        }
    }

    #[inline]
    fn note(&mut self, row: &Row) {
        // A live row belongs to an earlier time.
        if row.kind != Kind::Live {
            let at = if self.by_rows { self.rows } else { row.time };
            if at >= self.until {
                self.reach(at);
            }
        }
        self.rows += 1;
        match row.kind {
            Kind::Alloc => self.allocated(row),
            Kind::Free | Kind::FreeRequested => {
                self.total = self.total.saturating_sub(u128::from(row.bytes));
            }
            Kind::Keyframe => {
                self.keyframe = Some(KeyframeSums {
                    left: row.bytes,
                    total: 0,
                });
                self.settle();
            }
            Kind::Live => self.name(row),
            Kind::Reserve => self.reserve(row, |held, by| held + by),
            Kind::Release => self.reserve(row, u128::saturating_sub),
            Kind::Gauge if row.tag == Gauge::Reserved as u32 => self.reserve(row, |_, now| now),
            Kind::Lost => {
                self.is_vague = true;
                if self.lost.len() < MOST_GAPS {
                    self.lost.push((row.time, row.id));
                }
            }
            _ => {}
        }
    }

    fn allocated(&mut self, row: &Row) {
        self.allocations += 1;
        self.sizes.note(row.bytes);
        self.total += u128::from(row.bytes);
        self.rise();
    }

    /// Handles a block that a keyframe names.
    fn name(&mut self, row: &Row) {
        let Some(keyframe) = &mut self.keyframe else {
            return;
        };
        keyframe.total += u128::from(row.bytes);
        keyframe.left = keyframe.left.saturating_sub(1);
        if self.is_vague {
            self.sizes.note(row.bytes);
        }
        self.settle();
    }

    /// Replaces the state by a keyframe that is complete.
    fn settle(&mut self) {
        let Some(keyframe) = self.keyframe.take_if(|keyframe| keyframe.left == 0) else {
            return;
        };
        self.total = keyframe.total;
        self.is_vague = false;
        self.rise();
    }

    fn rise(&mut self) {
        self.peak = self.peak.max(self.total);
        if let Some(most) = self.most.last_mut() {
            *most = self.total.max(*most);
        }
    }

    fn reserve(&mut self, row: &Row, change: impl Fn(u128, u128) -> u128) {
        let pool = self.pools.entry(row.pool).or_default();
        let before = *pool;
        *pool = change(before, u128::from(row.bytes));
        let reserved = (self.reserved.unwrap_or(0) + *pool).saturating_sub(before);
        self.reserved = Some(reserved);
        if let Some(most) = self.reserved_most.last_mut() {
            *most = reserved.max(*most);
        }
    }

    /// Advances to the column of a time or row. Merges columns if there are too many.
    fn reach(&mut self, at: u64) {
        while at / self.width >= self.most_columns as u64 {
            self.widen();
        }
        while at >= self.until {
            self.most.push(self.total);
            self.reserved_most.push(self.reserved.unwrap_or(0));
            self.until = self.until.saturating_add(self.width);
            if self.until == u64::MAX {
                return;
            }
        }
    }

    /// Merges pairs of adjacent columns. The last column may still be open. Then it ends later.
    fn widen(&mut self) {
        let Some(width) = self.width.checked_mul(2) else {
            return;
        };
        self.width = width;
        let open = self.most.len() - 1;
        for most in [&mut self.most, &mut self.reserved_most] {
            let pairs = most.chunks(2).map(|pair| pair.iter().copied().max().unwrap_or(0));
            *most = pairs.collect();
        }
        self.until = width.saturating_mul((open / 2 + 1) as u64);
    }

    fn told(self, history: &History) -> Overview {
        let numbers = |sums: &[u128]| sums.iter().copied().map(shown).collect::<Vec<u64>>();
        Overview {
            to: history.duration,
            column: self.width,
            by_rows: self.by_rows,
            rows: history.len,
            allocations: self.allocations,
            peak: shown(self.peak),
            most: numbers(&self.most),
            reserved: self.reserved.map(|_| numbers(&self.reserved_most)),
            lost: self.lost,
            sizes: self.sizes,
        }
    }
}
