//! Computes bytes by group over time in a fixed number of columns. Each column has the least, the most and
//! the last value of its time, so that no peak is lost.

use super::groups::{By, Groups};
use super::ledger::{Block, Ledger, Watch, walk};
use super::summary::Summary;
use super::{Map, shown};
use millpond_trace::history::{History, HistoryError, Symbols};
use millpond_trace::recording::{Gauge, Kind, Row};
use serde::Serialize;

/// The most columns.
const MOST_COLUMNS: usize = 1 << 16;
/// The most bands.
const MOST_BANDS: usize = 64;

/// The options of a timeline.
#[derive(Clone, Copy, Debug)]
pub struct TimelineOptions {
    /// The property that the bands show.
    pub by: By,
    /// The number of columns, at most 65,536.
    pub columns: usize,
    /// The number of groups with their own band, at most 64. These are the groups that hold most at any time.
    pub bands: usize,
}

/// A figure during the time of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The minimum.
    pub least: u64,
    /// The maximum.
    pub most: u64,
    /// The value at the end of the column.
    pub last: u64,
    /// The value at the moment when all groups together held most in the column.
    pub at_peak: u64,
}

/// A group over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Band {
    /// The name of the group.
    pub name: String,
    /// One sample for each column.
    pub samples: Vec<Sample>,
}

/// Bytes over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The beginning of the first column, in nanoseconds since the recording began.
    pub from: u64,
    /// The end of the last column, in the same unit.
    pub to: u64,
    /// Whether columns are ranges of rows, because all rows have the same time.
    pub by_rows: bool,
    /// All blocks.
    pub total: Vec<Sample>,
    /// The groups that hold most at any time. The group with the largest sum over the whole time is first.
    pub bands: Vec<Band>,
    /// The sum of the groups without a band.
    pub rest: Vec<Sample>,
    /// The number of groups without a band.
    pub rest_groups: u64,
    /// Bytes that pools have taken from their sources. `None` if they are not recorded.
    pub reserved: Option<Vec<Sample>>,
    /// Bytes of devices in use beyond the bytes that pools have taken there. `None` if they are not recorded.
    pub unexplained: Option<Vec<Sample>>,
}

impl Timeline {
    /// Returns the number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.total.len()
    }

    /// Returns the time at which a column begins.
    #[must_use]
    pub fn begins(&self, column: usize) -> u64 {
        let span = u128::from(self.to.saturating_sub(self.from)) + 1;
        let since = span * column as u128 / self.columns().max(1) as u128;
        self.from.saturating_add(shown(since))
    }
}

/// Computes bytes by group over time in the window of a summary. The summary determines the groups.
///
/// # Errors
/// Returns an error if the recording can no longer be read.
pub fn timeline(
    history: &History,
    symbols: &dyn Symbols,
    summary: &Summary,
    options: &TimelineOptions,
) -> Result<Timeline, HistoryError> {
    let mut ranked: Vec<&(String, u128)> = summary.most_by[options.by as usize].iter().collect();
    ranked.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let count = ranked.len().min(options.bands.min(MOST_BANDS));
    let names: Vec<String> = ranked[..count].iter().map(|(name, _)| name.clone()).collect();
    let (from, to) = (summary.from, summary.to);
    let by_rows = from == to;
    let columns = options.columns.clamp(1, MOST_COLUMNS);
    let axis = if by_rows {
        Axis::new(summary.rows.0, summary.rows.1, columns)
    } else {
        Axis::new(from, to, columns)
    };
    let mut drawing = Drawing {
        by: options.by,
        by_rows,
        places: names.iter().cloned().zip(1..).collect(),
        bands: vec![FigureLine::new(columns); count + 2],
        place_of: Vec::new(),
        reserved: FigureLine::new(columns),
        unexplained: FigureLine::new(columns),
        tells_reserved: false,
        tells_devices: false,
        unexplained_now: 0,
        axis,
        column: 0,
    };
    let rest_groups = (ranked.len() - count) as u64;
    let groups = Groups::new(&history.definitions, symbols, summary.lines);
    let ledger = walk(history, groups, summary.window, &mut drawing)?;
    drawing.fill_to(columns - 1);
    if ledger.is_sampled() && !options.by.is_exact() {
        scale_columns(&mut drawing.bands);
    }
    let mut lines = drawing.bands.into_iter().map(|line| line.columns);
    let total = lines.next().unwrap_or_default();
    let rest = lines.next_back().unwrap_or_default();
    let has_rest = rest.iter().any(|sample| sample.most > 0);
    let bands = names
        .into_iter()
        .zip(lines)
        .map(|(name, samples)| Band { name, samples });
    let mut bands: Vec<Band> = bands.collect();
    // Groups that are always present are drawn below groups that come and go.
    bands.sort_by_cached_key(|band| std::cmp::Reverse(area(&band.samples)));
    Ok(Timeline {
        from,
        to,
        by_rows,
        total,
        bands,
        rest,
        rest_groups: rest_groups.max(u64::from(has_rest)),
        reserved: drawing.tells_reserved.then_some(drawing.reserved.columns),
        unexplained: drawing.tells_devices.then_some(drawing.unexplained.columns),
    })
}

/// Scales the estimates of each column so that they add up to the total at its peak. The total is the first line. If there are no
/// estimates, the last line has the total.
fn scale_columns(lines: &mut [FigureLine]) {
    let Some((total, lines)) = lines.split_first_mut() else {
        return;
    };
    for (column, total) in total.columns.iter().enumerate() {
        let at_peak = |line: &FigureLine| u128::from(line.columns[column].at_peak);
        let sum: u128 = lines.iter().map(at_peak).sum();
        if sum == 0 {
            if let Some(rest) = lines.last_mut() {
                rest.columns[column] = *total;
            }
            continue;
        }
        let factor = total.at_peak as f64 / sum as f64;
        let scaled = |bytes: u64| (bytes as f64 * factor).round() as u64;
        for line in &mut *lines {
            let Sample {
                least,
                most,
                last,
                at_peak,
            } = line.columns[column];
            line.columns[column] = Sample {
                least: scaled(least),
                most: scaled(most),
                last: scaled(last),
                at_peak: scaled(at_peak),
            };
        }
    }
}

fn area(samples: &[Sample]) -> u128 {
    samples.iter().map(|sample| u128::from(sample.at_peak)).sum()
}

/// Maps a time or a row to a column.
#[derive(Clone, Copy)]
struct Axis {
    from: u64,
    span: u128,
    columns: usize,
}

impl Axis {
    fn new(from: u64, to: u64, columns: usize) -> Self {
        Self {
            from,
            span: u128::from(to.saturating_sub(from)) + 1,
            columns,
        }
    }

    fn column(&self, at: u64) -> usize {
        let since = u128::from(at.saturating_sub(self.from));
        ((since * self.columns as u128 / self.span) as usize).min(self.columns - 1)
    }
}

/// A figure over time.
#[derive(Clone)]
struct FigureLine {
    now: u128,
    columns: Vec<Sample>,
}

impl FigureLine {
    fn new(columns: usize) -> Self {
        Self {
            now: 0,
            columns: vec![Sample::default(); columns],
        }
    }

    fn begin(&mut self, column: usize) {
        let now = shown(self.now);
        self.columns[column] = Sample {
            least: now,
            most: now,
            last: now,
            at_peak: now,
        };
    }

    fn set(&mut self, column: usize, now: u128) {
        self.now = now;
        let now = shown(now);
        let at = &mut self.columns[column];
        at.least = at.least.min(now);
        at.most = at.most.max(now);
        at.last = now;
    }
}

/// The state of a walk that makes a timeline.
struct Drawing {
    by: By,
    by_rows: bool,
    /// The index of each name that has a line.
    places: Map<String, usize>,
    /// The same index by group number, filled as groups appear.
    place_of: Vec<Option<usize>>,
    /// The lines of all blocks, of each band, and of the rest.
    bands: Vec<FigureLine>,
    reserved: FigureLine,
    unexplained: FigureLine,
    tells_reserved: bool,
    tells_devices: bool,
    unexplained_now: u128,
    axis: Axis,
    column: usize,
}

impl Drawing {
    fn place(&mut self, ledger: &Ledger<'_>, block: &Block) -> usize {
        let group = block.groups[self.by as usize];
        let at = group as usize;
        if self.place_of.len() <= at {
            self.place_of.resize(at + 1, None);
        }
        let rest = self.bands.len() - 1;
        let places = &self.places;
        *self.place_of[at].get_or_insert_with(|| {
            let name = ledger.groups.name(self.by, group);
            places.get(name).copied().unwrap_or(rest)
        })
    }

    fn fill_to(&mut self, column: usize) {
        while self.column < column {
            self.column += 1;
            self.begin_column();
        }
    }

    fn begin_column(&mut self) {
        for line in self
            .bands
            .iter_mut()
            .chain([&mut self.reserved, &mut self.unexplained])
        {
            line.begin(self.column);
        }
    }

    fn enter(&mut self, ledger: &Ledger<'_>) {
        let at = if self.by_rows { ledger.order } else { ledger.time };
        self.fill_to(self.axis.column(at));
    }

    fn change(&mut self, ledger: &Ledger<'_>, block: &Block, change: impl Fn(u128, u128) -> u128) {
        self.enter(ledger);
        let place = self.place(ledger, block);
        let column = self.column;
        let bytes = block.sum(self.by).bytes;
        let line = &mut self.bands[place];
        line.set(column, change(line.now, bytes));
        let total = &mut self.bands[0];
        let before = total.columns[column].most;
        total.set(column, ledger.bytes);
        if shown(ledger.bytes) > before {
            for line in &mut self.bands {
                line.columns[column].at_peak = shown(line.now);
            }
        }
        self.note_devices(ledger);
    }

    fn note_devices(&mut self, ledger: &Ledger<'_>) {
        if ledger.devices.is_empty() {
            return;
        }
        self.tells_devices = true;
        self.unexplained.set(self.column, self.unexplained_now);
    }

    fn note_reserved(&mut self, ledger: &Ledger<'_>) {
        if let Some(reserved) = ledger.reserved {
            self.tells_reserved = true;
            self.reserved.set(self.column, reserved);
        }
    }

    /// Records a new measurement of device usage. The bytes that are unexplained now stay unexplained until
    /// the next measurement.
    fn measure_devices(&mut self, ledger: &Ledger<'_>) {
        self.unexplained_now = ledger.unexplained();
        self.note_devices(ledger);
    }
}

impl Watch for Drawing {
    fn begins(&mut self, ledger: &Ledger<'_>) {
        for block in ledger.live.values() {
            let place = self.place(ledger, block);
            self.bands[place].now += block.sum(self.by).bytes;
        }
        self.bands[0].now = ledger.bytes;
        self.reserved.now = ledger.reserved.unwrap_or(0);
        self.begin_column();
        self.note_reserved(ledger);
        self.measure_devices(ledger);
    }

    fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        self.change(ledger, block, |now, bytes| now + bytes);
    }

    fn closed(&mut self, ledger: &Ledger<'_>, block: &Block, _: Option<&Row>) {
        self.change(ledger, block, u128::saturating_sub);
    }

    fn row(&mut self, ledger: &Ledger<'_>, row: &Row, _: Option<&str>) {
        if matches!(row.kind, Kind::Reserve | Kind::Release | Kind::Gauge) {
            self.enter(ledger);
            self.note_reserved(ledger);
            if row.kind == Kind::Gauge && row.tag == Gauge::DeviceUsed as u32 {
                self.measure_devices(ledger);
            }
        }
    }
}
