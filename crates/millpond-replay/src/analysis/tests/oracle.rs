//! Computes the figures of a recording by examining all of its state after every row.

use super::made::{Made, Scratch};
use super::{By, Window};
use crate::analysis::{
    Lines, Sample, Sum, Summary, Timeline, TimelineOptions, recorded_steps, summary, timeline, top,
};
use millpond_trace::history::{Flow, History, Live};
use millpond_trace::recording::{Kind, Row};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A random action.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Alloc {
        tag: u32,
        bytes: u64,
        waste: u64,
        pool: u32,
        stream: u32,
        thread: u32,
    },
    Free {
        which: usize,
        thread: u32,
    },
    Park {
        which: usize,
    },
    Wait {
        time: u64,
    },
    Reserve {
        bytes: u64,
    },
    Step,
    /// A correct keyframe after unrecorded allocations and frees.
    Keyframe {
        gone: usize,
        new: u64,
    },
}

pub(super) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let bytes = prop_oneof![
        8 => 1u64..5000,
        1 => Just(u64::MAX),
        1 => Just(1u64 << 63),
        1 => Just(0u64),
    ];
    let alloc = (0u32..6, bytes, 0u64..64, 1u32..3, 0u32..3, 0u32..3).prop_map(
        |(tag, bytes, waste, pool, stream, thread)| Act::Alloc {
            tag,
            bytes,
            waste,
            pool,
            stream,
            thread,
        },
    );
    let act = prop_oneof![
        8 => alloc,
        6 => (any::<usize>(), 0u32..3).prop_map(|(which, thread)| Act::Free { which, thread }),
        1 => any::<usize>().prop_map(|which| Act::Park { which }),
        4 => (0u64..2000).prop_map(|time| Act::Wait { time }),
        1 => (0u64..10_000).prop_map(|bytes| Act::Reserve { bytes }),
        1 => Just(Act::Step),
        1 => (any::<usize>(), 0u64..3).prop_map(|(gone, new)| Act::Keyframe { gone, new }),
    ];
    proptest::collection::vec(act, 0..120)
}

pub(super) fn history(acts: &[Act]) -> (Scratch, History) {
    let mut made = Made::new(4);
    let mut live: Vec<Row> = Vec::new();
    let (mut time, mut id, mut step) = (0, 0, 0);
    for act in acts {
        match *act {
            Act::Alloc {
                tag,
                bytes,
                waste,
                pool,
                stream,
                thread,
            } => {
                id += 1;
                let requested = bytes.saturating_sub(waste);
                let row = Row {
                    id,
                    bytes,
                    requested,
                    pool,
                    stream,
                    thread,
                    tag,
                    ..Row::new(Kind::Alloc, time)
                };
                made.row(row);
                live.push(row);
            }
            Act::Free { which, thread } if !live.is_empty() => {
                let row = live.swap_remove(which % live.len());
                made.row(Row {
                    kind: Kind::Free,
                    time,
                    thread,
                    ..row
                });
            }
            Act::Park { which } if !live.is_empty() => {
                let row = live.swap_remove(which % live.len());
                made.row(Row {
                    kind: Kind::FreeRequested,
                    time,
                    ..row
                });
            }
            Act::Wait { time: more } => time += more,
            Act::Reserve { bytes } => made.row(Row {
                bytes,
                pool: 1,
                ..Row::new(Kind::Reserve, time)
            }),
            Act::Step => {
                step += 1;
                made.row(Row {
                    bytes: step,
                    ..Row::new(Kind::Step, time)
                });
            }
            Act::Keyframe { gone, new } => {
                if !live.is_empty() {
                    live.swap_remove(gone % live.len());
                }
                for _ in 0..new {
                    id += 1;
                    live.push(Row {
                        id,
                        bytes: 100,
                        requested: 99,
                        pool: 1,
                        tag: 2,
                        ..Row::new(Kind::Alloc, time)
                    });
                }
                made.row(Row {
                    bytes: live.len() as u64,
                    ..Row::new(Kind::Keyframe, time)
                });
                for row in &live {
                    made.row(Row {
                        kind: Kind::Live,
                        ..*row
                    });
                }
                // Times continue from the keyframe.
                made.row(Row::new(Kind::Mark, time));
            }
            Act::Free { .. } | Act::Park { .. } => {}
        }
    }
    made.history()
}

/// Returns the state after each row that is not within a keyframe: its time, and all blocks.
fn states(history: &History) -> Vec<(u64, Vec<Row>)> {
    let mut live = Live::default();
    let mut all: Vec<(u64, Vec<Row>)> = vec![(0, Vec::new())];
    let mut open = false;
    history
        .walk(|row, _| {
            live.note(row);
            open = row.kind == Kind::Keyframe || open && row.kind == Kind::Live;
            if !open {
                let mut blocks: Vec<Row> = live.blocks().copied().collect();
                blocks.sort_unstable_by_key(|block| block.id);
                all.push((row.time, blocks));
            }
            Flow::On
        })
        .expect("it is there");
    all
}

fn total(blocks: &[Row]) -> Sum {
    Sum {
        bytes: blocks.iter().map(|block| u128::from(block.bytes)).sum(),
        requested: blocks.iter().map(|block| u128::from(block.requested)).sum(),
        blocks: blocks.len() as u64,
    }
}

fn name(by: By, block: &Row) -> String {
    match by {
        By::Tag if block.tag == 0 || block.tag > 4 => "(no tag)".to_owned(),
        By::Tag => format!("tag {}", block.tag),
        By::Site | By::Stack => "(no stack recorded)".to_owned(),
        By::Pool => ["device (cuda:0)", "staging (pinned:0)"][block.pool as usize - 1].to_owned(),
        By::Stream => format!("stream {}", block.stream),
        By::Thread if block.thread == 0 => "(no thread recorded)".to_owned(),
        By::Thread => format!("thread {}", block.thread),
        By::Kind => ["cuda:0", "pinned:0"][block.pool as usize - 1].to_owned(),
    }
}

fn grouped(by: By, blocks: &[Row]) -> BTreeMap<String, Sum> {
    let mut groups: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for block in blocks {
        groups.entry(name(by, block)).or_default().push(*block);
    }
    groups
        .into_iter()
        .map(|(name, blocks)| (name, total(&blocks)))
        .collect()
}

fn of(history: &History, window: Window) -> Summary {
    summary(history, &history.definitions, Lines::Told, window, 3).expect("it is there")
}

fn names(groups: &[crate::analysis::Group]) -> BTreeMap<String, Sum> {
    groups
        .iter()
        .map(|group| (group.name.clone(), group.sum))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn peak_and_end_agree_with_the_oracle(acts in acts(), from in 0u64..40_000, span in 0u64..40_000, whole in any::<bool>()) {
        let (_file, history) = history(&acts);
        let (from, to) = if whole { (0, u64::MAX) } else { (from, from + span) };
        let found = of(&history, Window::Times { from, to });
        let states = states(&history);
        // The last state before the window, and all states in it.
        let before = states.iter().rposition(|(time, _)| *time < from).unwrap_or(0);
        let end = states.iter().rposition(|(time, _)| *time <= to).unwrap_or(0).max(before);
        let inside = &states[before..=end];
        let most = inside.iter().map(|(_, blocks)| total(blocks).bytes).max().unwrap_or(0);
        prop_assert_eq!(found.peak.sum.bytes, most);
        let requested = inside.iter().map(|(_, blocks)| total(blocks).requested).max().unwrap_or(0);
        prop_assert_eq!(u128::from(found.peak_requested.bytes), requested.min(u64::MAX.into()));
        let at = inside.iter().find(|(_, blocks)| total(blocks).bytes == most).expect("it was there");
        let last = &inside[inside.len() - 1].1;
        prop_assert_eq!(found.end.sum, total(last));
        for by in By::ALL {
            let sums = found.peak.by(by).iter().fold(Sum::default(), |sum, group| sum.and(group.sum));
            prop_assert_eq!(sums, found.peak.sum);
            prop_assert_eq!(names(found.peak.by(by)), grouped(by, &at.1));
            prop_assert_eq!(names(found.end.by(by)), grouped(by, last));
            let short = top(found.peak.by(by), 2);
            let all = short.rows.iter().fold(short.rest, |sum, group| sum.and(group.sum));
            prop_assert_eq!(all, found.peak.sum);
        }
        let mut sizes: Vec<u64> = at.1.iter().map(|block| block.bytes).collect();
        sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
        sizes.truncate(3);
        let largest: Vec<u64> = found.peak.largest.iter().map(|block| block.bytes).collect();
        prop_assert_eq!(largest, sizes);
    }

    #[test]
    fn allocations_frees_and_kept_blocks_agree_with_the_oracle(acts in acts()) {
        let (_file, history) = history(&acts);
        let found = of(&history, Window::ALL);
        let (mut rows, mut last) = (Vec::new(), BTreeMap::new());
        let (mut allocated, mut frees, mut temporary) = (Vec::new(), 0, 0);
        history.walk(|row, _| { rows.push(*row); Flow::On }).expect("it is there");
        let mut live = Live::default();
        for row in &rows {
            match row.kind {
                Kind::Alloc => {
                    allocated.push(*row);
                    last.insert(row.thread, row.id);
                }
                Kind::Free | Kind::FreeRequested if live.get(row.id).is_some() => {
                    frees += 1;
                    temporary += u64::from(last.remove(&row.thread) == Some(row.id));
                }
                _ => {}
            }
            live.note(row);
        }
        prop_assert_eq!(found.allocated, total(&allocated));
        prop_assert_eq!((found.frees, found.temporary.blocks), (frees, temporary));
        prop_assert_eq!(found.lifetimes.blocks, frees);
        for by in By::ALL {
            prop_assert_eq!(names(&found.allocated_by[by as usize]), grouped(by, &allocated));
        }
        let kept: Vec<Row> = allocated.into_iter().filter(|row| live.get(row.id).is_some()).collect();
        prop_assert_eq!(found.kept.sum, total(&kept));
    }

    #[test]
    fn a_timeline_keeps_every_peak_and_every_sum(acts in acts(), columns in 1usize..20, bands in 0usize..4) {
        let (_file, history) = history(&acts);
        let options = TimelineOptions { by: By::Tag, columns, bands };
        let found = of(&history, Window::ALL);
        let drawn = timeline(&history, &history.definitions, &found, &options).expect("it is there");
        check(&drawn, columns);
        prop_assert_eq!(drawn.total.iter().map(|sample| sample.most).max(), Some(found.peak.sum.shown()));
        prop_assert_eq!(drawn.total.last().map(|sample| sample.last), Some(found.end.sum.shown()));
        if !drawn.by_rows {
            let span = u128::from(drawn.to - drawn.from) + 1;
            let states = states(&history);
            for (column, sample) in drawn.total.iter().enumerate() {
                let column_of = |time: u64| (u128::from(time) * columns as u128 / span) as usize;
                let inside = states.iter().filter(|(time, _)| column_of(*time) == column);
                let most = inside.map(|(_, blocks)| total(blocks).bytes).max().unwrap_or(0);
                let before = column.checked_sub(1).map_or(0, |before| drawn.total[before].last);
                prop_assert_eq!(sample.most, u64::try_from(most).unwrap_or(u64::MAX).max(before));
            }
        }
    }

    #[test]
    fn named_steps_agree_with_summaries_of_their_rows(acts in acts()) {
        let (_file, history) = history(&acts);
        let named = acts.iter().filter(|act| matches!(act, Act::Step)).count();
        let found = recorded_steps(&history).expect("it is there");
        if named < 2 {
            return Ok(());
        }
        let steps = found.expect("several").steps;
        prop_assert_eq!(steps.len(), named);
        for step in &steps {
            let rows = Window::Rows { from: step.first_row, end: step.end_row };
            let found = of(&history, rows);
            prop_assert_eq!(step.peak.bytes, found.peak.sum.shown());
            prop_assert_eq!(step.begin_bytes, found.begin.shown());
            prop_assert_eq!(step.allocations, found.allocated.blocks);
            prop_assert_eq!(step.kept_bytes, found.kept.sum.shown());
        }
    }
}

/// Checks that bands and rest add up to the total in each column, unless a sum exceeds the largest number
/// that can be shown.
fn check(drawn: &Timeline, columns: usize) {
    assert_eq!(drawn.columns(), columns);
    for (column, total) in drawn.total.iter().enumerate() {
        let parts = || drawn.bands.iter().map(|band| &band.samples).chain([&drawn.rest]);
        let sum = |of: fn(&Sample) -> u64| parts().map(|line| u128::from(of(&line[column]))).sum::<u128>();
        if total.most == u64::MAX {
            continue;
        }
        assert_eq!(
            sum(|sample| sample.at_peak),
            u128::from(total.most),
            "column {column}"
        );
        assert_eq!(
            sum(|sample| sample.last),
            u128::from(total.last),
            "column {column}"
        );
        assert!(total.least <= total.last && total.last <= total.most);
    }
}
