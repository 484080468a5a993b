//! Tests conversions of recordings as a user runs them.

#[path = "../../millpond-trace/tests/support/sample.rs"]
mod sample;
mod support;

use millpond_trace::export::Dialect;
use sample::{ordinary, sample};
use std::path::Path;
use support::{folder, fragmenting, json, run, trace};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn every_format_is_written_completely_and_reports_lost_data() {
    let folder = folder("convert-endings");
    let input = folder.join("in.mpr");
    std::fs::write(&input, sample(12, &ordinary())).expect("room");
    for ending in [
        "perfetto-trace",
        "pickle",
        "pb.gz",
        "speedscope.json",
        "folded",
        "dhat.json",
        "heaptrack",
        "heaptrack.zst",
        "trace.json",
        #[cfg(feature = "parquet")]
        "parquet",
        "csv.zst",
        "mpr",
    ] {
        let output = folder.join(format!("out.{ending}"));
        let (code, stdout, stderr) = run(&["convert", text(&input), text(&output)]);
        assert_eq!((code, &*stdout), (0, ""), "{ending}: {stderr}");
        assert!(
            stderr.contains("wrote ") && stderr.contains("lost in this format: "),
            "{ending}: {stderr}"
        );
        assert!(
            stderr.contains("no names for code in /nowhere/train") || !has_stacks(ending),
            "{stderr}"
        );
        assert!(std::fs::metadata(&output).expect("written").len() > 100);
    }
    let left = std::fs::read_dir(&folder).expect("a folder").flatten();
    let parts = left.filter(|file| file.file_name().to_string_lossy().ends_with(".part"));
    assert_eq!(parts.count(), 0);
}

#[test]
fn the_help_and_the_book_list_every_format() {
    let (code, help, stderr) = run(&["convert", "--help"]);
    assert_eq!((code, &*stderr), (0, ""));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats.md");
    let page = std::fs::read_to_string(page).expect("the page");
    for ending in Dialect::ALL.map(Dialect::ending) {
        assert!(help.contains(&format!("\n  .{ending}")), "{ending}: {help}");
        let in_table = page.lines().filter(|line| line.starts_with("| `."));
        let listed = in_table
            .filter(|line| line.contains(&format!("`.{ending}")))
            .count();
        assert_eq!(listed, 1, "{ending} on the page of formats");
    }
}

/// Returns whether a format contains resolved names.
fn has_stacks(ending: &str) -> bool {
    !matches!(ending, "trace.json" | "csv.zst")
}

#[test]
fn a_part_of_a_recording_can_be_read_as_a_recording() {
    let folder = folder("convert-part");
    let output = folder.join("part.mpr");
    let input = trace("llama8b_fsdp_streams");
    let (code, _, stderr) = run(&[
        "convert",
        &input,
        text(&output),
        "--time-window",
        "10ms..2s",
        "-q",
    ]);
    assert_eq!((code, &*stderr), (0, ""));
    let again = folder.join("part.csv");
    let (code, _, stderr) = run(&["convert", text(&output), text(&again), "--device", "0"]);
    assert_eq!(code, 0, "{stderr}");
    let (code, stdout, stderr) = run(&["info", text(&again)]);
    assert!(code == 0 && stdout.contains("peak requested"), "{stdout}{stderr}");
}

#[test]
fn other_files_are_not_overwritten_and_errors_name_the_reason() {
    let folder = folder("convert-errors");
    let input = folder.join("in.mpr");
    let bytes = sample(3, &ordinary());
    std::fs::write(&input, &bytes).expect("room");
    let linked = folder.join("link.mpr");
    std::os::unix::fs::symlink(&input, &linked).expect("room");
    let other = folder.join("other.folded");
    std::fs::write(&other, "somebody's").expect("room");
    let input_text = text(&input).to_owned();
    let cases = [
        (text(&linked).to_owned(), vec![], "is the recording itself"),
        (
            text(&other).to_owned(),
            vec![],
            "nothing in it shows that millpond wrote it",
        ),
        (
            text(&folder.join("a.flded")).to_owned(),
            vec![],
            "did you mean .folded?",
        ),
        (
            text(&folder.join("a.folded")).to_owned(),
            vec!["--device", "7"],
            "the recording has no memory events on device 7",
        ),
        (
            text(&folder.join("a.folded")).to_owned(),
            vec!["--time-window", "5x.."],
            "write two times with a unit",
        ),
        (
            text(&folder.join("no/a.folded")).to_owned(),
            vec![],
            "No such file",
        ),
    ];
    for (output, more, why) in cases {
        let line = [vec!["convert", &input_text, &output], more].concat();
        let (code, _, stderr) = run(&line);
        assert!(code == 2 && stderr.contains(why), "{line:?}: {stderr}");
    }
    assert_eq!(std::fs::read(&input).expect("there"), bytes);
    assert_eq!(std::fs::read(&other).expect("there"), b"somebody's");
    assert!(!folder.join("a.folded").exists());
}

/// A snapshot is replayed under the allocator that it was recorded with, also after it was converted.
#[test]
fn a_converted_snapshot_keeps_its_allocator() {
    let folder = folder("converted_allocator");
    let csv = fragmenting(&folder);
    let path = |name: &str| folder.join(name).display().to_string();
    for (from, to) in [(csv, path("run.pickle")), (path("run.pickle"), path("run.mpr"))] {
        let (code, _, said) = run(&["convert", &from, &to]);
        assert_eq!(code, 0, "{said}");
    }
    let policy = |file: &str| json(&["replay", file, "--json"])["verdict"]["own"]["name"].clone();
    assert_eq!(policy(&path("run.mpr")), policy(&path("run.pickle")));
}
