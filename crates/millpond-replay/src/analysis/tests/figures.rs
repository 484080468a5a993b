//! Tests figures with known values: sources, gauges, losses, names and steps.

use super::made::{Made, Scratch};
use super::{By, Window};
use crate::analysis::{
    AnalysisError, Hits, Lines, Moment, MomentError, StepSource, Summary, TimelineOptions, at, examine,
    recorded_steps, summary, timeline,
};
use millpond_trace::history::History;
use millpond_trace::recording::{Gauge, Kind, Row};

fn of(history: &History, window: Window) -> Summary {
    summary(history, &history.definitions, Lines::Told, window, 3).expect("it is there")
}

fn gauge(gauge: Gauge, pool: u32, device: u32, bytes: u64) -> Row {
    Row {
        tag: gauge as u32,
        pool,
        stream: device,
        bytes,
        ..Row::new(Kind::Gauge, 0)
    }
}

/// The oracle found this case. The first row of a window comes after the moment at which the window begins.
#[test]
fn an_empty_block_at_the_first_row_is_not_held_at_a_peak_before_it() {
    let mut made = Made::new(1);
    let one = made.alloc(1, 700);
    let from = one.time + 1;
    let empty = made.alloc(1, 0);
    made.free(one);
    made.free(empty);
    let (_file, history) = made.history();
    let found = of(&history, Window::Times { from, to: u64::MAX });
    let sizes: Vec<u64> = found.peak.largest.iter().map(|block| block.bytes).collect();
    assert_eq!((found.peak.sum.blocks, sizes), (1, vec![700]));
}

#[test]
fn reserved_bytes_and_gauges_are_summarised_by_pool() {
    let mut made = Made::new(1);
    made.next(gauge(Gauge::Hits, 1, 0, 10));
    made.next(gauge(Gauge::Allocations, 1, 0, 20));
    let from = made
        .next(Row {
            bytes: 1000,
            pool: 1,
            ..Row::new(Kind::Reserve, 0)
        })
        .time
        + 1;
    let one = made.alloc(1, 400);
    made.next(gauge(Gauge::DeviceUsed, 0, 0, 5000));
    made.next(Row {
        bytes: 500,
        pool: 1,
        ..Row::new(Kind::Reserve, 0)
    });
    let two = made.alloc(1, 600);
    made.free(one);
    made.next(Row {
        bytes: 700,
        pool: 1,
        ..Row::new(Kind::Release, 0)
    });
    made.next(gauge(Gauge::Hits, 1, 0, 16));
    made.next(gauge(Gauge::Allocations, 1, 0, 28));
    made.free(two);
    let (_file, history) = made.history();
    let found = of(&history, Window::Times { from, to: u64::MAX });
    assert_eq!(found.peak_reserved.map(|peak| peak.bytes), Some(1500));
    assert_eq!(
        (found.peak.sum.bytes, found.peak.reserved_bytes),
        (1000, Some(1500))
    );
    assert_eq!(found.end.reserved_bytes, Some(800));
    let share = found.peak.fragmentation().expect("reserved is known");
    assert!((share - 1.0 / 3.0).abs() < 1e-12, "{share}");
    assert_eq!(
        found.hits,
        Some(Hits {
            hits: 6,
            allocations: 8
        })
    );
    let pool = &found.pools[0];
    assert_eq!(
        (pool.name.as_str(), pool.kind.as_str(), pool.device),
        ("device (cuda:0)", "cuda:0", 0)
    );
    assert_eq!(
        (pool.allocations, pool.frees, pool.end_reserved),
        (2, 2, Some(800))
    );
    let options = TimelineOptions {
        by: By::Tag,
        columns: 4,
        bands: 2,
    };
    let drawn = timeline(&history, &history.definitions, &found, &options).expect("it is there");
    let most =
        |line: Option<Vec<crate::analysis::Sample>>| line.and_then(|line| line.iter().map(|s| s.most).max());
    assert_eq!(most(drawn.reserved), Some(1500));
    // The device has 5,000 bytes in use, and the pool has 1,000 of them at first.
    assert_eq!(most(drawn.unexplained), Some(4000));
}

#[test]
fn a_summary_lists_the_missing_parts() {
    let mut made = Made::new(1);
    made.alloc(1, 100);
    made.next(Row {
        id: 7,
        requested: 300,
        bytes: 200,
        ..Row::new(Kind::Lost, 0)
    });
    let unknown = Row {
        id: 1,
        ..Row::new(Kind::Free, 0)
    };
    made.next(unknown);
    made.next(unknown);
    for _ in 0..70_000 {
        let row = made.alloc(1, 64);
        made.free(row);
    }
    let bytes = made.bytes();
    let file = Scratch::new(&bytes);
    let whole = file.open();
    let loss = of(&whole, Window::ALL).loss;
    assert_eq!(
        (
            loss.events,
            loss.allocated_bytes,
            loss.freed_bytes,
            loss.unknown_frees
        ),
        (7, 300, 200, 1)
    );
    assert!(
        loss.sentences.len() == 1 && loss.sentences[0].starts_with("7 events are lost"),
        "{loss:?}"
    );
    let cut = Scratch::new(&bytes[..bytes.len() - 100]);
    let loss = of(&cut.open(), Window::ALL).loss;
    assert!(
        loss.sentences.iter().any(|line| line.contains("truncated after")),
        "{loss:?}"
    );
    let mut bad = bytes;
    let at = bad.len() - 2000;
    bad.truncate(at);
    bad.extend([0x55; 64]);
    let damaged = Scratch::new(&bad);
    let loss = of(&damaged.open(), Window::ALL).loss;
    assert!(
        loss.sentences
            .iter()
            .any(|line| line.contains("truncated after") || line.contains("damaged after")),
        "{loss:?}"
    );
}

#[test]
fn a_truncated_keyframe_closes_no_blocks() {
    let mut made = Made::new(1);
    let one = made.alloc(1, 100);
    made.alloc(1, 50);
    made.next(Row {
        bytes: 2,
        ..Row::new(Kind::Keyframe, 0)
    });
    made.row(Row {
        kind: Kind::Live,
        ..one
    });
    let (_file, history) = made.history();
    assert_eq!(of(&history, Window::ALL).end.sum.bytes, 150);
}

#[test]
fn repeated_marks_are_steps() {
    let mut made = Made::new(2);
    for number in 0..4 {
        let mark = Row::new(Kind::Mark, 1 + number * 100_000);
        made.say(&mark, &format!("epoch {number}"), None);
        made.row(Row {
            id: number + 1,
            bytes: 10 + number,
            pool: 1,
            tag: 1,
            ..Row::new(Kind::Alloc, 50 + number * 100_000)
        });
    }
    let (_file, history) = made.history();
    let found = recorded_steps(&history).expect("it is there").expect("marks");
    assert_eq!(found.source, StepSource::Marks("epoch #".to_owned()));
    let begins: Vec<u64> = found.steps.iter().map(|step| step.begin_bytes).collect();
    assert_eq!(begins, [0, 10, 21, 33]);
    let held = |moment| {
        at(
            &history,
            &history.definitions,
            Lines::Told,
            Window::ALL,
            moment,
            1,
        )
    };
    assert_eq!(held(Moment::Step(2)).expect("there").held().sum.bytes, 33);
    assert_eq!(held(Moment::Time(100_050)).expect("there").held().sum.bytes, 21);
    assert_eq!(held(Moment::End).expect("there").held().sum.bytes, 46);
    let missing = held(Moment::Step(9)).expect_err("there are four");
    let expected = MomentError::NoSuchStep {
        recording: "made".to_owned(),
        wanted: 9,
        first: 0,
        last: 3,
    };
    assert!(matches!(missing, AnalysisError::Moment(error) if error == expected));
}

/// Repeats the same 200 allocations twelve times.
fn repeating(mut made: Made) -> Made {
    made.alloc(1, 1 << 20);
    for _ in 0..12 {
        let mut held = Vec::new();
        for size in 0..200u64 {
            held.push(made.alloc(2, 4096 * (1 + size % 37)));
            if size % 3 == 2 {
                let row = held.remove(0);
                made.free(row);
            }
        }
        for row in held {
            made.free(row);
        }
    }
    made
}

#[test]
fn a_loop_far_below_the_peak_is_not_a_step() {
    let mut made = Made::new(2);
    let large = made.alloc(1, 1 << 40);
    made.free(large);
    let (_file, history) = repeating(made).history();
    assert_eq!(recorded_steps(&history).expect("it is there"), None);
}

#[test]
fn a_repeated_pattern_is_a_step() {
    let (_file, history) = repeating(Made::new(2)).history();
    let found = recorded_steps(&history)
        .expect("it is there")
        .expect("it repeats");
    assert_eq!(found.source, StepSource::Pattern(200));
    assert!(found.steps.len() >= 10, "{}", found.steps.len());
    assert!(
        found
            .steps
            .iter()
            .all(|step| step.allocations == 200 && step.begin_bytes == 1 << 20)
    );
    let peak = of(&history, Window::ALL).peak.sum.shown();
    assert!(found.steps.iter().all(|step| step.peak.bytes == peak));
}

#[test]
fn hostile_names_and_sizes_do_not_break_the_analysis() {
    let mut made = Made::new(0);
    let long = "x;".repeat(100_000);
    for (number, text) in [
        (1, "\u{1b}]0;evil\u{7}"),
        (2, "a\nb\0c"),
        (3, long.as_str()),
        (u32::MAX, "last"),
    ] {
        made.say(
            &Row {
                tag: number,
                ..Row::new(Kind::DefineTag, 0)
            },
            text,
            None,
        );
    }
    for tag in [1, 2, 3, u32::MAX, 77] {
        made.alloc(tag, u64::MAX);
        made.next(Row {
            bytes: u64::MAX,
            pool: u32::MAX,
            stream: u32::MAX,
            thread: u32::MAX,
            stack: u32::MAX,
            ..Row::new(Kind::Reserve, 0)
        });
    }
    made.row(Row {
        bytes: u64::MAX,
        ..Row::new(Kind::Step, u64::MAX)
    });
    made.row(Row {
        bytes: 0,
        ..Row::new(Kind::Step, 3)
    });
    let (_file, history) = made.history();
    let found = of(&history, Window::ALL);
    assert_eq!(found.peak.sum.bytes, 5 * u128::from(u64::MAX));
    assert_eq!(
        (found.peak.sum.shown(), found.peak_reserved.map(|peak| peak.bytes)),
        (u64::MAX, Some(u64::MAX))
    );
    let options = TimelineOptions {
        by: By::Site,
        columns: 3,
        bands: 99,
    };
    assert_eq!(
        timeline(&history, &history.definitions, &found, &options)
            .expect("it is there")
            .columns(),
        3
    );
    assert_eq!(
        recorded_steps(&history)
            .expect("it is there")
            .map(|found| found.steps.len()),
        Some(2)
    );
    let steps = recorded_steps(&history).expect("it is there");
    let examined = examine(&history, &history.definitions, Window::ALL, 3, steps.as_ref());
    assert_eq!(examined.expect("it is there").0.peak.sum, found.peak.sum);
}

#[test]
fn a_summary_lists_the_statements_of_a_snapshot() {
    let mut made = Made::new(1);
    made.alloc(1, 100);
    for text in [
        "half",
        "snapshot: \u{1b}[2Jpool 1 keeps no account\nof its blocks",
    ] {
        made.say(&Row::new(Kind::Mark, 5), text, None);
    }
    for number in 0..100 {
        let text = format!("snapshot: {number} {}", "x".repeat(10_000));
        made.say(&Row::new(Kind::Mark, 5), &text, None);
    }
    let (_file, history) = made.history();
    let said = of(&history, Window::ALL).loss.sentences;
    assert_eq!(said[0], "snapshot: [2Jpool 1 keeps no accountof its blocks");
    assert!(
        said.len() == 8 && said.iter().all(|line| line.len() <= 300),
        "{said:?}"
    );
    let steps = recorded_steps(&history).expect("it is there");
    assert!(steps.is_none(), "what it says of itself makes no steps");
}
