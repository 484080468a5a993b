//! Converts recordings in tests, and computes their expected values without a converter.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "test support; each test binary uses a part"
)]

use millpond_trace::ReadOptions;
use millpond_trace::export::{ExportOptions, Exported, Target, export};
use millpond_trace::history::{Flow, History, Live};
use millpond_trace::recording::{Kind, Row};
use std::path::{Path, PathBuf};

/// A file that is removed when it is dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str, bytes: &[u8]) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn open(file: &Scratch) -> History {
    History::open(&file.0, &ReadOptions::default())
        .unwrap_or_else(|error| panic!("{}: {error}", file.0.display()))
}

/// Converts a recording to the format of a file name.
pub(crate) fn converted(history: &History, name: &str, options: &ExportOptions<'_>) -> (Vec<u8>, Exported) {
    let target = Target::of_name(name).unwrap();
    let mut out = Vec::new();
    let exported = export(history, &history.definitions, target, options, &mut out).unwrap();
    (out, exported)
}

pub(crate) fn device(history: &History, pool: u32) -> i32 {
    history.definitions.pool(pool).map_or(-1, |pool| pool.device)
}

/// Returns the requested bytes of the live blocks on a device after everything that happened up to `time`.
pub(crate) fn live_on(history: &History, on: i32, time: u64) -> u64 {
    let live = history.live_at(time).unwrap();
    let there = live.blocks().filter(|row| device(history, row.pool) == on);
    there.map(|row| row.requested).sum()
}

/// Returns the time of the first row about a block or a range of a device.
pub(crate) fn first_on(history: &History, on: i32) -> u64 {
    let mut first = None;
    history
        .walk(|row, _| {
            let of_block = row.kind as u8 <= Kind::Refused as u8;
            if of_block && device(history, row.pool) == on {
                first = Some(row.time);
                return Flow::Stop;
            }
            Flow::On
        })
        .unwrap();
    first.unwrap()
}

/// The sums of a recording's own rows.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) peak: u64,
    pub(crate) total: u64,
    pub(crate) allocations: u64,
    pub(crate) end: u64,
}

pub(crate) fn sums(history: &History) -> Sums {
    let mut sums = Sums::default();
    let mut live = Live::default();
    // The rows of a keyframe belong to one moment. No peak occurs between them, and blocks that only they contain count
    // as allocated.
    let mut known = std::collections::HashSet::new();
    let mut last = Kind::End;
    history
        .walk(|row: &Row, _| {
            if row.kind != Kind::Live && row.kind != Kind::Keyframe {
                sums.peak = sums.peak.max(live.requested());
            }
            live.note(row);
            if matches!(row.kind, Kind::Alloc | Kind::Live) && known.insert(row.id) {
                sums.total += row.requested;
                sums.allocations += 1;
            }
            last = row.kind;
            Flow::On
        })
        .unwrap();
    assert_eq!(last, Kind::End);
    sums.peak = sums.peak.max(live.requested());
    sums.end = live.requested();
    sums
}

/// Returns ten times of a recording.
pub(crate) fn moments(history: &History) -> Vec<u64> {
    (1..=10)
        .map(|at| history.duration * at / 10 / 1_000 * 1_000)
        .collect()
}
