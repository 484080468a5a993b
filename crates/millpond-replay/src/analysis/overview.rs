//! A glance at a whole recording, straight from its rows: frees carry what they free, so nothing has to be remembered of blocks, and
//! the walk that opens a recording is enough for it. What is exact takes a table of blocks (`blocks.rs`); this is what is seen first.
//!
//! How long a recording is, is not known before its end: columns begin narrow, and when they run out each two become one.

use super::groups::{By, Names};
use super::{Map, shown};
use millpond_trace::ReadOptions;
use millpond_trace::history::{Definitions, Flow, History, HistoryError};
use millpond_trace::recording::{Gauge, Kind, Row};
use serde::Serialize;
use std::path::Path;

/// Columns at most.
const MOST_COLUMNS: usize = 4096;
/// Groups that are told apart while walking.
const MOST_GROUPS: usize = 1024;
/// Bands of each way to group.
const BANDS: usize = 8;
/// Gaps that are told one by one.
const MOST_GAPS: usize = 1000;
/// What a glance groups by: what numbers in rows say without a stack.
const WAYS: [By; 3] = [By::Tag, By::Pool, By::Kind];

/// A group over time: its bytes at the end of each column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Strand {
    /// What it is called.
    pub name: String,
    /// One for each column.
    pub bytes: Vec<u64>,
}

/// The bands of one way to group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Strands {
    /// Its name.
    pub by: &'static str,
    /// The groups that hold most at any column's end, the most first.
    pub bands: Vec<Strand>,
    /// All others together.
    pub rest: Vec<u64>,
}

/// A glance at a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// When it ends, in nanoseconds since it began.
    pub to: u64,
    /// How much each column has: nanoseconds, or rows.
    pub column: u64,
    /// Whether columns are parts of the rows instead, because all have the same time.
    pub by_rows: bool,
    /// How many rows it has.
    pub rows: u64,
    /// Allocations.
    pub allocations: u64,
    /// The most bytes of all blocks at any time.
    pub peak: u64,
    /// The most in each column.
    pub most: Vec<u64>,
    /// Bytes pools have taken from their sources, the most in each column; none where nothing tells.
    pub reserved: Option<Vec<u64>>,
    /// By tag, pool and kind of memory.
    pub strands: Vec<Strands>,
    /// When events are missing, in nanoseconds, and how many; the first thousand gaps.
    pub lost: Vec<(u64, u64)>,
    /// How many blocks there are of each class of sizes.
    #[serde(skip)]
    pub sizes: Sizes,
}

/// How many blocks of each class of sizes there are: eight classes between a power of two and the next.
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

    /// The smallest size of a class.
    fn least(class: usize) -> u64 {
        let (bits, below) = (class / 8, class as u128 % 8);
        shown((8 + below) << bits >> 3)
    }

    fn note(&mut self, bytes: u64) {
        self.0[Self::class(bytes)] += 1;
    }

    /// What to keep, so that it is at most so many blocks: the largest.
    #[must_use]
    pub fn keeping(&self, most: u64) -> Keeping {
        let mut room = most;
        for class in (0..CLASSES).rev() {
            let count = self.0[class];
            if count > room {
                return Keeping {
                    all_from: Self::least(class + 1),
                    some_from: Self::least(class),
                    // Of 65,536; a little less, because they are drawn and not counted.
                    share: (u128::from(room) * 63_000 / u128::from(count)) as u64,
                };
            }
            room -= count;
        }
        Keeping::ALL
    }
}

/// Which blocks are told one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Keeping {
    /// From this size on all of them.
    pub all_from: u64,
    /// From this size on a share of them, drawn by their serial numbers.
    pub some_from: u64,
    share: u64,
}

impl Keeping {
    /// All of them.
    pub const ALL: Self = Self {
        all_from: 0,
        some_from: 0,
        share: 0,
    };

    pub(super) fn keeps(&self, id: u64, bytes: u64) -> bool {
        // Multiplied by the golden ratio: serial numbers that follow each other are spread evenly.
        let drawn = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        bytes >= self.all_from || bytes >= self.some_from && drawn < self.share
    }
}

/// Opens a recording, with a glance at it in at most so many columns.
///
/// # Errors
/// It cannot be read, or is no recording.
pub fn open(
    path: &Path,
    options: &ReadOptions<'_>,
    columns: usize,
) -> Result<(History, Overview), HistoryError> {
    let mut seen = Seen::new(columns, false);
    let history = History::open_and_watch(path, options, |row, definitions| seen.note(row, definitions))?;
    // Where all has one time, columns are of rows: that takes another walk.
    let overview = if history.duration == 0 {
        overview(&history, columns)?
    } else {
        seen.told(&history)
    };
    Ok((history, overview))
}

/// A glance at a recording that is open, in at most so many columns.
///
/// # Errors
/// The recording cannot be walked any more.
pub fn overview(history: &History, columns: usize) -> Result<Overview, HistoryError> {
    let mut seen = Seen::new(columns, history.duration == 0);
    history.walk(|row, _| {
        seen.note(row, &history.definitions);
        Flow::On
    })?;
    Ok(seen.told(history))
}

/// What was seen by now.
struct Seen {
    ways: [Way; WAYS.len()],
    total: u128,
    most: Vec<u128>,
    pools: Map<u32, u128>,
    reserved: Option<u128>,
    reserved_most: Vec<u128>,
    by_rows: bool,
    rows: u64,
    /// How much a column has, and where the current one ends.
    width: u64,
    until: u64,
    most_columns: usize,
    allocations: u64,
    peak: u128,
    lost: Vec<(u64, u64)>,
    sizes: Sizes,
    /// What a keyframe comes to, while it is read.
    keyframe: Option<Keyframe>,
    /// Whether the next keyframe may name blocks that nobody told of: at the beginning, and where events were lost.
    is_vague: bool,
}

/// The sums of the blocks that a keyframe has named.
struct Keyframe {
    left: u64,
    total: u128,
    now: [Vec<u128>; WAYS.len()],
}

/// Bytes by group, now and at the end of each column.
#[derive(Default)]
struct Way {
    names: Names,
    now: Vec<u128>,
    columns: Vec<AtEnd>,
}

/// Bytes by group at the end of a column, and those of the groups that are not told apart.
struct AtEnd {
    bytes: Vec<u128>,
    beyond: u128,
}

/// Adds to the bytes of a group.
fn add(now: &mut Vec<u128>, group: u32, bytes: u64) {
    let at = group as usize;
    if now.len() <= at {
        now.resize(at + 1, 0);
    }
    now[at] += u128::from(bytes);
}

impl Way {
    fn subtract(&mut self, group: u32, bytes: u64) {
        if let Some(now) = self.now.get_mut(group as usize) {
            *now = now.saturating_sub(u128::from(bytes));
        }
    }
}

impl Seen {
    fn new(columns: usize, by_rows: bool) -> Self {
        Self {
            ways: Default::default(),
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
    fn note(&mut self, row: &Row, definitions: &Definitions) {
        // A live row tells of an earlier time.
        if row.kind != Kind::Live {
            let at = if self.by_rows { self.rows } else { row.time };
            if at >= self.until {
                self.reach(at);
            }
        }
        self.rows += 1;
        match row.kind {
            Kind::Alloc => self.allocated(row, definitions),
            Kind::Free | Kind::FreeRequested => {
                self.total = self.total.saturating_sub(u128::from(row.bytes));
                for (way, by) in self.ways.iter_mut().zip(WAYS) {
                    let group = way.names.of(by, row, definitions);
                    way.subtract(group, row.bytes);
                }
            }
            Kind::Keyframe => {
                self.keyframe = Some(Keyframe {
                    left: row.bytes,
                    total: 0,
                    now: Default::default(),
                });
                self.settle();
            }
            Kind::Live => self.name(row, definitions),
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

    fn allocated(&mut self, row: &Row, definitions: &Definitions) {
        self.allocations += 1;
        self.sizes.note(row.bytes);
        for (way, by) in self.ways.iter_mut().zip(WAYS) {
            let group = way.names.of(by, row, definitions);
            add(&mut way.now, group, row.bytes);
        }
        self.total += u128::from(row.bytes);
        self.rise();
    }

    /// A keyframe names a block.
    fn name(&mut self, row: &Row, definitions: &Definitions) {
        let Some(keyframe) = &mut self.keyframe else {
            return;
        };
        for ((now, way), by) in keyframe.now.iter_mut().zip(&mut self.ways).zip(WAYS) {
            add(now, way.names.of(by, row, definitions), row.bytes);
        }
        keyframe.total += u128::from(row.bytes);
        keyframe.left = keyframe.left.saturating_sub(1);
        if self.is_vague {
            self.sizes.note(row.bytes);
        }
        self.settle();
    }

    /// A keyframe that is whole takes the place of all that was known.
    fn settle(&mut self) {
        let Some(keyframe) = self.keyframe.take_if(|keyframe| keyframe.left == 0) else {
            return;
        };
        for (way, named) in self.ways.iter_mut().zip(keyframe.now) {
            way.now = named;
        }
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

    /// Goes on to the column of a time, or of a row; widens all where there are too many.
    fn reach(&mut self, at: u64) {
        while at / self.width >= self.most_columns as u64 {
            self.widen();
        }
        while at >= self.until {
            self.close_column();
            self.most.push(self.total);
            self.reserved_most.push(self.reserved.unwrap_or(0));
            self.until = self.until.saturating_add(self.width);
            if self.until == u64::MAX {
                return;
            }
        }
    }

    /// Each two columns become one. The last is still open: its end is to come.
    fn widen(&mut self) {
        let Some(width) = self.width.checked_mul(2) else {
            return;
        };
        self.width = width;
        let open = self.most.len() - 1;
        for way in &mut self.ways {
            let mut at = 0;
            // The end of two is the end of the second.
            way.columns.retain(|_| {
                at += 1;
                at % 2 == 0
            });
        }
        for most in [&mut self.most, &mut self.reserved_most] {
            let pairs = most.chunks(2).map(|pair| pair.iter().copied().max().unwrap_or(0));
            *most = pairs.collect();
        }
        self.until = width.saturating_mul((open / 2 + 1) as u64);
    }

    fn close_column(&mut self) {
        for way in &mut self.ways {
            let (told, beyond) = way.now.split_at(way.now.len().min(MOST_GROUPS));
            way.columns.push(AtEnd {
                bytes: told.to_vec(),
                beyond: beyond.iter().sum(),
            });
        }
    }

    fn told(mut self, history: &History) -> Overview {
        self.close_column();
        let numbers = |sums: &[u128]| sums.iter().copied().map(shown).collect::<Vec<u64>>();
        let strands = self.ways.iter().zip(WAYS);
        Overview {
            to: history.duration,
            column: self.width,
            by_rows: self.by_rows,
            rows: history.len,
            allocations: self.allocations,
            peak: shown(self.peak),
            most: numbers(&self.most),
            reserved: self.reserved.map(|_| numbers(&self.reserved_most)),
            strands: strands.map(|(way, by)| way.told(by)).collect(),
            lost: self.lost,
            sizes: self.sizes,
        }
    }
}

impl Way {
    fn told(&self, by: By) -> Strands {
        let names = self.names.names();
        let groups = self.columns.last().map_or(0, |column| column.bytes.len());
        let bytes = |column: &AtEnd, group: usize| column.bytes.get(group).copied().unwrap_or(0);
        let most = |group: usize| {
            let all = self.columns.iter().map(|column| bytes(column, group));
            all.max().unwrap_or(0)
        };
        let mut ranked: Vec<(u128, usize)> = (0..groups).map(|group| (most(group), group)).collect();
        ranked.retain(|(most, _)| *most > 0);
        ranked.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| names[a.1].cmp(&names[b.1])));
        ranked.truncate(BANDS);
        let band = |group: usize| Strand {
            name: names.get(group).cloned().unwrap_or_default(),
            bytes: self
                .columns
                .iter()
                .map(|column| shown(bytes(column, group)))
                .collect(),
        };
        let rest = self.columns.iter().map(|column| {
            let all: u128 = column.bytes.iter().sum::<u128>() + column.beyond;
            let told: u128 = ranked.iter().map(|(_, group)| bytes(column, *group)).sum();
            shown(all - told)
        });
        Strands {
            by: by.name(),
            rest: rest.collect(),
            bands: ranked.iter().map(|(_, group)| band(*group)).collect(),
        }
    }
}
