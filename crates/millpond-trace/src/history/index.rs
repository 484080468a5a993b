//! The places in a recording where a walk can begin: keyframes, with the additional state at each.
//!
//! A keyframe lists all blocks that callers hold, but neither the bytes that pools have reserved nor the measured
//! values. These are kept here as rows that come first.

use crate::recording::{Gauge, Kind, Row};

/// Maximum number of pools and devices whose figures are kept. A recording with more is read from its beginning.
const MOST_FIGURES: usize = 256;
/// The most figures kept at all places together, 72 bytes each. Later keyframes are not recorded as places.
const MOST_KEPT: usize = 1 << 18;

/// A place where a walk begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Number of the first row of the walk. The gauge rows come before the rows of the file.
    pub row: u64,
    /// The latest time before the keyframe.
    pub(super) latest: u64,
    /// Bytes of the file before the batch that contains the keyframe.
    pub(super) bytes: u64,
    /// The reserved bytes of pools, and the last measured values.
    pub(super) figures: Vec<Row>,
}

/// Records keyframes while a recording is read.
#[derive(Debug, Default)]
pub(super) struct KeyframeIndex {
    starts: Vec<Start>,
    figures: Vec<Row>,
    has_too_many: bool,
    /// Number of blocks that streams still use. A keyframe does not list them.
    parked: u64,
    latest: u64,
    /// The number of figures at all `starts`.
    kept: usize,
    /// The state at the start of the current batch.
    batch: Start,
}

impl KeyframeIndex {
    /// Starts a batch after `bytes` bytes and `row` rows.
    pub(super) fn begin_batch(&mut self, bytes: u64, row: u64) {
        let figures = if self.has_too_many {
            Vec::new()
        } else {
            self.figures.clone()
        };
        self.batch = Start {
            row: row.saturating_sub(figures.len() as u64),
            latest: self.latest,
            bytes,
            figures,
        };
    }

    #[inline]
    pub(super) fn note(&mut self, row: &Row) {
        if row.kind == Kind::Live {
            return;
        }
        self.latest = self.latest.max(row.time);
        match row.kind {
            Kind::Alloc | Kind::Free => {}
            Kind::FreeRequested => self.parked += 1,
            Kind::FreeCompleted => self.parked = self.parked.saturating_sub(1),
            Kind::Reserve => self.reserve(row, u64::saturating_add),
            Kind::Release => self.reserve(row, u64::saturating_sub),
            Kind::Gauge => self.set(row),
            Kind::Keyframe => self.keyframe(),
            _ => {}
        }
    }

    /// Records the first keyframe of a batch. The keyframe replaces everything before it in the batch.
    fn keyframe(&mut self) {
        let is_noted = self
            .starts
            .last()
            .is_some_and(|last| last.bytes == self.batch.bytes);
        if self.parked > 0 || self.has_too_many || is_noted || self.kept > MOST_KEPT {
            return;
        }
        let mut start = std::mem::take(&mut self.batch);
        start.latest = self.latest;
        self.batch.bytes = start.bytes;
        // A place takes as much memory as two figures.
        self.kept += start.figures.len() + 2;
        self.starts.push(start);
    }

    fn reserve(&mut self, row: &Row, change: impl Fn(u64, u64) -> u64) {
        let figure = Row {
            kind: Kind::Gauge,
            tag: Gauge::Reserved as u32,
            stream: 0,
            bytes: 0,
            ..*row
        };
        let before = self.figures.iter().find(|other| is_same(other, &figure));
        let bytes = change(before.map_or(0, |before| before.bytes), row.bytes);
        self.set(&Row { bytes, ..figure });
    }

    fn set(&mut self, row: &Row) {
        let room = self.figures.len() < MOST_FIGURES;
        match self.figures.iter_mut().find(|other| is_same(other, row)) {
            Some(figure) => *figure = *row,
            None if room => self.figures.push(*row),
            None => self.has_too_many = true,
        }
    }

    /// Returns the places where walks can begin.
    pub(super) fn finish(self) -> Vec<Start> {
        self.starts
    }
}

/// Returns whether two rows measure the same quantity.
fn is_same(one: &Row, other: &Row) -> bool {
    let is_of_pool = Gauge::from_number(one.tag) == Some(Gauge::Reserved);
    (one.tag, one.pool) == (other.tag, other.pool) && (is_of_pool || one.stream == other.stream)
}
