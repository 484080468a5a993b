//! Tests the comparison of two recordings, and conditions on it.

use super::made::{Made, Scratch};
use super::{By, Window};
use crate::analysis::{At, Diff, Gate, GateError, Lines, Moment, Verdict, at, diff};
use millpond_trace::recording::{Kind, Row};

/// Makes a recording with its own tag numbers. It keeps one block of the given size for each name.
fn side(tags: &[(&str, u64)], reserved: Option<u64>) -> (Scratch, At) {
    let mut made = Made::new(0);
    for (number, (name, _)) in (1..).zip(tags) {
        made.say(
            &Row {
                tag: number,
                ..Row::new(Kind::DefineTag, 0)
            },
            name,
            None,
        );
    }
    if let Some(bytes) = reserved {
        made.next(Row {
            bytes,
            pool: 1,
            ..Row::new(Kind::Reserve, 0)
        });
    }
    for (number, (_, bytes)) in (1..).zip(tags) {
        made.alloc(number, *bytes);
    }
    let (file, history) = made.history();
    let found = at(
        &history,
        &history.definitions,
        Lines::LeftOut,
        Window::ALL,
        Moment::Peak,
        0,
    );
    (file, found.expect("it is there"))
}

fn compared(before: &At, after: &At, most: usize) -> Diff {
    diff(
        [&before.summary, &after.summary],
        [before.held(), after.held()],
        By::Tag,
        most,
    )
}

#[test]
fn groups_are_matched_by_their_names() {
    let (_a, before) = side(&[("a.py:f:10", 100), ("gone", 50), ("same", 7)], None);
    let (_b, after) = side(&[("new", 10), ("same", 7), ("a.py:f:99", 400)], None);
    let all = compared(&before, &after, 10);
    let told: Vec<(&str, u128, u128)> = all
        .groups
        .iter()
        .map(|change| (change.name.as_str(), change.before.bytes, change.after.bytes))
        .collect();
    assert_eq!(told, [("a.py:f", 100, 400), ("gone", 50, 0), ("new", 0, 10)]);
    assert_eq!((all.unchanged, all.rest_groups), (1, 0));
    let short = compared(&before, &after, 1);
    assert_eq!((short.groups.len(), short.rest_groups), (1, 2));
    assert_eq!((short.rest.before.bytes, short.rest.after.bytes), (50, 10));
}

fn judge(gate: &str, diff: &Diff) -> bool {
    match gate.parse::<Gate>().expect(gate).judge(diff) {
        Verdict::Fails(_) => true,
        Verdict::Passes(_) => false,
        Verdict::Unknown(measure) => panic!("{gate}: {} is not known", measure.name),
    }
}

#[test]
fn a_gate_fails_only_above_its_limit() {
    let (_a, before) = side(&[("a", 1000), ("b", 1000)], Some(4000));
    let (_b, after) = side(&[("a", 1000), ("b", 1050), ("c", 10)], Some(4120));
    let diff = compared(&before, &after, 10);
    for (gate, fails) in [
        ("peak>+2%", true),
        ("peak>+3%", false),
        ("peak>+2.99%", true),
        ("peak>+60", false),
        ("peak > +59", true),
        ("peak>2059", true),
        ("peak>2060", false),
        ("peak>24GiB", false),
        ("leaks>0", true),
        ("leaks>1GiB", false),
        ("end>+0", true),
        ("allocations>+5%", true),
        ("allocations>+1", false),
        ("allocations>2", true),
        ("reserved>+3%", false),
        ("reserved>+2.9%", true),
        ("fragmentation>49%", true),
        ("fragmentation>50%", false),
        ("fragmentation>+0%", false),
        ("temporaries>0", false),
    ] {
        assert_eq!(judge(gate, &diff), fails, "{gate}");
    }
}

#[test]
fn a_gate_on_an_unrecorded_figure_is_unknown() {
    let (_a, before) = side(&[("a", 1000)], None);
    let (_b, after) = side(&[("a", 1000)], Some(2000));
    let diff = compared(&before, &after, 10);
    for gate in ["reserved>+1%", "fragmentation>+1%"] {
        let gate: Gate = gate.parse().expect("a condition");
        assert!(matches!(gate.judge(&diff), Verdict::Unknown(_)));
    }
    assert!(!judge("reserved>2000", &diff), "the second alone is known");
}

#[test]
fn invalid_gates_are_refused_with_a_reason() {
    for text in ["", "peak", "peak>", ">5", "peak<5", "peak=5", "> "] {
        assert!(
            matches!(text.parse::<Gate>(), Err(GateError::Shape { .. })),
            "{text}"
        );
    }
    for text in ["peek>5", "Peak>5", "peak >>5"] {
        let error = text.parse::<Gate>().expect_err(text);
        assert!(!matches!(error, GateError::Shape { .. }), "{text}: {error}");
    }
    for text in [
        "peak>-2%",
        "peak>2%",
        "peak>+x",
        "peak>+2%%",
        "peak>1e9",
        "peak>nan",
        "peak>+inf%",
        "leaks>1 parsec",
        "allocations>1GiB",
        "allocations>-1",
        "fragmentation>0.2",
        "fragmentation>+1MiB",
        "peak>++1",
        "peak>99999999999999999999",
    ] {
        let error = text.parse::<Gate>().expect_err(text);
        assert!(matches!(error, GateError::Limit { .. }), "{text}: {error}");
    }
}
