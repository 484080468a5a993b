//! Tests the inputs that are refused, and the error messages.

use crate::support::{folder, run, small, state_only};
use std::path::Path;

/// Writes a recording with a size that exceeds any device.
fn beyond(dir: &Path) -> String {
    let path = dir.join("damaged.csv");
    let rows = "0,alloc,1,100\n10,alloc,2,1125899906842624\n20,free,2,1125899906842624\n30,alloc,3,64\n";
    std::fs::write(&path, format!("time_us,action,id,bytes\n{rows}")).expect("written");
    path.display().to_string()
}

#[test]
fn blocks_larger_than_any_device_are_left_out() {
    let damaged = beyond(&folder("beyond"));
    let (code, facts, stderr) = run(&["info", &damaged]);
    assert_eq!(code, 0, "{stderr}");
    assert!(facts.contains("peak requested  1.00 PiB at event 1"), "{facts}");
    let (code, report, stderr) = run(&["replay", &damaged, "--time-window", "25us.."]);
    assert_eq!(code, 0, "{stderr}");
    assert!(report.contains("holds at most 164 B at once"), "{report}");
}

#[test]
fn bad_input_is_one_line_on_stderr() {
    let dir = folder("bad_input");
    let file = small(&dir, "run.csv");
    let empty = folder("bad_input_empty").display().to_string();
    let state = state_only(&dir);
    let damaged = beyond(&dir);
    let unwritable = dir.join("no/such/folder/page.html").display().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["replay"], "<FILE>"),
        (&["replay", "/nowhere/run.csv"], "/nowhere/run.csv"),
        (&["replay", &empty], "contains no files"),
        (&["replay", &file, "--device", "80GX"], "'80GX' is not a size"),
        (
            &["replay", &file, "--reserve", "much", "--device", "1G"],
            "'much' is not a size",
        ),
        (
            &["replay", &file, "--device", "1G", "--reserve", "2G"],
            "1G has no memory left",
        ),
        (&["replay", &file, "--policy", "nope"], "unknown policy 'nope'"),
        (
            &["replay", &file, "--policy", "torch-natve"],
            "did you mean 'torch-native'?",
        ),
        (
            &["tune", &file, "--policy", "milpond"],
            "did you mean 'millpond'?",
        ),
        (
            &["replay", &file, "--time-window", "0s..0s"],
            "the window is empty",
        ),
        (&["replay", "/dev/null"], "a device or a socket"),
        (
            &["replay", &file, "--paged", "off", "-p", "cuda-async"],
            "--paged on",
        ),
        (
            &[
                "replay",
                &file,
                "-p",
                "torch-native",
                "--torch-conf",
                "expandable_segments:True",
            ],
            "contradicts",
        ),
        (
            &[
                "replay",
                &file,
                "-p",
                "torch-expandable",
                "--torch-conf",
                "expandable_segments:False",
            ],
            "contradicts",
        ),
        (
            &["replay", &file, "--torch-conf", "nonsense:1"],
            "unknown setting 'nonsense'",
        ),
        (
            &["replay", &file, "--conf", "nonsense:1"],
            "unknown setting 'nonsense'",
        ),
        (&["replay", &file, "--conf", "handle:0"], "a multiple of 2.00 MiB"),
        (
            &["replay", &file, "--conf", "handle:3MiB"],
            "a multiple of 2.00 MiB",
        ),
        (
            &["replay", &file, "--time-window", "3s..1s"],
            "ends before it begins",
        ),
        (&["replay", &file, "--time-window", "5s..9s"], "--time-window"),
        (&["replay", &file, "--paged", "perhaps"], "'perhaps'"),
        (&["replay", &file, "--source", "abacus"], "'abacus'"),
        (
            &["replay", &file, "--costs", "/nowhere/costs.toml"],
            "/nowhere/costs.toml",
        ),
        (&["replay", &file, "--costs", &file], "cost table"),
        (&["replay", &file, "--html", &unwritable], "cannot write"),
        (&["replay", &file, "--verify"], "cannot be verified"),
        (&["replay", &state], "no history"),
        (&["tune", &state], "no history"),
        (&["replay", &damaged], "1.00 PiB at its event 1"),
        (&["tune", &damaged], "1.00 PiB at its event 1"),
        (&["plan", &damaged], "1.00 PiB at its event 1"),
        (&["tune", &file, "--policy", "nope"], "'nope'"),
        (&["frobnicate"], "frobnicate"),
    ];
    for (args, expected) in cases {
        let (code, stdout, stderr) = run(args);
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert_eq!(stdout, "", "{args:?}");
        assert!(
            stderr.starts_with("millpond: ") && stderr.lines().count() == 1,
            "{args:?}: {stderr}"
        );
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    }
}

#[test]
fn one_bad_file_does_not_hide_the_others() {
    let dir = folder("one_bad");
    small(&dir, "good.csv");
    std::fs::write(dir.join("bad.csv"), "this is not a recording\n").expect("written");
    let (code, stdout, stderr) = run(&["replay", &dir.display().to_string(), "-p", "torch-native"]);
    assert_eq!(code, 2);
    assert!(stdout.contains("good"), "{stdout}");
    assert!(stderr.contains("bad.csv"), "{stderr}");
}
