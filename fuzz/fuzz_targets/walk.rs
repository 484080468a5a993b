//! What must hold of every file that is opened as a recording, whoever made it: all that `report`, `diff` and `convert` do with one
//! ends, and its figures agree with each other.

use millpond_replay::ReplayError;
use millpond_replay::analysis::{
    At, By, Lines, Moment, TimelineOptions, Window, at, diff, examine, recorded_steps, timeline,
};
use millpond_replay::view::{WhatIf, WhatIfError};
use millpond_trace::ReadOptions;
use millpond_trace::export::{Dialect, ExportError, ExportOptions, Packing, Target, export};
use millpond_trace::history::{Flow, History};
use std::io;
use std::path::Path;

/// Takes all that is written, and says no where no recording is worth so much.
struct Bounded(u64);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self
            .0
            .checked_sub(bytes.len() as u64)
            .ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Opens a file and does with it what the commands do. Answers whether it is a recording.
pub(crate) fn walk(path: &Path, most_written: u64) -> bool {
    let history = match History::open(path, &ReadOptions::default()) {
        Ok(history) => history,
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            return false;
        }
    };
    let mut rows = 0;
    history
        .walk(|_, _| {
            rows += 1;
            Flow::On
        })
        .expect("it is as it was when it was opened");
    assert_eq!(rows, history.len, "all walks see the same rows");
    look(&history);
    replay(&history);
    for dialect in Dialect::ALL {
        let target = Target {
            dialect,
            packing: Packing::Plain,
        };
        let out = Bounded(most_written);
        match export(
            &history,
            &history.definitions,
            target,
            &ExportOptions::default(),
            out,
        ) {
            Ok(_) | Err(ExportError::Nothing(_)) => {}
            Err(error) => panic!("{dialect:?}: {error}"),
        }
    }
    true
}

/// What the viewer draws of other policies.
fn replay(history: &History) {
    let what_if = match WhatIf::new(history) {
        Ok(what_if) => what_if,
        Err(WhatIfError::Traces(ExportError::Nothing(_))) => return,
        Err(error) => panic!("{error}"),
    };
    for policy in ["millpond", "torch-native"] {
        let line = match what_if.under(policy) {
            Ok(line) => line,
            Err(WhatIfError::Replay(ReplayError::Beyond { .. })) => continue,
            Err(error) => panic!("{error}"),
        };
        let times = line["times"].as_array().expect("a list");
        assert!(times.is_sorted_by_key(|time| time.as_u64()), "times go back");
        assert_eq!(Some(times.len()), line["bytes"].as_array().map(Vec::len));
    }
}

fn look(history: &History) {
    let symbols = &history.definitions;
    let steps = recorded_steps(history).expect("it can be walked");
    let (summary, findings) =
        examine(history, symbols, Window::ALL, 10, steps.as_ref()).expect("it can be walked");
    let is_sorted = findings.is_sorted_by(|one, other| one.bytes >= other.bytes);
    assert!(is_sorted, "the most bytes first");
    for by in [By::Tag, By::Pool] {
        let sum = summary.end.by(by).iter().map(|group| group.sum);
        let sum = sum.reduce(|one, other| one.and(other)).unwrap_or_default();
        assert_eq!(sum.shown(), summary.end.sum.shown(), "groups add up to the whole");
    }
    let options = TimelineOptions {
        by: By::Tag,
        columns: 100,
        bands: 5,
    };
    timeline(history, symbols, &summary, &options).expect("it can be walked");
    let live = history.live_at(u64::MAX).expect("it can be walked");
    assert!(live.blocks().all(|row| live.get(row.id) == Some(row)));
    let end = at(history, symbols, Lines::Told, Window::ALL, Moment::End, 10).expect("there is an end");
    let peak = At::peak(summary);
    let changes = diff(
        [&peak.summary, &end.summary],
        [peak.held(), end.held()],
        By::Tag,
        10,
    );
    assert!(changes.groups.len() <= 10);
}
