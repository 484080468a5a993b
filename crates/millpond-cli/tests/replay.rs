//! Tests `millpond replay` as scripts use it: exit codes, JSON and output streams.

#[path = "replay/json.rs"]
mod json;
#[path = "replay/pages.rs"]
mod pages;
#[path = "replay/refused.rs"]
mod refused;
#[path = "replay/settings.rs"]
mod settings;
mod support;
#[path = "replay/verdict.rs"]
mod verdict;

use std::io::Read;
use std::process::Stdio;
use support::{command, folder, fragmenting, growing, json, run, small, state_only, trace};

#[test]
fn exit_codes_distinguish_success_bad_input_and_out_of_memory() {
    let dir = folder("exit_codes");
    let file = small(&dir, "run.csv");
    let two = "torch-native,torch-expandable";
    assert_eq!(run(&["replay", &file]).0, 0);
    assert_eq!(run(&["replay", &file, "--device", "1GiB"]).0, 0);
    assert_eq!(run(&["replay", &file, "--device", "32MiB", "-p", two]).0, 3);
    // 64 MiB hold both blocks, which PyTorch's native allocator rounds to 2 MiB. Both policies finish.
    assert_eq!(run(&["replay", &file, "--device", "64MiB", "-p", two]).0, 0);
    assert_eq!(run(&["replay", "/nowhere/run.csv"]).0, 2);
}

#[test]
fn one_policy_that_fits_is_enough() {
    let file = trace("gnn_sage_sampled");
    let both = run(&[
        "replay",
        &file,
        "-d",
        "1260MiB",
        "-p",
        "torch-native,torch-expandable",
    ]);
    assert_eq!(both.0, 0, "{}", both.1);
    assert!(
        both.1.contains("torch-native runs out of memory at event"),
        "{}",
        both.1
    );
    let native = run(&["replay", &file, "-d", "1260MiB", "-p", "torch-native"]);
    assert_eq!(native.0, 3, "{}", native.1);
}

#[test]
fn a_state_without_history_names_the_command_that_shows_it() {
    let state = state_only(&folder("state_only"));
    let (code, _, stderr) = run(&["replay", &state]);
    assert_eq!(code, 2);
    assert!(stderr.contains("`millpond report`"), "{stderr}");
    let (code, stdout, _) = run(&["info", &state]);
    assert_eq!(code, 0);
    assert!(stdout.contains("when the snapshot was written"), "{stdout}");
}

#[test]
fn a_folder_replays_all_its_files_and_names_the_worst() {
    let dir = folder("ranks");
    for name in ["rank10.csv", "rank2.csv", "rank1.csv"] {
        small(&dir, name);
    }
    let heavy = dir.join("rank3.csv");
    std::fs::write(&heavy, "action,id,bytes,stream,tag\nalloc,1,209715200,0,a\n").expect("written");
    let dir = dir.display().to_string();
    let reports = json(&["replay", &dir, "--json", "-p", "torch-native"]);
    let names: Vec<&str> = reports
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|r| r["trace"].as_str())
        .collect();
    assert_eq!(names, ["rank1", "rank2", "rank3", "rank10"]);
    let (code, stdout, stderr) = run(&["replay", &dir, "-p", "torch-native,pow2", "--device", "128MiB"]);
    assert_eq!(code, 3, "{stderr}");
    assert!(stdout.contains("All 4 recordings"), "{stdout}");
    assert!(stdout.contains("rank3 holds the most"), "{stdout}");
    assert!(stdout.contains("3 of 4"), "{stdout}");
}

/// The second recording holds more than the device has, so the policies that were tried for the first one were not tried for it.
#[test]
fn a_policy_fits_a_folder_only_if_it_was_replayed_for_all_recordings() {
    let folder = folder("ranks_of_two_sizes");
    fragmenting(&folder);
    let text = "time_us,action,id,bytes,stream,tag\n0,alloc,1,51539607552,0,mask\n1,free,1,51539607552,0,\n";
    std::fs::write(folder.join("rank1.csv"), text).expect("written");
    let (code, stdout, stderr) = run(&["replay", &folder.display().to_string(), "--device", "10GiB"]);
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(code, 3, "{stdout}{stderr}");
    assert!(
        words.contains("No policy fits all recordings on this device: none fits rank1."),
        "{stdout}"
    );
}

#[test]
fn quiet_prints_only_the_result() {
    let file = small(&folder("quiet"), "run.csv");
    let (code, stdout, stderr) = run(&["replay", &file, "-q", "--torch-conf", "expandable_segments:True"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains("torch-expandable"));
}

#[test]
fn a_closed_output_is_not_an_error() {
    let file = small(&folder("pipe"), "run.csv");
    let mut child = command(&["replay", &file])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .expect("piped")
        .read_to_string(&mut stderr)
        .expect("UTF-8");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(stderr, "");
}

#[test]
fn no_line_is_wider_than_the_terminal_and_none_is_coloured() {
    let file = growing(&folder("widths"));
    for columns in [80, 120, 200] {
        let mut command = command(&["replay", &file, "--device", "100MiB", "--fit", "-q"]);
        let output = command
            .env("COLUMNS", columns.to_string())
            .output()
            .expect("the program starts");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(!text.contains('\x1b'), "colours outside a terminal");
        for line in text.lines() {
            assert!(line.chars().count() <= columns, "wider than {columns}: {line}");
        }
        for word in ["peak", "overhead", "smallest", "driver", "failure", "set_access"] {
            let word = word.split('_').next().expect("one");
            let shown = text.contains(word) || text.contains("over-");
            assert!(shown, "{word} is missing: {text}");
        }
    }
}

#[test]
fn a_policy_that_failed_shows_no_overhead() {
    let file = small(&folder("no_overhead"), "run.csv");
    let (_, stdout, _) = run(&["replay", &file, "-p", "torch-native", "--device", "48MiB"]);
    let row = stdout
        .lines()
        .find(|line| line.starts_with("  torch-native (yours) "))
        .expect("a row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        cells[..5],
        ["torch-native", "(yours)", "30.00", "MiB", "-"],
        "{row}"
    );
}

#[test]
fn a_tiny_program_is_reported_in_bytes() {
    let file = folder("tiny").join("run.csv");
    std::fs::write(
        &file,
        "time_us,action,id,bytes,stream,tag\n0,alloc,1,700,0,a\n1,free,1,700,0,\n",
    )
    .expect("written");
    let file = file.display().to_string();
    let (_, stdout, _) = run(&["replay", &file, "-p", "torch-native,none"]);
    assert!(
        stdout.contains("700 B") && stdout.contains("2,996") && !stdout.contains("0.00 MiB"),
        "{stdout}"
    );
    assert!(stdout.contains("never holds more than 700 B"), "{stdout}");
}

#[test]
fn a_failed_first_request_reports_no_held_memory() {
    let file = small(&folder("nothing_held"), "run.csv");
    let (_, stdout, _) = run(&["replay", &file, "-p", "torch-native", "--device", "16MiB"]);
    assert!(
        stdout.contains("held         nothing yet") && !stdout.contains(" 0 B"),
        "{stdout}"
    );
}

#[cfg(unix)]
#[test]
fn a_pipe_is_read_if_it_has_a_writer() {
    let dir = folder("pipes");
    let file = small(&dir, "run.csv");
    let pipe = dir.join("pipe").display().to_string();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo is there").success());
    let (code, _, stderr) = run(&["replay", &pipe, "-p", "none"]);
    assert_eq!(code, 2, "nobody writes, and it ends all the same");
    assert!(stderr.contains("a pipe without a writer"), "{stderr}");
    let (from, to) = (file.clone(), pipe.clone());
    let writer = std::thread::spawn(move || std::fs::copy(from, to));
    let (code, stdout, stderr) = run(&["replay", &pipe, "-p", "none"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("4 events"), "{stdout}");
    writer.join().expect("it ends").expect("it wrote");
    for name in ["/dev/stdin", "-"] {
        let mut child = command(&["replay", name, "-p", "none"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let text = std::fs::read(&file).expect("a recording");
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), &text).expect("it reads");
        assert!(child.wait_with_output().expect("it ends").status.success());
    }
}

/// Runs a command with bytes on its standard input.
#[cfg(unix)]
fn run_with(args: &[&str], input: &[u8]) -> (bool, String, String) {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A command that refuses its input closes the pipe early.
    let _ = std::io::Write::write_all(&mut child.stdin.take().expect("piped"), input);
    let out = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (out.status.success(), text(out.stdout), text(out.stderr))
}

#[cfg(target_os = "linux")]
#[test]
fn every_command_reads_standard_input() {
    let dir = folder("stdin");
    let csv = small(&dir, "run.csv");
    let mpr = dir.join("run.mpr").display().to_string();
    let (code, _, stderr) = run(&["convert", &csv, &mpr, "-q"]);
    assert_eq!(code, 0, "{stderr}");
    let zst = zstd::encode_all(std::fs::File::open(&mpr).expect("written"), 3).expect("compressed");
    let page = dir.join("page.html").display().to_string();
    let other = dir.join("again.mpr").display().to_string();
    for bytes in [
        std::fs::read(&csv).expect("csv"),
        std::fs::read(&mpr).expect("mpr"),
        zst,
    ] {
        for args in [
            &["report", "-"][..],
            &["diff", "-", "--at", "peak,end"],
            &["view", "-", "--html", &page],
            &["convert", "-", &other],
            &["info", "-"],
            &["replay", "-", "-p", "none"],
            &["tune", "-", "-p", "torch"],
            &["plan", "-"],
        ] {
            // The command replaces no recording.
            let _ = std::fs::remove_file(&other);
            let (done, _, stderr) = run_with(args, &bytes);
            assert!(done, "{args:?}: {stderr}");
        }
        let (_, report, _) = run_with(&["report", "-"], &bytes);
        assert!(report.starts_with("stdin\n"), "{report}");
    }
    let (done, _, stderr) = run_with(&["report", "-"], b"");
    assert!(
        !done && stderr.contains("standard input: it is empty"),
        "{stderr}"
    );
    let (code, _, stderr) = run(&["report", "-"]);
    assert!(code == 2 && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn a_memory_fraction_that_is_too_small_runs_out_of_memory() {
    let file = growing(&folder("share"));
    let replay = |fraction: &str| {
        let conf = format!("memory-fraction:{fraction}");
        let args = [
            "replay", &file, "--json", "-p", "millpond", "-d", "64GiB", "--conf", &conf,
        ];
        run(&args).0
    };
    assert_eq!(replay("100%"), 0);
    assert_eq!(replay("0.0001%"), 3);
    assert_eq!(replay("2"), 2);
}
