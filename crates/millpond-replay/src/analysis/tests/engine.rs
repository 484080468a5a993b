//! Tests the query engine of the page that `view` shows on random recordings. Its answers must equal those of
//! `summary` and `timeline`, and its table must contain the blocks that a naive walk finds.

use super::made::Made;
use super::oracle::{Act, acts, history};
use super::{By, Window};
use crate::analysis::{
    Group, Held, Keeping, Lines, Sum, Summary, TimelineOptions, blocks, overview, summary, timeline,
};
use millpond_trace::history::{Flow, History, Live};
use millpond_trace::recording::{Gauge, Kind, Row};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

const COLUMNS: usize = 7;

/// Returns whether node is available to run the page's script.
fn has_node() -> bool {
    let found = Command::new("node").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: the page's engine, which takes node");
    }
    found
}

/// A folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("millpond-engine-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the parts of a recording's table in the form in which a server sends them.
fn parts(history: &History, keeping: Keeping) -> Vec<u8> {
    let mut all = Vec::new();
    let told = blocks(history, &history.definitions, keeping, &mut |part| {
        let mut one = Vec::new();
        for section in &part {
            one.extend((section.len() as u32).to_le_bytes());
            one.extend(section);
        }
        all.extend((one.len() as u32).to_le_bytes());
        all.extend(one);
        Ok(())
    });
    told.expect("it is there");
    all
}

fn ask(questions: &[(&History, Keeping, Vec<[u64; 2]>, usize)]) -> Vec<Value> {
    let folder = Folder::new();
    let all = questions
        .iter()
        .enumerate()
        .map(|(index, (history, keeping, windows, chunk))| {
            let path = folder.0.join(format!("{index}.parts"));
            std::fs::write(&path, parts(history, *keeping)).expect("room");
            json!({ "parts": path, "windows": windows, "columns": COLUMNS, "chunk": chunk })
        });
    let file = folder.0.join("questions.json");
    std::fs::write(&file, Value::from_iter(all).to_string()).expect("room");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/view/check/engine.js");
    let output = Command::new("node")
        .arg(script)
        .arg(&file)
        .output()
        .expect("it starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Limits sizes so that a script can represent their sums exactly.
fn tamed(acts: Vec<Act>) -> Vec<Act> {
    let tame = |act| match act {
        Act::Alloc {
            tag,
            bytes,
            waste,
            pool,
            stream,
            thread,
        } => Act::Alloc {
            bytes: bytes % (1 << 40),
            tag,
            waste,
            pool,
            stream,
            thread,
        },
        other => other,
    };
    acts.into_iter().map(tame).collect()
}

fn group_map(groups: &[Group]) -> BTreeMap<String, [u64; 2]> {
    let told = groups.iter().filter(|group| group.sum.blocks > 0);
    told.map(|group| (group.name.clone(), [group.sum.shown(), group.sum.blocks]))
        .collect()
}

fn told(answer: &Value) -> (u64, u64, u64) {
    let number = |name: &str| answer[name].as_u64().expect("a number");
    (number("bytes"), number("requested"), number("blocks"))
}

fn same_sum(answer: &Value, sum: Sum) -> Result<(), TestCaseError> {
    prop_assert_eq!(told(answer), (sum.shown(), sum.shown_requested(), sum.blocks));
    Ok(())
}

fn same_groups(answer: &Value, by: By, groups: &[Group]) -> Result<(), TestCaseError> {
    let found: BTreeMap<String, [u64; 2]> =
        serde_json::from_value(answer["groups"][by.name()].clone()).expect("groups");
    prop_assert_eq!(found, group_map(groups), "by {}", by.name());
    Ok(())
}

/// Returns the properties by which the page groups blocks. `Stack` is not one of them, because the page has the
/// stacks themselves.
fn ways() -> impl Iterator<Item = By> {
    By::ALL.into_iter().filter(|by| *by != By::Stack)
}

fn same_held(answer: &Value, held: &Held) -> Result<(), TestCaseError> {
    same_sum(answer, held.sum)?;
    ways().try_for_each(|by| same_groups(answer, by, held.by(by)))
}

fn same_window(answer: &Value, summary: &Summary) -> Result<(), TestCaseError> {
    prop_assert_eq!(answer["peak"].as_u64(), Some(summary.peak.sum.shown()));
    same_held(&answer["held"], &summary.peak)?;
    same_held(&answer["end"], &summary.end)?;
    same_held(&answer["kept"], &summary.kept)?;
    same_sum(&answer["temporary"], summary.temporary)?;
    same_sum(&answer["allocated"], summary.allocated)?;
    for by in ways() {
        same_groups(&answer["temporary"], by, &summary.temporary_by[by as usize])?;
        same_groups(&answer["allocated"], by, &summary.allocated_by[by as usize])?;
    }
    Ok(())
}

fn summed(history: &History, from: u64, to: u64) -> Summary {
    let window = Window::Times { from, to };
    summary(history, &history.definitions, Lines::Told, window, 0).expect("it is there")
}

/// Compares the page's columns with those of a plot.
fn same_columns(answer: &Value, history: &History) -> Result<(), TestCaseError> {
    let whole = summed(history, 0, u64::MAX);
    if whole.from == whole.to {
        return Ok(());
    }
    let options = TimelineOptions {
        by: By::Tag,
        columns: COLUMNS,
        bands: answer["bandLimit"].as_u64().expect("a number") as usize,
    };
    let drawn = timeline(history, &history.definitions, &whole, &options).expect("it is there");
    let most: Vec<u64> = drawn.total.iter().map(|sample| sample.most).collect();
    prop_assert_eq!(&answer["totals"], &json!(most));
    let line = |samples: &[crate::analysis::Sample]| {
        let at_peak: Vec<u64> = samples.iter().map(|sample| sample.at_peak).collect();
        json!(at_peak)
    };
    for band in &drawn.bands {
        prop_assert_eq!(
            &answer["bands"][&band.name],
            &line(&band.samples),
            "{}",
            band.name
        );
    }
    prop_assert_eq!(&answer["rest"], &line(&drawn.rest));
    Ok(())
}

/// Returns the sizes of all blocks in order of appearance. `None` if keyframes may add other blocks.
fn naive_sizes(acts: &[Act]) -> Option<Vec<u64>> {
    if acts.iter().any(|act| matches!(act, Act::Keyframe { .. })) {
        return None;
    }
    let sizes = acts.iter().filter_map(|act| match act {
        Act::Alloc { bytes, .. } => Some(*bytes),
        _ => None,
    });
    Some(sizes.collect())
}

/// Returns the total bytes after each event of a listed block. `None` if keyframes end blocks.
fn naive_totals(history: &History, keeping: Keeping) -> Option<Vec<u64>> {
    let (mut live, mut totals, mut keyframes) = (Live::default(), Vec::new(), false);
    history
        .walk(|row, _| {
            keyframes |= row.kind == Kind::Keyframe;
            let ended = live.note(row);
            let told = match row.kind {
                Kind::Alloc => Some(*row),
                _ => ended,
            };
            if told.is_some_and(|block| keeping.keeps(block.id, block.bytes)) {
                totals.push(live.bytes());
            }
            Flow::On
        })
        .expect("it is there");
    // The last total includes the changes up to the end.
    if let Some(last) = totals.last_mut() {
        *last = live.bytes();
    }
    (!keyframes).then_some(totals)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_page_gives_the_same_answers_as_the_report(
        all in proptest::collection::vec((acts(), 0u64..40_000, 0u64..40_000, prop_oneof![Just(2usize), Just(5), Just(128)]), 1..32)
    ) {
        if !has_node() {
            return Ok(());
        }
        let all: Vec<_> = all.into_iter().map(|(acts, from, span, chunk)| (tamed(acts), from, span, chunk)).collect();
        let histories: Vec<_> = all.iter().map(|(acts, ..)| history(acts)).collect();
        let questions: Vec<_> = all.iter().zip(&histories).map(|((_, from, span, chunk), (_, history))| {
            let windows = vec![[0, history.duration], [*from, from + span], [from / 20, from / 20 + span / 20]];
            (history, Keeping::ALL, windows, *chunk)
        }).collect();
        let answers = ask(&questions);
        for (((acts, ..), (history, _, windows, _)), answer) in all.iter().zip(&questions).zip(&answers) {
            for ([from, to], told) in windows.iter().zip(answer["windows"].as_array().expect("an array")) {
                same_window(told, &summed(history, *from, *to))?;
            }
            same_columns(answer, history)?;
            if let Some(sizes) = naive_sizes(acts) {
                prop_assert_eq!(&answer["sizes"], &json!(sizes));
            }
        }
    }

    #[test]
    fn sizes_that_no_script_can_represent_give_finite_totals(all in proptest::collection::vec(acts(), 1..16)) {
        if !has_node() {
            return Ok(());
        }
        let histories: Vec<_> = all.iter().map(|acts| history(acts)).collect();
        let questions: Vec<_> = histories.iter().map(|(_, history)| (history, Keeping::ALL, Vec::new(), 5)).collect();
        for answer in ask(&questions) {
            let totals = answer["totals"].as_array().expect("an array");
            prop_assert!(totals.iter().all(|total| total.as_f64().is_some_and(f64::is_finite)));
        }
    }

    #[test]
    fn blocks_that_are_not_listed_are_in_the_sum(all in proptest::collection::vec((acts(), 0u64..30), 1..32)) {
        if !has_node() {
            return Ok(());
        }
        let all: Vec<_> = all.into_iter().map(|(acts, most)| (tamed(acts), most)).collect();
        let histories: Vec<_> = all.iter().map(|(acts, _)| history(acts)).collect();
        let questions: Vec<_> = all.iter().zip(&histories).map(|((_, most), (_, history))| {
            let keeping = overview(history, 10).expect("it is there").sizes.keeping(*most);
            (history, keeping, vec![[0, history.duration]], 5)
        }).collect();
        let answers = ask(&questions);
        for ((history, keeping, ..), answer) in questions.iter().zip(&answers) {
            let whole = summed(history, 0, u64::MAX);
            let end = &answer["windows"][0]["end"];
            let (bytes, ..) = told(end);
            let others = end["others"].as_u64().expect("a number");
            if answer["end"]["blocks"].as_u64() > Some(0) {
                prop_assert_eq!(bytes + others, whole.end.sum.shown());
            }
            let count = |name: &str| answer["end"][name].as_u64().expect("a number");
            let sizes: Vec<u64> = serde_json::from_value(answer["sizes"].clone()).expect("sizes");
            prop_assert!(sizes.iter().all(|bytes| *bytes >= keeping.some_from));
            prop_assert!(count("others") == 0 || *keeping != Keeping::ALL);
            if let Some(totals) = naive_totals(history, *keeping) {
                prop_assert_eq!(&answer["afters"], &json!(totals));
            }
        }
    }

    #[test]
    fn an_overview_agrees_with_the_summary(acts in acts(), columns in 1usize..30) {
        let acts = tamed(acts);
        let (file, history) = history(&acts);
        let glance = overview(&history, columns).expect("it is there");
        let span = if glance.by_rows { history.len } else { history.duration + 1 };
        let enough = glance.column.saturating_mul(glance.most.len() as u64);
        prop_assert!(glance.most.len() <= columns.max(2) && (enough >= span || history.len == 0), "{} of {}", enough, span);
        let keyframes = acts.iter().any(|act| matches!(act, Act::Keyframe { .. }));
        let whole = summed(&history, 0, u64::MAX);
        prop_assert_eq!(glance.allocations, whole.allocated.blocks);
        // Only an analysis that remembers blocks can detect a wrong keyframe.
        if !keyframes {
            prop_assert_eq!(glance.peak, whole.peak.sum.shown());
            prop_assert_eq!(glance.most.iter().max().copied(), Some(glance.peak));
            let opened = crate::analysis::open(&file.0, &millpond_trace::ReadOptions::default(), columns).expect("it is there").1;
            prop_assert_eq!(&opened, &glance);
            // The maximum of each column, computed from every row. It includes the state before the column.
            let mut most = vec![0; glance.most.len()];
            let (mut live, mut rows, mut last) = (Live::default(), 0, 0);
            history.walk(|row, _| {
                let at = if glance.by_rows { rows } else { row.time };
                let column = (at / glance.column) as usize;
                most[last + 1..=column.max(last)].fill(live.bytes());
                live.note(row);
                most[column] = most[column].max(live.bytes());
                last = column;
                rows += 1;
                Flow::On
            }).expect("it is there");
            prop_assert_eq!(&glance.most, &most);
        }
    }
}

#[test]
fn blocks_are_grouped_by_site_if_there_are_stacks_and_no_tags() {
    if !has_node() {
        return;
    }
    for (tags, has_stack, usual) in [
        (0, false, By::Tag),
        (0, true, By::Site),
        (2, false, By::Tag),
        (2, true, By::Tag),
    ] {
        let mut made = Made::new(tags);
        if has_stack {
            let stack = Row {
                stack: 1,
                ..Row::new(Kind::DefineStack, 0)
            };
            made.say(&stack, "", Some(&[16]));
        }
        made.next(Row {
            id: 1,
            bytes: 512,
            requested: 512,
            tag: tags,
            stack: u32::from(has_stack),
            ..Row::new(Kind::Alloc, 0)
        });
        let (_file, history) = made.history();
        assert_eq!(By::usual(&history.definitions), usual);
        let answers = ask(&[(&history, Keeping::ALL, Vec::new(), 128)]);
        assert_eq!(
            answers[0]["usual"],
            json!(usual),
            "{tags} tags, stack: {has_stack}"
        );
    }
}

#[test]
fn the_table_contains_samples_notes_and_addresses() {
    if !has_node() {
        return;
    }
    let mut made = Made::new(2);
    let gauge = |gauge: Gauge, pool, bytes| Row {
        tag: gauge as u32,
        pool,
        bytes,
        ..Row::new(Kind::Gauge, 0)
    };
    made.next(gauge(Gauge::Reserved, 1, 2000));
    let block = made.alloc(1, 700);
    made.next(gauge(Gauge::DeviceUsed, 0, 5000));
    made.next(Row {
        kind: Kind::FreeRequested,
        ..block
    });
    made.next(Row {
        kind: Kind::FreeCompleted,
        ..block
    });
    made.next(Row {
        id: 3,
        ..Row::new(Kind::Lost, 0)
    });
    made.next(Row {
        requested: 9,
        ..Row::new(Kind::Refused, 0)
    });
    for address in [1 << 60, 256, u64::MAX, 512] {
        made.next(Row {
            id: 1 + address % 97 + 10,
            bytes: 1 << 63,
            requested: 1 << 63,
            address,
            pool: 1,
            ..Row::new(Kind::Alloc, 0)
        });
    }
    let (_file, history) = made.history();
    let answers = ask(&[(&history, Keeping::ALL, Vec::new(), 128)]);
    let answer = &answers[0];
    assert_eq!(answer["reserved"], json!([2000]));
    assert_eq!(answer["parked"], json!([700, 0]));
    assert_eq!(answer["notes"], json!(["lost", "refused"]));
    assert_eq!(answer["hasAddresses"], json!(true));
    let most = (1u64 << 52) - 1;
    // Addresses that no script can represent are replaced by the limit. Later ones are correct again.
    assert_eq!(answer["addresses"], json!([0, most, 256, most, 512]));
    assert_eq!(answer["end"]["unknownFrees"], json!(0));
    let mut rows = 0;
    let walked = history.walk(|_, _| {
        rows += 1;
        Flow::On
    });
    assert!(walked.is_ok() && rows == history.len);
}
