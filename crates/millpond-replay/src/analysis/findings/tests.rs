//! Tests each kind of finding on a recording that has it, and on a similar one that does not.

use super::{Finding, examine};
use crate::analysis::tests::made::Made;
use crate::analysis::{By, TimelineOptions, Window, recorded_steps, report_with_timeline, timeline};
use millpond_trace::recording::{Gauge, Kind, Row};

const MIB: u64 = 1 << 20;

fn found(made: Made) -> Vec<Finding> {
    let (_file, history) = made.history();
    let steps = recorded_steps(&history).expect("it is there");
    let examined = examine(&history, &history.definitions, Window::ALL, 3, steps.as_ref());
    let (summary, found) = examined.expect("it is there");
    // The parallel analysis gives the same result.
    let options = TimelineOptions {
        by: By::Tag,
        columns: 10,
        bands: 2,
    };
    let told = report_with_timeline(&history, &history.definitions, Window::ALL, 3, &options);
    let (told, drawn_beside) = told.expect("it is there");
    let drawn = timeline(&history, &history.definitions, &summary, &options).expect("it is there");
    assert_eq!((told.steps, &told.findings, drawn_beside), (steps, &found, drawn));
    found
}

fn one(made: Made, name: &str) -> Finding {
    let all = found(made);
    let names: Vec<&str> = all.iter().map(|finding| finding.name).collect();
    assert_eq!(names, [name], "{all:#?}");
    all.into_iter().next().expect("one")
}

fn none(made: Made) {
    let all = found(made);
    assert!(all.is_empty(), "{all:#?}");
}

/// Returns steps of ten blocks each. Each step also allocates the given number of bytes and does not free them.
fn steps(kept: impl Fn(u64) -> u64) -> Made {
    let mut made = Made::new(3);
    for step in 0..20 {
        made.next(Row {
            bytes: step,
            ..Row::new(Kind::Step, 0)
        });
        let mut blocks: Vec<Row> = (0..10).map(|_| made.alloc(1, MIB)).collect();
        if kept(step) > 0 {
            made.alloc(2, kept(step));
        }
        // The order changes, so that no free directly follows its allocation.
        blocks.rotate_left(5);
        for block in blocks {
            made.free(block);
        }
    }
    made
}

#[test]
fn growth_is_the_slope_over_all_steps() {
    let finding = one(steps(|_| MIB / 2), "growth from step to step");
    // From the beginning of the second step to that of the last one.
    assert_eq!(finding.bytes, 18 * MIB / 2);
    assert_eq!((finding.who[0].name.as_str(), finding.who.len()), ("tag 2", 1));
    assert!(
        finding.evidence.contains("512 KiB a step"),
        "{}",
        finding.evidence
    );
}

#[test]
fn a_single_large_allocation_is_not_growth() {
    none(steps(|step| if step == 0 { 100 * MIB } else { 0 }));
    none(steps(|step| if step == 10 { 100 * MIB } else { 0 }));
    none(steps(|_| 100));
}

fn pairs(temporary: u64, held: u64) -> Made {
    let mut made = Made::new(2);
    for _ in 0..temporary {
        let block = made.alloc(1, 4096);
        made.free(block);
    }
    let held: Vec<Row> = (0..held).map(|_| made.alloc(2, 64)).collect();
    for block in held {
        made.free(block);
    }
    made
}

#[test]
fn churn_is_counted() {
    let finding = one(pairs(1500, 500), "temporary churn");
    assert_eq!(
        (finding.who[0].name.as_str(), finding.who[0].blocks),
        ("tag 1", 1500)
    );
    // Too few temporary blocks, and too small a share. All held blocks are allocated before the first one is
    // freed, so they are not temporary.
    none(pairs(900, 0));
    none(pairs(1500, 6000));
}

fn rounded(requested: u64, bytes: u64) -> Made {
    let mut made = Made::new(2);
    for id in 1..=8 {
        made.next(Row {
            id,
            requested,
            bytes,
            pool: 1,
            tag: 1 + (id % 2) as u32,
            ..Row::new(Kind::Alloc, 0)
        });
    }
    made
}

#[test]
fn rounding_waste_is_measured_at_the_peak() {
    let finding = one(rounded(5 * MIB, 8 * MIB), "rounding waste");
    assert_eq!((finding.bytes, finding.who.len()), (24 * MIB, 2));
    none(rounded(7 * MIB + MIB / 2, 8 * MIB));
    none(rounded(50, 100));
}

fn parked(bytes: u64, others: u64) -> Made {
    let mut made = Made::new(2);
    let held = made.alloc(1, others);
    for _ in 0..5 {
        let block = made.alloc(2, bytes);
        made.next(Row {
            kind: Kind::FreeRequested,
            ..block
        });
        for _ in 0..3 {
            made.next(Row::new(Kind::Mark, 0));
        }
        made.next(Row {
            kind: Kind::FreeCompleted,
            ..block
        });
    }
    made.free(held);
    made
}

#[test]
fn memory_that_waits_for_streams_is_reported() {
    let finding = one(parked(8 * MIB, 16 * MIB), "memory parked by streams");
    assert_eq!(finding.bytes, 8 * MIB);
    assert_eq!(
        (finding.who[0].name.as_str(), finding.who[0].bytes),
        ("tag 2", 8 * MIB)
    );
    assert!(finding.evidence.contains("0.004 ms"), "{}", finding.evidence);
    none(parked(8 * MIB, 400 * MIB));
    none(parked(1000, 2000));
}

/// Makes a recording of two pools with three samples of their statistics.
fn waiting(bytes: [u64; 3], others: u64) -> Made {
    let mut made = Made::new(2);
    let held = made.alloc(1, others);
    for (round, waits) in (1..).zip(bytes) {
        // In each sample, memory waits in only one of the pools.
        let first = if round % 2 == 0 { waits } else { 0 };
        for (pool, allocated, waits) in [(1, others, first), (2, 0, waits - first)] {
            for (gauge, bytes) in [(Gauge::Allocated, allocated), (Gauge::Active, allocated + waits)] {
                made.row(Row {
                    pool,
                    bytes,
                    tag: gauge as u32,
                    ..Row::new(Kind::Gauge, held.time + round * 1_000_000)
                });
            }
        }
    }
    made.free(held);
    made
}

#[test]
fn waiting_memory_in_the_statistics_of_pools_is_reported() {
    let finding = one(
        waiting([6 * MIB, 8 * MIB, 0], 16 * MIB),
        "memory parked by streams",
    );
    assert_eq!(finding.bytes, 8 * MIB);
    assert_eq!(
        (finding.who[0].name.as_str(), finding.who[0].bytes),
        ("device (cuda:0)", 8 * MIB)
    );
    assert_eq!(finding.who.len(), 1);
    assert!(finding.evidence.contains("looked at"), "{}", finding.evidence);
    none(waiting([8 * MIB, 0, 0], 400 * MIB));
    none(waiting([1000, 0, 0], 2000));
    none(waiting([0, 0, 0], 16 * MIB));
}

fn reserved(bytes: u64, used: u64, later: u64) -> Made {
    let mut made = Made::new(2);
    made.next(Row {
        bytes,
        pool: 1,
        ..Row::new(Kind::Reserve, 0)
    });
    let peak = made.alloc(1, used);
    let stays = made.alloc(1, used / 2);
    made.free(peak);
    let mut before = made.alloc(2, later);
    for _ in 0..200 {
        let next = made.alloc(2, later);
        made.free(before);
        before = next;
    }
    made.free(stays);
    made
}

#[test]
fn reserved_memory_that_stays_unused_is_reported() {
    let finding = one(reserved(100 * MIB, 40 * MIB, MIB), "reserve never used again");
    // At the peak, 60 MiB were in blocks.
    assert_eq!(
        (finding.bytes, finding.who[0].name.as_str()),
        (40 * MIB, "device (cuda:0)")
    );
    none(reserved(63 * MIB, 40 * MIB, MIB));
}

fn pinned(times: u64, by_source: bool, keeps: bool) -> Made {
    let mut made = Made::new(1);
    for id in 1..=times {
        let block = Row {
            id,
            bytes: MIB,
            requested: MIB,
            pool: 2,
            tag: 1,
            ..Row::new(Kind::Alloc, 0)
        };
        let segment = Row {
            bytes: 2 * MIB,
            pool: 2,
            ..Row::new(Kind::Reserve, 0)
        };
        if by_source && (id == 1 || !keeps) {
            made.next(segment);
        }
        let block = made.next(block);
        // Another thread frees it.
        made.next(Row {
            kind: Kind::Free,
            thread: 2,
            ..block
        });
        if by_source && !keeps {
            made.next(Row {
                kind: Kind::Release,
                ..segment
            });
        }
    }
    made
}

#[test]
fn repeated_pinning_is_reported() {
    let finding = one(pinned(40, true, false), "pinned churn");
    assert_eq!(
        (finding.bytes, finding.who[0].blocks, finding.who[0].bytes),
        (2 * MIB, 40, 80 * MIB)
    );
    assert_eq!(one(pinned(40, false, false), "pinned churn").bytes, MIB);
    none(pinned(40, true, true));
    none(pinned(10, true, false));
}

/// Makes a recording of a pool with one segment, in which every other block is freed. Then a request exceeds
/// the size of a hole.
fn holes(block: u64, wanted: u64) -> Made {
    let mut made = Made::new(3);
    let start = 0x7000_0000_0000;
    made.next(Row {
        address: start,
        bytes: 16 * block,
        pool: 1,
        ..Row::new(Kind::Reserve, 0)
    });
    let mut blocks = Vec::new();
    for id in 1..=16 {
        let address = start + (id - 1) * block;
        let tag = 1 + (id % 2) as u32;
        blocks.push(made.next(Row {
            id,
            address,
            bytes: block,
            requested: block,
            pool: 1,
            tag,
            ..Row::new(Kind::Alloc, 0)
        }));
    }
    for block in blocks.iter().skip(1).step_by(2) {
        made.free(*block);
    }
    made.next(Row {
        address: start + (1 << 40),
        bytes: wanted,
        pool: 1,
        ..Row::new(Kind::Reserve, 0)
    });
    made.next(Row {
        id: 17,
        address: start + (1 << 40),
        bytes: wanted,
        requested: wanted,
        pool: 1,
        tag: 3,
        ..Row::new(Kind::Alloc, 0)
    });
    made
}

#[test]
fn holes_of_adjacent_segments_are_joined_only_if_a_block_spanned_both() {
    let start = 0x7000_0000_0000;
    let made = |is_joined: bool| {
        let mut made = Made::new(3);
        let of = |kind, address, bytes| Row {
            address: start + address,
            bytes,
            requested: bytes,
            pool: 1,
            ..Row::new(kind, 0)
        };
        for segment in 0..2 {
            made.next(of(Kind::Reserve, segment * 10 * MIB, 10 * MIB));
        }
        if is_joined {
            let row = Row {
                id: 9,
                ..of(Kind::Alloc, 9 * MIB, 2 * MIB)
            };
            let block = made.next(row);
            made.free(block);
        }
        made.next(Row {
            id: 1,
            tag: 1,
            ..of(Kind::Alloc, 0, 4 * MIB)
        });
        made.next(Row {
            id: 2,
            tag: 2,
            ..of(Kind::Alloc, 14 * MIB, 6 * MIB)
        });
        made.next(Row {
            address: 0,
            ..of(Kind::Refused, 0, 8 * MIB)
        });
        made
    };
    let finding = one(made(false), "no hole large enough");
    assert!(
        finding.evidence.contains("2 holes of at most 6.00 MiB"),
        "{}",
        finding.evidence
    );
    none(made(true));
}

#[test]
fn a_request_that_is_larger_than_every_hole_is_reported() {
    let finding = one(holes(4 * MIB, 8 * MIB), "no hole large enough");
    assert_eq!(finding.bytes, 32 * MIB);
    assert!(
        finding.evidence.contains("8 holes of at most 4.00 MiB"),
        "{}",
        finding.evidence
    );
    assert!(
        finding
            .who
            .iter()
            .all(|who| who.name == "tag 2" && who.bytes == 4 * MIB),
        "{:?}",
        finding.who
    );
    // A request larger than all free memory, one no larger than a hole, and one below the threshold.
    none(holes(4 * MIB, 64 * MIB));
    none(holes(4 * MIB, 4 * MIB));
    none(holes(4096, 8192));
}

#[test]
fn a_refused_request_that_is_larger_than_every_hole_is_reported() {
    let mut made = holes(4 * MIB, 64 * MIB);
    made.next(Row {
        requested: 10 * MIB,
        pool: 1,
        ..Row::new(Kind::Refused, 0)
    });
    let finding = one(made, "no hole large enough");
    assert!(
        finding.evidence.starts_with("a request of 10.0 MiB was refused"),
        "{}",
        finding.evidence
    );
}

fn segments(little: u64, others_stay: bool) -> Made {
    let mut made = Made::new(2);
    let start = |segment: u64| 0x1_0000_0000 + segment * (32 * MIB);
    for segment in 0..4 {
        let row = Row {
            address: start(segment),
            bytes: 32 * MIB,
            pool: 1,
            ..Row::new(Kind::Reserve, 0)
        };
        made.next(row);
    }
    let mut id = 0;
    let mut freed = Vec::new();
    for segment in 0..4 {
        for (offset, bytes, tag) in [(0, little, 1), (little, 16 * MIB, 2)] {
            id += 1;
            let address = start(segment) + offset;
            let row = Row {
                id,
                address,
                bytes,
                requested: bytes,
                pool: 1,
                tag,
                ..Row::new(Kind::Alloc, 0)
            };
            let row = made.next(row);
            if tag == 2 {
                freed.push(row);
            }
        }
    }
    for row in freed.into_iter().filter(|_| !others_stay) {
        made.free(row);
    }
    made
}

#[test]
fn small_blocks_that_keep_large_segments_are_reported() {
    let finding = one(segments(MIB, false), "long-lived block in a short-lived segment");
    assert_eq!(finding.bytes, 4 * 31 * MIB);
    assert_eq!(
        (finding.who[0].name.as_str(), finding.who[0].blocks),
        ("tag 1", 4)
    );
    none(segments(MIB, true));
    none(segments(8 * MIB, false));
}
