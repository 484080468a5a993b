//! `millpond replay` as scripts see it: exit codes, JSON, streams of output.

mod support;

use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use support::{command, folder, growing, json, run, small, state_only, trace};

#[test]
fn exit_codes_tell_replayed_from_bad_input_from_out_of_memory() {
    let dir = folder("exit_codes");
    let file = small(&dir, "run.csv");
    let two = "torch-native,torch-expandable";
    assert_eq!(run(&["replay", &file]).0, 0);
    assert_eq!(run(&["replay", &file, "--device", "1GiB"]).0, 0);
    assert_eq!(run(&["replay", &file, "--device", "32MiB", "-p", two]).0, 3);
    // 62 MiB hold both blocks, and PyTorch's native allocator takes them rounded to 2 MiB: both finish.
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
    assert!(both.1.contains("Out of memory at event"), "{}", both.1);
    let native = run(&["replay", &file, "-d", "1260MiB", "-p", "torch-native"]);
    assert_eq!(native.0, 3, "{}", native.1);
}

/// A recording with a number that no device has.
fn beyond(dir: &Path) -> String {
    let path = dir.join("damaged.csv");
    let rows = "0,alloc,1,100\n10,alloc,2,1125899906842624\n20,free,2,1125899906842624\n30,alloc,3,64\n";
    std::fs::write(&path, format!("time_us,action,id,bytes\n{rows}")).expect("written");
    path.display().to_string()
}

#[test]
fn what_no_device_holds_is_told_and_left_out() {
    let damaged = beyond(&folder("beyond"));
    let (code, facts, stderr) = run(&["info", &damaged]);
    assert_eq!(code, 0, "{stderr}");
    assert!(facts.contains("peak requested  1.00 PiB at event 1"), "{facts}");
    let (code, report, stderr) = run(&["replay", &damaged, "--time-window", "25us.."]);
    assert_eq!(code, 0, "{stderr}");
    assert!(report.contains("peak requested 164 B"), "{report}");
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
        (&["replay", &empty], "holds no file"),
        (&["replay", &file, "--device", "80GX"], "'80GX' is not a size"),
        (
            &["replay", &file, "--reserve", "much", "--device", "1G"],
            "'much' is not a size",
        ),
        (
            &["replay", &file, "--device", "1G", "--reserve", "2G"],
            "nothing of 1G is left",
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
fn a_state_without_history_names_the_command_that_shows_it() {
    let state = state_only(&folder("state_only"));
    let (code, _, stderr) = run(&["replay", &state]);
    assert_eq!(code, 2);
    assert!(stderr.contains("`millpond info`"), "{stderr}");
    let (code, stdout, _) = run(&["info", &state]);
    assert_eq!(code, 0);
    assert!(stdout.contains("when the snapshot was written"), "{stdout}");
}

#[test]
fn a_setting_against_an_unnamed_policy_leaves_it_out() {
    let file = small(&folder("left_out"), "run.csv");
    let (code, stdout, stderr) = run(&[
        "replay",
        &file,
        "--torch-conf",
        "expandable_segments:True",
        "--json",
    ]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("torch-native is left out"), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).expect("only JSON on stdout");
    let names: Vec<&Value> = report["results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|r| &r["policy"])
        .collect();
    assert!(
        names.contains(&&"torch-expandable".into()) && !names.contains(&&"torch-native".into()),
        "{names:?}"
    );
}

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

fn sorted<const N: usize>(mut keys: [&'static str; N]) -> Vec<&'static str> {
    keys.sort_unstable();
    keys.to_vec()
}

#[test]
fn the_json_has_exactly_these_keys() {
    let file = small(&folder("keys"), "run.csv");
    let (code, stdout, _) = run(&[
        "replay",
        &file,
        "--json",
        "--fit",
        "-d",
        "48MiB",
        "-p",
        "torch-native",
    ]);
    assert_eq!(code, 3);
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    let top = sorted([
        "schema",
        "trace",
        "device",
        "events",
        "allocations",
        "initial_blocks",
        "peak_requested_bytes",
        "recorded",
        "settings",
        "cautions",
        "results",
        "advice",
    ]);
    assert_eq!(keys(&report), top);
    let result = &report["results"][0];
    let of_result = sorted([
        "policy",
        "fidelity",
        "peak_reserved_bytes",
        "peak_allocated_bytes",
        "overhead",
        "hit_rate",
        "smallest_device_bytes",
        "fit",
        "driver_calls",
        "stalls",
        "moved_bytes",
        "handle_operations",
        "cross_stream_waits",
        "modelled_driver_ms",
        "ns_per_event",
        "steps",
        "plans",
        "first_failure",
    ]);
    assert_eq!(keys(result), of_result);
    let of_fit = sorted([
        "stalls",
        "stalls_per_allocation",
        "modelled_driver_ms",
        "moved_bytes",
    ]);
    assert_eq!(keys(&result["fit"]), of_fit);
    let of_calls = sorted([
        "malloc",
        "free",
        "create",
        "map",
        "set_access",
        "unmap",
        "release",
        "reserve",
        "event_record",
        "event_wait",
    ]);
    assert_eq!(keys(&result["driver_calls"]), of_calls);
    let of_failure = sorted([
        "event",
        "bytes",
        "stream",
        "tag",
        "held_bytes",
        "free_bytes",
        "largest_hole_bytes",
        "cached_bytes",
        "holders",
        "remedy",
    ]);
    assert_eq!(keys(&result["first_failure"]), of_failure);
    assert_eq!(
        keys(&result["first_failure"]["holders"][0]),
        sorted(["tag", "bytes", "blocks"])
    );
    assert_eq!(report["schema"], 1);
    assert_eq!(report["peak_requested_bytes"], 60 << 20);
    assert_eq!(result["first_failure"]["event"], 1);
    assert_eq!(result["first_failure"]["held_bytes"], 30 << 20);
}

/// The figures of one report without the one that is a measurement.
fn timeless(mut report: Value) -> Value {
    for result in report["results"].as_array_mut().expect("results") {
        assert!(
            result
                .as_object_mut()
                .expect("a result")
                .remove("ns_per_event")
                .is_some()
        );
    }
    report
}

#[test]
fn runs_and_threads_change_no_figure() {
    let file = trace("cpu_tiny_gpt_varlen");
    let with = |threads: &str| {
        timeless(json(&[
            "replay",
            &file,
            "--json",
            "--device",
            "160MiB",
            "--threads",
            threads,
        ]))
    };
    let one = with("1");
    assert_eq!(one, with("1"));
    assert_eq!(one, with("4"));
}

#[test]
fn a_folder_is_all_its_files_and_names_the_worst() {
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
    assert!(stdout.contains("The most is held by rank3"), "{stdout}");
    assert!(stdout.contains("3 of 4"), "{stdout}");
}

#[test]
fn one_bad_file_does_not_hide_the_others() {
    let dir = folder("one_bad");
    small(&dir, "good.csv");
    std::fs::write(dir.join("bad.csv"), "this is no recording\n").expect("written");
    let (code, stdout, stderr) = run(&["replay", &dir.display().to_string(), "-p", "torch-native"]);
    assert_eq!(code, 2);
    assert!(stdout.contains("good"), "{stdout}");
    assert!(stderr.contains("bad.csv"), "{stderr}");
}

#[test]
fn a_redacted_report_leaks_no_name() {
    let dir = folder("redacted");
    let file = small(&dir, "secretrecording.csv");
    let page = dir.join("page.html");
    for extra in [&["--json"][..], &[]] {
        let mut args = vec!["replay", &file, "--redact", "--device", "48MiB", "--fit"];
        args.extend(extra);
        let (code, stdout, stderr) = run(&args);
        assert_eq!(code, 3, "{stderr}");
        assert!(!stdout.contains("secret"), "{stdout}");
        assert!(
            stdout.contains("fwd") && stdout.contains("mm"),
            "phases and operators stay: {stdout}"
        );
    }
    let named = page.display().to_string();
    assert_eq!(
        run(&[
            "replay",
            &file,
            "--redact",
            "--html",
            &named,
            "-p",
            "torch-native"
        ])
        .0,
        0
    );
    assert!(!std::fs::read_to_string(&page).expect("a page").contains("secret"));
    let (_, stdout, _) = run(&["replay", &file, "--device", "48MiB"]);
    assert!(
        stdout.contains("secretfile.py:secretfunction:12"),
        "and without it they are shown: {stdout}"
    );
}

#[test]
fn a_redacted_real_report_leaks_no_module() {
    let (_, stdout, _) = run(&[
        "replay",
        &trace("llama1b_train_varlen"),
        "--redact",
        "--device",
        "24G",
    ]);
    for name in [
        "llama1b",
        "layers",
        "mlp",
        "workloads",
        "models.py",
        "train_step",
        "lambda",
    ] {
        assert!(!stdout.contains(name), "{name}: {stdout}");
    }
}

#[test]
fn quiet_says_nothing_but_the_result() {
    let file = small(&folder("quiet"), "run.csv");
    let (code, stdout, stderr) = run(&["replay", &file, "-q", "--torch-conf", "expandable_segments:True"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains("torch-expandable"));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
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
fn several_reports_become_several_pages() {
    let dir = folder("pages");
    let (a, b) = (small(&dir, "a.csv"), small(&dir, "b.csv"));
    let page = dir.join("page.html").display().to_string();
    assert_eq!(
        run(&["replay", &a, &b, "--html", &page, "-p", "torch-native"]).0,
        0
    );
    let mut pages: Vec<String> = std::fs::read_dir(&dir)
        .expect("a folder")
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| !name.ends_with(".csv"))
        .collect();
    pages.sort_unstable();
    assert_eq!(
        pages,
        ["page-a.html", "page-b.html"],
        "and nothing half-written is left"
    );
}

#[test]
fn a_page_replaces_nothing_but_a_page() {
    let dir = folder("replaced");
    let file = small(&dir, "run.csv");
    let before = std::fs::read(&file).expect("a recording");
    let (code, _, stderr) = run(&["replay", &file, "--html", &file, "-p", "torch-native"]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("millpond did not write is there already"),
        "{stderr}"
    );
    assert_eq!(std::fs::read(&file).expect("still there"), before);
    let page = dir.join("page.html");
    let named = page.display().to_string();
    for _ in 0..2 {
        assert_eq!(
            run(&["replay", &file, "--html", &named, "-p", "none"]).0,
            0,
            "again and again"
        );
    }
    let mut locked = std::fs::metadata(&page).expect("a page").permissions();
    locked.set_readonly(true);
    std::fs::set_permissions(&page, locked).expect("a page of our own");
    assert_eq!(run(&["replay", &file, "--html", &named, "-p", "none"]).0, 2);
    // Of several recordings each page has its own name, which may be taken as well.
    let other = small(&dir, "other.csv");
    let taken = dir.join("all-other.html");
    std::fs::write(&taken, "notes").expect("a file");
    let all = dir.join("all.html").display().to_string();
    assert_eq!(run(&["replay", &file, &other, "--html", &all, "-p", "none"]).0, 2);
    assert_eq!(std::fs::read_to_string(&taken).expect("still there"), "notes");
}

#[test]
fn costs_can_be_replaced() {
    let dir = folder("costs");
    let file = small(&dir, "run.csv");
    let kinds = [
        "malloc",
        "free",
        "create",
        "map",
        "set_access",
        "unmap",
        "release",
        "reserve",
        "event_record",
        "event_wait",
        "stall",
    ];
    let table: String = kinds
        .map(|kind| format!("[{kind}]\nper_call = 1000.0\n"))
        .concat();
    let costs = dir.join("costs.toml");
    std::fs::write(&costs, table).expect("written");
    let report = json(&[
        "replay",
        &file,
        "--json",
        "-p",
        "torch-native",
        "--costs",
        &costs.display().to_string(),
    ]);
    let result = &report["results"][0];
    assert_eq!(
        result["modelled_driver_ms"].as_f64(),
        result["driver_calls"]["malloc"].as_f64()
    );
}

#[test]
fn another_backend_of_pytorch_is_warned_about() {
    let file = growing(&folder("backend"));
    let conf = ["--torch-conf", "backend:cudaMallocAsync"];
    let cautions = |policies: &str| {
        json(&["replay", &file, "--json", "-p", policies, conf[0], conf[1]])["cautions"].to_string()
    };
    let both = cautions("torch-native,cuda-async");
    assert!(
        both.contains("the figures of cuda-async are those to read")
            && both.contains("torch-native would not run"),
        "{both}"
    );
    assert!(cautions("torch-native").contains("--policy cuda-async"));
    assert!(!cautions("cuda-async,bfc").contains("cudaMallocAsync"));
    let report = json(&["replay", &file, "--json", conf[0], conf[1]]);
    assert!(
        !report["advice"].to_string().contains("expandable_segments"),
        "no setting of an allocator that is not used: {}",
        report["advice"]
    );
    let (code, _, stderr) = run(&["replay", &file, "--torch-conf", "backend:cudamalloc"]);
    assert!(
        code == 2 && stderr.contains("native or cudaMallocAsync"),
        "{stderr}"
    );
}

#[test]
fn policies_that_map_pages_are_left_out_where_none_can_be_mapped() {
    let file = growing(&folder("pageless"));
    let report = json(&["replay", &file, "--json", "--paged", "off"]);
    let results = report["results"].as_array().expect("results");
    assert!(
        results.len() > 5 && results.iter().all(|r| r["first_failure"].is_null()),
        "{results:?}"
    );
    let cautions = report["cautions"].to_string();
    for policy in ["torch-expandable", "rmm-arena", "cuda-async"] {
        assert!(cautions.contains(policy), "{cautions}");
        assert!(results.iter().all(|result| result["policy"] != policy));
    }
}

#[test]
fn the_environment_stands_for_settings_that_are_not_given() {
    let file = small(&folder("environment"), "run.csv");
    let replay = |more: &[&str], conf: &str| {
        let mut args = vec!["replay", file.as_str(), "-p", "millpond,torch-native"];
        args.extend(more);
        let output = command(&args)
            .env("MILLPOND_CONF", conf)
            .output()
            .expect("starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, stdout, stderr) = replay(&["--json"], "handle:4MiB");
    assert_eq!(code, Some(0), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    let applied = &report["settings"][0];
    assert_eq!(applied["from"], "MILLPOND_CONF");
    assert_eq!(applied["settings"], "handle:4MiB");
    assert_eq!(applied["policies"], serde_json::json!(["millpond"]));
    let (_, stdout, _) = replay(&[], "handle:4MiB");
    assert!(
        stdout.contains("settings of millpond: handle:4MiB (from MILLPOND_CONF)"),
        "{stdout}"
    );
    let (_, stdout, _) = replay(&["--conf", "handle:8MiB"], "handle:4MiB");
    assert!(
        stdout.contains("handle:8MiB (from --conf)") && !stdout.contains("MILLPOND_CONF"),
        "the option wins: {stdout}"
    );
    let (code, _, stderr) = replay(&[], "hande:4MiB");
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("MILLPOND_CONF: unknown setting 'hande'"),
        "{stderr}"
    );
    let (code, stdout, _) = replay(&[], "");
    assert!(code == Some(0) && !stdout.contains("settings of"), "{stdout}");
}

#[test]
#[cfg(target_os = "linux")]
fn settings_that_only_pools_have_are_checked_and_passed_over() {
    let file = small(&folder("pool_keys"), "run.csv");
    let replay = |conf: &str| {
        let output = command(&["replay", file.as_str(), "-p", "millpond", "--json"])
            .env("MILLPOND_CONF", conf)
            .output()
            .expect("starts");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, stdout, stderr) = replay("guard:on,handle:4MiB,limit:2GiB");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains("MILLPOND_CONF: guard:on,limit:2GiB is for pools"),
        "{stderr}"
    );
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(report["settings"][0]["settings"], "handle:4MiB");
    let (code, stdout, _) = replay("guard:on");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert!(
        code == Some(0) && report["settings"].as_array().is_none_or(Vec::is_empty),
        "nothing was applied: {stdout}"
    );
    for (conf, said) in [
        ("guard:maybe", "MILLPOND_CONF: setting 'guard' cannot be 'maybe'"),
        ("gard:on", "MILLPOND_CONF: unknown setting 'gard'; known: limit, "),
        ("garbage", "MILLPOND_CONF: 'garbage' is not key:value"),
    ] {
        let (code, stdout, stderr) = replay(conf);
        assert!(
            code == Some(2) && stdout.is_empty() && stderr.contains(said),
            "{conf}: {stderr}"
        );
    }
}

#[test]
fn what_cannot_be_said_is_in_the_json() {
    let file = folder("cut").join("run.csv");
    std::fs::write(
        &file,
        "time_us,action,id,bytes,stream,tag\n0,alloc,1,31457280,0,a\n1,free,1,31457280,0,\n2,all",
    )
    .expect("written");
    let report = json(&["replay", &file.display().to_string(), "--json", "-p", "none"]);
    let cautions = report["cautions"].as_array().expect("cautions");
    assert_eq!(cautions.len(), 2, "{cautions:?}");
    assert!(cautions[0].to_string().contains("cut after"));
    assert!(
        cautions[1]
            .to_string()
            .contains("nothing can be said about the time after")
    );
}

#[test]
fn a_policy_that_failed_shows_no_overhead() {
    let file = small(&folder("no_overhead"), "run.csv");
    let (_, stdout, _) = run(&["replay", &file, "-p", "torch-native", "--device", "48MiB"]);
    let row = stdout
        .lines()
        .find(|line| line.trim_start().starts_with("torch-native"))
        .expect("a row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[..4], ["torch-native", "30.00", "MiB", "-"], "{row}");
}

#[test]
fn a_tiny_program_is_told_as_one() {
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
fn a_first_request_that_fails_finds_nothing_held() {
    let file = small(&folder("nothing_held"), "run.csv");
    let (_, stdout, _) = run(&["replay", &file, "-p", "torch-native", "--device", "16MiB"]);
    assert!(
        stdout.contains("the program held nothing yet") && !stdout.contains("0 B, most of it"),
        "{stdout}"
    );
}

#[cfg(unix)]
#[test]
fn a_pipe_is_read_where_somebody_writes_to_it() {
    let dir = folder("pipes");
    let file = small(&dir, "run.csv");
    let pipe = dir.join("pipe").display().to_string();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo is there").success());
    let (code, _, stderr) = run(&["replay", &pipe, "-p", "none"]);
    assert_eq!(code, 2, "nobody writes, and it ends all the same");
    assert!(stderr.contains("nobody writes to"), "{stderr}");
    let (from, to) = (file.clone(), pipe.clone());
    let writer = std::thread::spawn(move || std::fs::copy(from, to));
    let (code, stdout, stderr) = run(&["replay", &pipe, "-p", "none"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("4 events"), "{stdout}");
    writer.join().expect("it ends").expect("it wrote");
    let mut child = command(&["replay", "/dev/stdin", "-p", "none"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let text = std::fs::read(&file).expect("a recording");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), &text).expect("it reads");
    assert!(child.wait_with_output().expect("it ends").status.success());
}

#[test]
fn the_page_of_a_window_shows_the_window() {
    let dir = folder("window_page");
    let file = small(&dir, "run.csv");
    let page = dir.join("page.html");
    let named = page.display().to_string();
    let window = ["--time-window", "1ms..2ms", "-p", "none", "--html", &named];
    let (code, _, stderr) = run(&[&["replay", &file][..], &window].concat());
    assert_eq!(code, 0, "{stderr}");
    let html = std::fs::read_to_string(&page).expect("a page");
    assert!(
        html.contains("<span>2 events</span>"),
        "not the four of the recording"
    );
}

#[test]
fn time_passes_where_it_is_said_to() {
    let trace = trace("llama8b_fsdp_streams");
    let replay = |more: &[&str]| {
        let mut args = vec!["replay", &trace, "--json", "-p", "millpond", "--conf", "decay:1"];
        args.extend(more);
        json(&args)
    };
    let without = replay(&[]);
    let with = replay(&["--tick", "2000"]);
    assert_eq!(with["settings"][1]["settings"], "a tick after every 2,000 calls");
    assert_eq!(with["settings"][1]["from"], "--tick");
    let released = |report: &Value| report["results"][0]["driver_calls"]["release"].as_u64();
    assert!(released(&with) > released(&without));
    // Each step needs what the step before needed: nothing is unused for longer than one.
    let steps = replay(&["--tick", "step"]);
    assert_eq!(steps["settings"][1]["settings"], "a tick at each step");
    assert_eq!(released(&steps), released(&without));
    let file = small(&folder("ticks"), "run.csv");
    let (code, _, stderr) = run(&["replay", &file, "--tick", "step"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("write --tick N"), "{stderr}");
    let (code, _, stderr) = run(&["replay", &file, "--tick", "10s"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("write step, or a number of calls"), "{stderr}");
}

#[test]
fn a_program_held_to_its_share_is_told_when_it_is_not_enough() {
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
