//! Finds uses of memory that are worth changing in a recorded program. Each finding has a name, evidence in
//! numbers, the groups responsible, and a remedy.
//!
//! Each kind of finding has its own file. All kinds observe the recording in one walk and report at its end.
//! The thresholds are at the top of each file. A finding should be worth a person's time.

mod churn;
mod growth;
mod hole;
mod long_lived;
mod parked;
mod pinned;
mod rounding;
mod unused;

#[cfg(test)]
mod tests;

use super::groups::{By, Groups, Lines, pool_name};
use super::held::Group;
use super::ledger::{Block, Ledger, Parked, Watch, walk};
use super::steps::RecordedSteps;
use super::summary::{Gathering, Summary};
use super::{Map, Window, shown};
use crate::ranges::Ranges;
use millpond_engine::display_size;
use millpond_trace::history::{History, HistoryError, Symbols};
use millpond_trace::recording::{Kind, Row};
use serde::Serialize;

/// The most groups named in each finding.
const NAMED: usize = 3;

/// A group that is responsible for a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Who {
    /// The group's name.
    pub name: String,
    /// Its share of the bytes.
    pub bytes: u64,
    /// The number of its blocks.
    pub blocks: u64,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The kind of finding, in one or two words.
    pub name: &'static str,
    /// The bytes that a change could save.
    pub bytes: u64,
    /// The evidence, in numbers.
    pub evidence: String,
    /// The first and the last moment, in nanoseconds since the recording began. `None` if it applies all the
    /// time.
    pub when: Option<(u64, u64)>,
    /// The responsible groups, the largest share first.
    pub who: Vec<Who>,
    /// The remedy, in one sentence.
    pub remedy: &'static str,
}

/// The state at the end of a walk.
struct WindowEnd<'a> {
    history: &'a History,
    summary: &'a Summary,
    ledger: &'a Ledger<'a>,
}

/// A kind of finding.
trait Lint: Watch {
    fn told(&self, seen: &WindowEnd<'_>) -> Option<Finding>;
}

/// Summarises a window and returns its findings, the most bytes first. This takes one walk. Growth is reported
/// only if steps are known.
///
/// # Errors
/// Returns an error if the recording can no longer be read.
pub fn examine(
    history: &History,
    symbols: &dyn Symbols,
    window: Window,
    largest: usize,
    steps: Option<&RecordedSteps>,
) -> Result<(Summary, Vec<Finding>), HistoryError> {
    let groups = Groups::new(&history.definitions, symbols, Lines::Told);
    let mut both = Both {
        gathering: Gathering::new(largest),
        lints: vec![
            Box::new(growth::Growth::new(steps)),
            Box::new(churn::Churn),
            Box::new(rounding::RoundingWaste),
            Box::new(parked::ParkedLong::default()),
            Box::new(unused::Unused::default()),
            Box::new(pinned::Pinned::default()),
            Box::new(hole::Hole::default()),
            Box::new(long_lived::LongLived::default()),
        ],
    };
    let ledger = walk(history, groups, window, &mut both)?;
    let summary = both.gathering.finish(history, &ledger, window, Lines::Told);
    let seen = WindowEnd {
        history,
        summary: &summary,
        ledger: &ledger,
    };
    let mut found: Vec<Finding> = both.lints.iter().filter_map(|lint| lint.told(&seen)).collect();
    sort(&mut found);
    Ok((summary, found))
}

/// Finds only growth, in a window whose summary is known.
///
/// # Errors
/// Returns the errors of [`examine`].
pub(super) fn growth(
    history: &History,
    window: Window,
    summary: &Summary,
    steps: &RecordedSteps,
) -> Result<Option<Finding>, HistoryError> {
    let groups = Groups::new(&history.definitions, &history.definitions, Lines::Told);
    let mut growth = growth::Growth::new(Some(steps));
    let ledger = walk(history, groups, window, &mut growth)?;
    let seen = WindowEnd {
        history,
        summary,
        ledger: &ledger,
    };
    Ok(growth.told(&seen))
}

/// Sorts findings, the most bytes first.
pub(super) fn sort(found: &mut [Finding]) {
    found.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(b.name)));
}

/// A summary and all kinds of findings, which observe the same changes.
struct Both {
    gathering: Gathering,
    lints: Vec<Box<dyn Lint>>,
}

impl Watch for Both {
    fn begins(&mut self, ledger: &Ledger<'_>) {
        self.gathering.begins(ledger);
        self.lints.iter_mut().for_each(|lint| lint.begins(ledger));
    }

    fn opened(&mut self, ledger: &Ledger<'_>, block: &Block) {
        self.gathering.opened(ledger, block);
        self.lints.iter_mut().for_each(|lint| lint.opened(ledger, block));
    }

    fn closed(&mut self, ledger: &Ledger<'_>, block: &Block, by: Option<&Row>) {
        self.gathering.closed(ledger, block, by);
        self.lints
            .iter_mut()
            .for_each(|lint| lint.closed(ledger, block, by));
    }

    fn passed(&mut self, ledger: &Ledger<'_>, block: &Parked, by: &Row) {
        self.gathering.passed(ledger, block, by);
        self.lints
            .iter_mut()
            .for_each(|lint| lint.passed(ledger, block, by));
    }

    fn row(&mut self, ledger: &Ledger<'_>, row: &Row, text: Option<&str>) {
        self.gathering.row(ledger, row, text);
        self.lints.iter_mut().for_each(|lint| lint.row(ledger, row, text));
    }
}

/// Applies a row to the segments of each pool. A segment that the pool takes gets a value.
fn note_segment<T: Clone + Default>(segments: &mut Map<u32, Ranges<T>>, row: &Row, with: T) {
    if row.address == 0 {
        return;
    }
    match row.kind {
        Kind::Reserve => segments
            .entry(row.pool)
            .or_default()
            .add(row.address, row.bytes, with),
        Kind::Release => {
            segments
                .entry(row.pool)
                .or_default()
                .remove(row.address, row.bytes);
        }
        _ => {}
    }
}

/// Formats a size.
fn size(bytes: u128) -> String {
    display_size(shown(bytes)).to_string()
}

/// Formats a share in per cent.
fn percent(part: u128, whole: u128) -> String {
    format!("{:.0} %", part as f64 / whole.max(1) as f64 * 100.0)
}

/// Returns the holders with the most bytes, from sums by group number.
fn who(ledger: &Ledger<'_>, counted: &Map<u32, (u128, u64)>) -> Vec<Who> {
    let name = |group: &u32| ledger.groups.name(ledger.groups.usual(), *group).to_owned();
    let all = counted
        .iter()
        .map(|(group, (bytes, blocks))| (*bytes, name(group), *blocks));
    largest(all.collect())
}

/// Returns the groups with the most bytes, from groups with names.
fn who_of(groups: &[Group]) -> Vec<Who> {
    let all = groups
        .iter()
        .map(|group| (group.sum.bytes, group.name.clone(), group.sum.blocks));
    largest(all.collect())
}

/// Returns the pools with the most bytes, from numbers, bytes and blocks of pools.
fn who_pools(history: &History, pools: impl Iterator<Item = (u32, u128, u64)>) -> Vec<Who> {
    let name = |pool: u32| pool_name(pool, history.definitions.pool(pool));
    largest(
        pools
            .map(|(pool, bytes, blocks)| (bytes, name(pool), blocks))
            .collect(),
    )
}

fn largest(mut all: Vec<(u128, String, u64)>) -> Vec<Who> {
    all.retain(|(bytes, ..)| *bytes > 0);
    all.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let told = all.into_iter().take(NAMED).map(|(bytes, name, blocks)| Who {
        name,
        bytes: shown(bytes),
        blocks,
    });
    told.collect()
}
