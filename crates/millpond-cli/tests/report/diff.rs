//! Tests `millpond diff` as a user runs it.

use super::{recording, shown};
use crate::support::{folder, json, run};
use millpond_trace::recording::{Kind, Row, Writer};
use std::path::PathBuf;

fn two(name: &str) -> (PathBuf, PathBuf) {
    let folder = folder(name);
    let (a, b) = (folder.join("a.mpr"), folder.join("b.mpr"));
    recording(&a, &[("weights", 100 << 20), ("state", 50 << 20)]);
    recording(
        &b,
        &[("state", 50 << 20), ("cache", 5 << 20), ("weights", 100 << 20)],
    );
    (a, b)
}

#[test]
fn a_diff_matches_names_and_marks_new_groups() {
    let (a, b) = two("diff_names");
    let (code, stdout, stderr) = run(&["diff", &shown(&a), &shown(&b)]);
    assert_eq!(code, 0, "{stderr}");
    let new = stdout
        .lines()
        .find(|line| line.ends_with("cache"))
        .expect("it differs");
    assert!(new.contains("+5.00 MiB") && new.contains("new"), "{new}");
    assert!(stdout.contains("2 groups the same in both"), "{stdout}");
    let value = json(&["diff", &shown(&a), &shown(&b), "--json"]);
    assert_eq!(value["groups"].as_array().map(Vec::len), Some(1));
    assert_eq!(value["groups"][0]["after"]["bytes"], 5 << 20);
}

#[test]
fn limits_decide_the_exit_code() {
    let (a, b) = two("diff_limits");
    let (a, b) = (shown(&a), shown(&b));
    let with = |limits: &[&str]| {
        let mut args = vec!["diff", &a, &b];
        for limit in limits {
            args.extend(["--fail-if", limit]);
        }
        let (code, stdout, stderr) = run(&args);
        (code, stdout, stderr)
    };
    assert_eq!(with(&["peak>+4%", "allocations>+1"]).0, 0);
    let (code, stdout, stderr) = with(&["peak>+4%", "peak>+3%", "leaks>0"]);
    assert_eq!(code, 1);
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
    assert!(
        stdout.contains("peak>+3% holds: 150 MiB before, 155 MiB after"),
        "{stdout}"
    );
    for wrong in ["peak", "peak>-1%", "speed>1", "peak>2%"] {
        let (code, stdout, stderr) = with(&[wrong]);
        assert_eq!(
            (code, stdout.as_str(), stderr.lines().count()),
            (2, "", 1),
            "{wrong}: {stderr}"
        );
    }
    let (code, _, stderr) = with(&["reserved>+1%"]);
    assert!(code == 2 && stderr.contains("cannot be judged"), "{stderr}");
    // From `b` to `a` the peak decreases.
    assert_eq!(run(&["diff", &b, &a, "--fail-if", "peak>+0"]).0, 0);
    assert_eq!(run(&["diff", &a]).0, 2);
}

#[test]
fn a_limit_on_an_incomplete_recording_is_judged_only_if_it_holds() {
    let folder = folder("diff_incomplete");
    let [whole, cut, lossy] = ["whole.mpr", "cut.mpr", "lossy.mpr"].map(|name| folder.join(name));
    let bytes = recording(&whole, &[("model", 100 << 20)]);
    // The file ends in the middle of its rows.
    std::fs::write(&cut, &bytes[..bytes.len() - 100]).expect("written");
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    let alloc = |id, bytes| Row {
        id,
        bytes,
        requested: bytes,
        ..Row::new(Kind::Alloc, id)
    };
    let lost = Row {
        id: 3,
        ..Row::new(Kind::Lost, 2)
    };
    for row in [alloc(1, 100 << 20), lost, alloc(4, 1)] {
        writer.push(&row).expect("memory");
    }
    std::fs::write(&lossy, writer.finish(9).expect("memory")).expect("written");
    for (incomplete, why) in [(&cut, "truncated after"), (&lossy, "3 events are lost")] {
        for [before, after] in [[&whole, incomplete], [incomplete, &whole]] {
            let with = |limit| run(&["diff", &shown(before), &shown(after), "--fail-if", limit]);
            assert!(incomplete == &cut || with("peak>50MiB").0 == 1);
            let (code, stdout, stderr) = with("peak>1GiB");
            assert_eq!((code, &*stdout), (2, ""), "{stderr}");
            assert!(
                stderr.contains("cannot be judged") && stderr.contains(why),
                "{stderr}"
            );
        }
    }
}

#[test]
fn two_moments_of_one_recording() {
    let (a, _) = two("diff_moments");
    let value = json(&["diff", &shown(&a), "--at", "1ms,end", "--json"]);
    assert_eq!(value["groups"][0]["name"], "state");
    assert_eq!(value["total"]["before"]["bytes"], 100 << 20);
}
