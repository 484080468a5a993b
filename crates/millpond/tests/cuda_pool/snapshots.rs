//! Snapshots of a device's pool, on request and when it has run out of memory.

use crate::{MIB, builder, device, is_alone};
use millpond::{Tracking, record::Snapshots, snapshot, tag};
use millpond_trace::history::History;
use millpond_trace::recording::{End, Gauge, Kind, Row};
use std::path::Path;

fn open(path: &Path) -> (History, Vec<Row>) {
    let history = History::open(path, &millpond_trace::ReadOptions::default()).expect("it opens");
    assert_eq!(history.end, Some(End::Closed));
    let mut rows = Vec::new();
    let walked = history.walk(|row, _| {
        rows.push(*row);
        millpond_trace::history::Flow::On
    });
    walked.expect("it is there");
    std::fs::remove_file(path).expect("a file");
    (history, rows)
}

fn live(history: &History, rows: &[Row], name: &str) -> Vec<Row> {
    let pools = history.definitions.pools();
    let of = pools.iter().find(|(_, pool)| pool.name == name).expect("defined");
    assert_eq!((of.1.memory.as_str(), of.1.device), ("cuda", 0));
    assert_eq!(of.1.policy, "millpond");
    let live = rows
        .iter()
        .filter(|row| row.kind == Kind::Live && row.pool == of.0);
    live.copied().collect()
}

#[test]
fn a_snapshot_is_written_when_a_device_runs_out_of_memory() {
    if !is_alone("snapshots::a_snapshot_is_written_when_a_device_runs_out_of_memory") {
        return;
    }
    let Some((device, stream)) = device() else { return };
    let folder = std::env::temp_dir();
    let here = std::process::id();
    Snapshots::new().on_out_of_memory(folder.join("millpond-cuda-%p-%n.mpr"));
    let make = |name, account| {
        let builder = builder().name(name).limit(32 * MIB).track(account);
        builder.build(&device).expect("a pool")
    };
    let (told, silent) = (make("told", Some(Tracking::All)), make("silent", None));
    let _scope = tag("layers");
    let held: Vec<_> = (0..3)
        .map(|_| told.alloc::<u8>(8 << 20, &stream).expect("room"))
        .collect();
    let quiet: Vec<_> = (1..9)
        .map(|at| silent.alloc::<u8>(at << 18, &stream).expect("room"))
        .collect();
    drop(silent.alloc::<u8>(1 << 20, &stream).expect("room"));
    let error = told.alloc::<u8>(20 << 20, &stream).expect_err("there is no more");
    let path = folder.join(format!("millpond-cuda-{here}-1.mpr"));
    assert_eq!(error.snapshot(), Some(&*path), "{error}");
    let (history, rows) = open(&path);
    let of_told = live(&history, &rows, "told");
    assert_eq!(of_told.len(), held.len());
    for row in of_told {
        assert_eq!(
            (row.requested, history.definitions.tag(row.tag)),
            (8 << 20, "layers")
        );
    }
    let of_silent: u64 = live(&history, &rows, "silent").iter().map(|row| row.bytes).sum();
    assert_eq!(of_silent, silent.stats().allocated.current);
    let refused: Vec<u64> = rows
        .iter()
        .filter(|row| row.kind == Kind::Refused)
        .map(|row| row.requested)
        .collect();
    assert_eq!(refused, [20 << 20]);
    let measures = |gauge: Gauge| {
        let of = |row: &&Row| row.kind == Kind::Gauge && row.tag == gauge as u32;
        rows.iter().filter(of).count()
    };
    assert_eq!(
        (measures(Gauge::DeviceUsed), measures(Gauge::DeviceTotal)),
        (1, 1)
    );
    drop(held);
    let path = folder.join(format!("millpond-cuda-{here}.mpr"));
    snapshot(&path).expect("it is written");
    let (history, rows) = open(&path);
    assert!(live(&history, &rows, "told").is_empty());
    assert_eq!(live(&history, &rows, "silent").len(), quiet.len());
}
