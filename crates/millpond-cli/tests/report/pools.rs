//! Tests reports of recorded pools: the bytes that they take, and those from before the recording.

use super::shown;
use crate::support::{folder, run};
use millpond_trace::recording::{Gauge, Kind, Row, Writer};

/// Writes a recording of two pools of host memory, with a row for each millisecond. A row has a kind, the number of its pool, the number of
/// its block, and its size in MiB. Measurements are of `gauge`.
fn recorded(name: &str, gauge: Gauge, rows: &[(Kind, u32, u64, u64)]) -> String {
    let path = folder(name).join("made.mpr");
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    for pool in [1, 2] {
        let define = Row::define(Kind::DefinePool, pool, 0);
        writer
            .say(&define, Some("host\nprogram\nmillpond"), Some(&[u64::MAX]))
            .expect("memory");
    }
    for (time, (kind, pool, id, mib)) in (1..).zip(rows) {
        let row = Row {
            pool: *pool,
            bytes: mib << 20,
            requested: mib << 20,
            id: *id,
            tag: if *kind == Kind::Gauge { gauge as u32 } else { 0 },
            ..Row::new(*kind, 1_000_000 * time)
        };
        writer.push(&row).expect("memory");
    }
    let bytes = writer.finish(1_000_000_000).expect("memory");
    std::fs::write(&path, bytes).expect("written");
    shown(&path)
}

/// The first segment was taken before the recording began, and more was measured in main memory than all segments have.
#[test]
fn memory_from_before_and_beside_the_recording_is_counted() {
    let path = folder("before").join("made.mpr");
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    let define = Row {
        pool: 1,
        ..Row::new(Kind::DefinePool, 0)
    };
    writer
        .say(&define, Some("host\nprogram\nmillpond"), Some(&[u64::MAX]))
        .expect("memory");
    let of_pool = |kind, time| Row {
        pool: 1,
        ..Row::new(kind, time)
    };
    let gauge = |gauge: Gauge, pool, bytes| Row {
        tag: gauge as u32,
        pool,
        bytes,
        ..Row::new(Kind::Gauge, 3)
    };
    for row in [
        Row {
            bytes: 2 << 20,
            ..of_pool(Kind::Reserve, 1)
        },
        Row {
            id: 1,
            bytes: 3 << 20,
            requested: 3 << 20,
            ..of_pool(Kind::Alloc, 2)
        },
        gauge(Gauge::Reserved, 1, 4 << 20),
        gauge(Gauge::Allocated, 1, 7 << 19),
        gauge(Gauge::Resident, 0, 300 << 20),
    ] {
        writer.push(&row).expect("memory");
    }
    std::fs::write(&path, writer.finish(10).expect("memory")).expect("written");
    let (_, text, _) = run(&["report", &shown(&path)]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "holds at most 3.00 MiB at once, and its pool takes at most 4.00 MiB from the system.",
        "The pool's memory includes 512 KiB of blocks from before the recording",
        "unlisted 512 KiB in blocks from before the recording; a child of a fork inherits such blocks",
        "reserved 4.00 MiB then, 12 % of it held by no block",
        "resident 300 MiB of main memory at most; 296 MiB of it did not come from the recorded pools",
    ] {
        assert!(words.contains(part), "{text}");
    }
}

/// The child of a fork inherits 30 MiB, allocates 10 MiB, and frees what it inherited.
#[test]
fn inherited_blocks_count_until_they_are_freed() {
    let rows = [
        (Kind::Gauge, 1, 0, 30),
        (Kind::Alloc, 1, 9, 10),
        (Kind::Gauge, 1, 0, 40),
        (Kind::Free, 1, 3, 30),
        (Kind::Gauge, 1, 0, 10),
    ];
    let file = recorded("inherited", Gauge::Allocated, &rows);
    let at = |time: &str| run(&["report", &file, "--at", time]).1;
    let (before, after) = (at("3ms"), at("end"));
    let unlisted = "unlisted      30.0 MiB in blocks from before the recording";
    assert!(before.contains(unlisted), "{before}");
    assert!(!after.contains("unlisted"), "{after}");
}

/// Pool 2 holds 50 MiB, and a request to pool 1 is refused.
#[test]
fn a_refusal_is_explained_with_the_figures_of_its_own_pool() {
    let rows = [
        (Kind::Reserve, 1, 0, 6),
        (Kind::Alloc, 1, 1, 6),
        (Kind::Reserve, 2, 0, 50),
        (Kind::Alloc, 2, 2, 50),
        (Kind::Refused, 1, 0, 4),
    ];
    let file = recorded("refusing_pool", Gauge::Reserved, &rows);
    let (_, text, _) = run(&["report", &file]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let why = "Its pool had taken 6.00 MiB from its source, of which the program held 6.00 MiB";
    assert!(words.contains(why), "{text}");
}

/// A measurement can contain a change whose event follows it, or lack one whose event precedes it.
#[test]
fn reserved_bytes_are_the_sum_of_the_recorded_changes() {
    let rows = [
        (Kind::Reserve, 1, 0, 2),
        (Kind::Gauge, 1, 0, 4),
        (Kind::Reserve, 1, 0, 2),
        (Kind::Reserve, 1, 0, 3),
        (Kind::Gauge, 1, 0, 4),
        (Kind::Alloc, 1, 1, 6),
        (Kind::Gauge, 1, 0, 7),
    ];
    let file = recorded("reserved", Gauge::Reserved, &rows);
    let (_, text, _) = run(&["report", &file]);
    for part in [
        "reserved      7.00 MiB then, 14 % of it held by no block",
        "peak reserved 7.00 MiB, 4.00 ms in",
    ] {
        assert!(text.contains(part), "{text}");
    }
}
