//! Tests replays on a CUDA device's memory with the emulated driver.

#![cfg(all(feature = "bench", target_os = "linux"))]

mod support;

use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use support::{command, folder, growing, json, run, shared, small, trace};

/// The policies for which this project makes claims.
const POLICIES: &str = "millpond,planned,torch-native,torch-expandable";

/// Runs the program with an emulated driver that has these options.
fn emulated(options: &str, args: &[&str]) -> (i32, String, String) {
    let program = env!("CARGO_BIN_EXE_millpond");
    let behind = ["cuda-emu", "-o", options, "--", program];
    let output = command(&[&behind[..], args].concat())
        .output()
        .expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code().expect("no signal"),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Returns the JSON of a replay that must succeed.
fn facts(options: &str, args: &[&str]) -> Value {
    let device = ["replay", "--source", "cuda:0", "--json"];
    let (code, stdout, stderr) = emulated(options, &[&device[..], args].concat());
    assert_eq!(code, 0, "{args:?}: {stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {stdout}"))
}

fn calls(run: &Value, function: &str) -> u64 {
    let calls = run["driver_calls"].as_array().expect("a list");
    let of = calls.iter().find(|call| call["function"] == function);
    of.map_or(0, |call| call["calls"].as_u64().expect("a number"))
}

/// Compares a replay on a device with the result of `millpond replay` for the same recording.
fn agrees(options: &str, file: &str, policies: &str) -> Value {
    let simulated = json(&["replay", file, "--json", "-p", policies]);
    let there = facts(options, &[file, "-p", policies]);
    let runs = there["source"]["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), policies.split(',').count());
    for (index, run) in runs.iter().enumerate() {
        let peak = &simulated["results"][index]["peak_reserved_bytes"];
        assert_eq!(&run["peak_reserved_bytes"], peak, "{file}: {run}");
        assert_eq!(&run["simulated_peak_reserved_bytes"], peak, "{file}");
        assert_eq!(run["difference_bytes"], 0, "{file}");
        assert_eq!(run["same_calls"], true, "{file}: {run}");
        // The driver reports the same use of memory as its caller counts.
        assert_eq!(run["unexplained_at_peak_bytes"], 0, "{file}: {run}");
        assert_eq!(run["unexplained_at_end_bytes"], 0, "{file}: {run}");
        assert_eq!(
            there["results"][index]["driver_calls"]["malloc"],
            calls(run, "cuMemAlloc"),
            "{file}: {run}"
        );
        assert_eq!(
            there["results"][index]["driver_calls"]["create"],
            calls(run, "cuMemCreate"),
            "{file}: {run}"
        );
        assert_eq!(there["results"][index]["peak_reserved_bytes"], *peak, "{file}");
    }
    there
}

#[test]
fn a_device_reserves_the_same_bytes_as_the_simulation() {
    let there = agrees("devices:1", &trace("gnn_sage_sampled"), POLICIES);
    let source = &there["source"];
    assert_eq!(
        (&source["device"], &source["memory"]),
        (&"cuda:0".into(), &"virtual".into())
    );
    assert_eq!(
        (&source["emulated"], &source["limit_bytes"]),
        (&true.into(), &Value::Null)
    );
    assert_eq!(source["total_bytes"], 80u64 << 30);
    // Pages were mapped again by calls to the driver, and the host did not wait for the device.
    let planned = &source["runs"][1];
    let moved = planned["moved_bytes"].as_u64().expect("a number");
    assert!(moved > 0 && calls(planned, "cuMemUnmap") > 0);
    assert_eq!(calls(planned, "cuStreamSynchronize"), 0, "{planned}");
    assert_eq!(
        calls(planned, "cuMemMap"),
        there["results"][1]["driver_calls"]["map"]
            .as_u64()
            .expect("a number")
    );
    let time = |of: &Value| of["ms"].as_f64().expect("a time");
    let all: f64 = planned["driver_calls"]
        .as_array()
        .expect("a list")
        .iter()
        .map(time)
        .sum();
    let told = planned["driver_ms"].as_f64().expect("a time");
    assert!(all > 0.0 && (all - told).abs() < 1e-6, "{planned}");
}

#[test]
fn each_recorded_stream_becomes_a_stream_of_the_device() {
    let there = agrees("streams:threads", &trace("llama8b_fsdp_streams"), "millpond,bfc");
    let run = &there["source"]["runs"][0];
    assert_eq!(run["streams"], 3);
    assert_eq!(
        calls(run, "cuEventRecord"),
        there["results"][0]["driver_calls"]["event_record"]
            .as_u64()
            .expect("a number")
    );
    assert!(calls(run, "cuStreamWaitEvent") > 0 && calls(run, "cuStreamCreate") == 3);
}

#[test]
fn the_peak_includes_memory_that_was_returned_later() {
    let file = small(&folder("cuda_peak"), "small.csv");
    let there = agrees("devices:1", &file, "none");
    let run = &there["source"]["runs"][0];
    assert_eq!(run["peak_reserved_bytes"], 60u64 << 20);
    assert_eq!(calls(run, "cuMemFree"), 1);
}

/// `--check` writes into every block and compares the contents, on devices that run work as late as allowed, and in strict mode.
#[test]
fn contents_are_written_and_compared() {
    let there = facts(
        "devices:1",
        &[&trace("gnn_sage_sampled"), "-p", POLICIES, "--check"],
    );
    for run in there["source"]["runs"].as_array().expect("a list") {
        let check = &run["check"];
        assert_eq!(check["wrong"], 0, "{run}");
        assert!(check["blocks"].as_u64() > Some(20_000), "{check}");
        assert_eq!(run["difference_bytes"], 0, "{run}");
    }
    // This run moved pages.
    assert!(there["source"]["runs"][1]["moved_bytes"].as_u64() > Some(0));
    let file = used_elsewhere(&folder("cuda_check"));
    for options in ["streams:threads", "streams:seeded,seed:3,strict:on"] {
        let there = facts(options, &[&file, "-p", POLICIES, "--check"]);
        for run in there["source"]["runs"].as_array().expect("a list") {
            assert_eq!(run["check"]["wrong"], 0, "{options}: {run}");
            assert_eq!(run["check"]["blocks"], 60, "{options}: {run}");
        }
    }
    let plain = facts("devices:1", &[&file, "-p", "millpond"]);
    assert!(
        plain["source"]["runs"][0].get("check").is_none(),
        "the comparison is only made with --check"
    );
}

/// A network trained on images of many sizes, if its recording is available.
#[test]
fn a_program_of_many_resolutions_runs_on_a_device() {
    let Some(shared) = shared() else { return };
    let file = shared.join("resnet50_multires.csv.zst");
    agrees("devices:1", &file.display().to_string(), POLICIES);
}

/// Writes a recording in which other streams still use blocks for some time after they were freed.
fn used_elsewhere(folder: &Path) -> String {
    let mut csv = String::from("time_us,action,id,bytes,stream,tag\n");
    let mut line = |time: usize, action: &str, id: usize| {
        let bytes = (24 + id % 5) << 20;
        writeln!(csv, "{time},{action},{id},{bytes},{},", id % 2).expect("to a text");
    };
    for step in 0..60 {
        line(step * 10, "alloc", step);
        if step >= 2 {
            line(step * 10 + 1, "free_requested", step - 2);
        }
        if step >= 5 {
            line(step * 10 + 2, "free_completed", step - 5);
        }
    }
    let path = folder.join("elsewhere.csv");
    std::fs::write(&path, csv).expect("written");
    path.display().to_string()
}

#[test]
fn blocks_used_by_other_streams_are_released_as_in_the_simulation() {
    let file = used_elsewhere(&folder("cuda_elsewhere"));
    for options in [
        "streams:in-place",
        "streams:threads",
        "streams:seeded,seed:1,strict:on",
        "streams:seeded,seed:7,strict:on",
    ] {
        let there = agrees(options, &file, POLICIES);
        for run in there["source"]["runs"].as_array().expect("a list") {
            assert!(calls(run, "cuEventRecord") >= 58, "{options}: {run}");
        }
    }
}

#[test]
fn a_device_without_pages_runs_the_policies_that_need_none() {
    let file = small(&folder("cuda_plain"), "small.csv");
    for (options, more, memory) in [
        ("without:vmm", &[][..], "pooled"),
        ("without:vmm,without:pools", &[], "plain"),
        ("devices:1", &["--paged", "off"], "plain"),
    ] {
        let policies = ["-p", "millpond,torch-native,torch-expandable"];
        let there = facts(options, &[&[file.as_str()][..], &policies, more].concat());
        assert_eq!(there["source"]["memory"], memory);
        let names: Vec<&Value> = there["results"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|result| &result["policy"])
            .collect();
        assert_eq!(names, ["millpond", "torch-native"]);
        assert!(
            there["cautions"].to_string().contains("torch-expandable"),
            "{there}"
        );
        for run in there["source"]["runs"].as_array().expect("a list") {
            assert_eq!(run["difference_bytes"], 0, "{run}");
            assert_eq!(calls(run, "cuMemCreate"), 0);
        }
    }
}

#[test]
fn a_limit_is_the_same_for_the_device_and_the_simulation() {
    let file = growing(&folder("cuda_limit"));
    let limited = [
        "replay",
        &file,
        "--json",
        "-p",
        "torch-native,millpond",
        "-d",
        "300MiB",
    ];
    let (code, simulated, _) = run(&limited);
    let simulated: Value = serde_json::from_str(&simulated).expect("JSON");
    let on_device = [&limited[..], &["--source", "cuda:0"]].concat();
    let (there_code, there, stderr) = emulated("devices:1", &on_device);
    assert_eq!((code, there_code), (0, 0), "{stderr}");
    let there: Value = serde_json::from_str(&there).expect("JSON");
    assert_eq!(there["source"]["limit_bytes"], 300u64 << 20);
    assert_eq!(there["source"]["limit_is_what_was_free"], false);
    for index in 0..2 {
        for key in ["peak_reserved_bytes", "stalls", "moved_bytes", "first_failure"] {
            assert_eq!(
                there["results"][index][key], simulated["results"][index][key],
                "{key}"
            );
        }
        assert_eq!(there["source"]["runs"][index]["difference_bytes"], 0);
    }
    // The device is smaller than the peak of the program, so both replays fail with the same explanation.
    let none = ["replay", &file, "--json", "-p", "torch-native", "-d", "50MiB"];
    let (code, simulated, _) = run(&none);
    let (there_code, there, _) = emulated("devices:1", &[&none[..], &["--source", "cuda:0"]].concat());
    assert_eq!((code, there_code), (3, 3));
    let failure = |text: &str| -> Value {
        let report: Value = serde_json::from_str(text).expect("JSON");
        report["results"][0]["first_failure"].clone()
    };
    assert!(failure(&there).is_object());
    assert_eq!(failure(&there), failure(&simulated));
}

#[test]
fn the_free_memory_of_a_small_device_is_the_limit_of_all_policies() {
    let file = growing(&folder("cuda_small"));
    let args = [
        "replay",
        &file,
        "-p",
        "torch-native,millpond",
        "--source",
        "cuda:0",
    ];
    let (code, stdout, stderr) = emulated("memory:400M", &args);
    assert_eq!(code, 0, "{stderr}");
    let words: Vec<&str> = stdout.split_whitespace().collect();
    assert!(
        words
            .join(" ")
            .contains("so this is the limit of all policies, also in the simulation"),
        "{stdout}"
    );
    let there = facts("memory:400M", &[&file, "-p", "torch-native,millpond"]);
    assert_eq!(there["source"]["limit_is_what_was_free"], true);
    assert_eq!(there["source"]["limit_bytes"], 400u64 << 20);
    for run in there["source"]["runs"].as_array().expect("a list") {
        assert_eq!(run["difference_bytes"], 0, "{run}");
    }
    let (code, _, _) = emulated("memory:50M", &args);
    assert_eq!(code, 3);
}

#[test]
fn requests_larger_than_the_device_are_not_driver_failures() {
    let path = folder("cuda_never").join("never.csv");
    let csv = format!(
        "time_us,action,id,bytes,stream,tag\n0,alloc,1,{},0,\n",
        1u64 << 36
    );
    std::fs::write(&path, csv).expect("written");
    let file = path.display().to_string();
    let args = ["replay", &file, "--json", "-d", "1GiB", "--all"];
    let (code, simulated, _) = run(&args);
    let (there_code, there, stderr) = emulated("devices:1", &[&args[..], &["--source", "cuda:0"]].concat());
    assert_eq!((code, there_code, stderr.as_str()), (3, 3, ""));
    let [simulated, there]: [Value; 2] =
        [simulated, there].map(|text| serde_json::from_str(&text).expect("JSON"));
    assert_eq!(there["source"]["failed"], Value::Array(Vec::new()));
    let results = |of: &Value| of["results"].as_array().expect("a list").clone();
    assert_eq!(results(&there).len(), results(&simulated).len());
    for (there, simulated) in results(&there).iter().zip(results(&simulated)) {
        assert_eq!(there["first_failure"], simulated["first_failure"]);
    }
}

#[test]
fn a_memory_fraction_refers_to_the_device() {
    let file = small(&folder("cuda_share"), "small.csv");
    let torch = "per_process_memory_fraction:0.5";
    for more in [
        ["-p", "millpond", "--conf", "memory-fraction:0.5"],
        ["-p", "torch-native", "--torch-conf", torch],
    ] {
        // The program holds 60 MiB. Half of 100 MiB is too little, and half of 200 MiB is enough.
        let args = [&["replay", &file, "--json", "--source", "cuda:0"][..], &more].concat();
        assert_eq!(emulated("memory:100M", &args).0, 3, "{more:?}");
        let there = facts("memory:200M", &[&[file.as_str()][..], &more].concat());
        assert_eq!(there["source"]["limit_bytes"], 200u64 << 20);
        let given = [&["replay", &file, "--json", "-d", "200MiB"][..], &more].concat();
        let run = &there["source"]["runs"][0];
        assert_eq!(
            run["peak_reserved_bytes"],
            json(&given)["results"][0]["peak_reserved_bytes"]
        );
    }
}

#[test]
fn a_driver_failure_is_reported_and_the_other_policies_run() {
    let file = small(&folder("cuda_fails"), "small.csv");
    let args = [
        "replay",
        &file,
        "--json",
        "-p",
        "millpond,torch-native",
        "--source",
        "cuda:0",
    ];
    let (code, stdout, stderr) = emulated("fail:cuMemMap@1=1", &args);
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stderr.lines().count() == 1 && stderr.contains("millpond on cuda:0: the driver's cuMemMap failed"),
        "{stderr}"
    );
    let there: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(there["results"].as_array().expect("a list").len(), 1);
    assert_eq!(there["results"][0]["policy"], "torch-native");
    assert_eq!(there["source"]["runs"][0]["difference_bytes"], 0);
    assert_eq!(there["source"]["failed"].as_array().expect("a list").len(), 1);
}

/// Whichever driver call first meets the lost device, the command reports it and ends.
#[test]
fn a_lost_device_ends_the_command_with_a_sentence() {
    let file = small(&folder("cuda_lost"), "small.csv");
    let args = [
        "replay",
        &file,
        "-p",
        "millpond,torch-native",
        "--source",
        "cuda:0",
    ];
    for nth in 1..60 {
        let (code, stdout, stderr) = emulated(&format!("lost:{nth}"), &args);
        assert!(matches!(code, 0..=2), "{nth}: {code} {stderr}");
        assert!(!stderr.contains("panicked"), "{nth}: {stderr}");
        if code > 0 {
            assert!(stderr.starts_with("millpond: "), "{nth}: {stderr}");
            assert!(stderr.lines().count() <= 2, "{nth}: {stderr}");
        } else {
            assert!(
                stdout.contains("gave exactly what the simulation reserves"),
                "{nth}: {stdout}"
            );
        }
    }
}

#[test]
fn the_report_fits_the_terminal_and_explains_its_times() {
    let (code, stdout, stderr) = emulated(
        "devices:1",
        &["replay", &trace("gnn_sage_sampled"), "--source", "cuda", "-q"],
    );
    assert_eq!((code, stderr.as_str()), (0, ""));
    for line in stdout.lines() {
        assert!(console_width(line) <= 100, "{line}");
    }
    for said in [
        "gave exactly what the simulation reserves",
        "its times do not apply to a card",
        "80.0 GiB free of 80.0 GiB at the start",
        "cuMemSetAccess",
        "unexplained",
    ] {
        assert!(stdout.contains(said), "{said}: {stdout}");
    }
}

/// Returns the width of a line. Every character of these reports takes one column.
fn console_width(line: &str) -> usize {
    line.chars().count()
}

#[test]
fn several_recordings_are_a_list_and_names_are_replaced() {
    let folder = folder("cuda_several");
    let (one, two) = (small(&folder, "secretone.csv"), small(&folder, "secrettwo.csv"));
    let there = facts("devices:1", &[&one, &two, "-p", "millpond", "--redact", "-q"]);
    assert_eq!(there.as_array().expect("a list").len(), 2);
    assert!(!there.to_string().contains("secret"), "{there}");
}

#[test]
fn impossible_options_are_refused_in_one_line() {
    let file = small(&folder("cuda_wrong"), "small.csv");
    for (args, said) in [
        (
            &["--source", "cuda:1"][..],
            "there is no CUDA device 1: devices are numbered from 0, and the driver has 1",
        ),
        (&["--source", "cuda:x"], "cuda:0"),
        (
            &["--source", "cuda:0", "--fit"],
            "--fit is for a simulated device",
        ),
        (
            &["--source", "cuda:0", "--html", "x.html"],
            "--html is for a simulated device",
        ),
        (
            &["--source", "cuda:0", "--verify"],
            "--verify is for a simulated device",
        ),
        (&["--source", "cuda:0", "--touch", "page"], "add --source host"),
        (&["--source", "cuda:0", "-p", "mill"], "did you mean"),
        (
            &["--source", "cuda:0", "--time-window", "5s..9s"],
            "--time-window",
        ),
    ] {
        let (code, stdout, stderr) = emulated("devices:1", &[&["replay", file.as_str()][..], args].concat());
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}: {stderr}");
        assert!(
            stderr.lines().count() == 1 && stderr.contains(said),
            "{args:?}: {stderr}"
        );
    }
    let (code, _, stderr) = run(&["tune", &file, "--source", "cuda:0"]);
    assert!(code == 2 && stderr.contains("simulated device"), "{stderr}");
    // On a machine with a real driver, the command finds that driver.
    let doctor = json(&["doctor", "--json"]).to_string();
    if !doctor.contains("there is no CUDA driver") {
        eprintln!("skipped: there is a CUDA driver");
        return;
    }
    let (code, stdout, stderr) = run(&["replay", &file, "--source", "cuda:0"]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(
        stderr.lines().count() == 1 && stderr.contains("no CUDA driver was found"),
        "{stderr}"
    );
}

#[test]
fn replay_reads_the_costs_that_bench_driver_prints() {
    let folder = folder("cuda_costs");
    let file = small(&folder, "small.csv");
    for (options, there) in [("devices:1", true), ("without:vmm,without:pools", false)] {
        let (code, stdout, stderr) = emulated(
            options,
            &["bench", "driver", "--device", "cuda:0", "--rounds", "3"],
        );
        assert_eq!((code, stderr.as_str()), (0, ""), "{options}");
        assert!(stdout.lines().all(|line| console_width(line) <= 100), "{stdout}");
        assert!(
            stdout.contains("EMULATED") && stdout.contains("those of the emulator on this machine"),
            "{stdout}"
        );
        assert_eq!(
            stdout.contains("cuMemSetAccess of a range of handles"),
            there,
            "{stdout}"
        );
        assert_eq!(stdout.contains("without cost: create, map"), !there, "{stdout}");
        let costs = folder.join("costs.toml");
        std::fs::write(&costs, &stdout).expect("written");
        let costs = costs.display().to_string();
        let modelled = |more: &[&str]| {
            let report = json(&[&["replay", &file, "--json", "-p", "torch-native"][..], more].concat());
            report["results"][0]["modelled_driver_ms"]
                .as_f64()
                .expect("a time")
        };
        // Calls of an emulator take microseconds. Those of a card, as assumed, take hundreds of microseconds.
        let (measured, assumed) = (modelled(&["--costs", &costs]), modelled(&[]));
        assert!(measured > 0.0 && measured != assumed, "{measured} {assumed}");
        // With a single size, the fitted line for each call lies between the fastest and the slowest call.
        let value = |section: &str, key: &str| -> f64 {
            let from = stdout.split(&format!("[{section}]")).nth(1).expect("a section");
            let line = from.lines().find(|line| line.starts_with(key)).expect("a key");
            line.split(" = ")
                .nth(1)
                .expect("a value")
                .parse()
                .expect("a number")
        };
        for section in [
            "event_record",
            "event_wait",
            "stall",
            "event_query",
            "stream_synchronize",
        ] {
            let [call, least, most] = ["per_call", "fastest", "slowest"].map(|key| value(section, key));
            assert!(
                least > 0.0 && least <= call && call <= most,
                "{section}: {stdout}"
            );
        }
    }
}

#[test]
fn bench_alloc_allocates_the_buffers_of_a_loop_once() {
    for options in [
        "devices:1",
        "without:vmm",
        "without:vmm,without:pools",
        "streams:threads",
    ] {
        let (code, stdout, stderr) =
            emulated(options, &["bench", "alloc", "--device", "cuda", "--rounds", "2"]);
        assert_eq!((code, stderr.as_str()), (0, ""), "{options}");
        assert!(stdout.lines().all(|line| console_width(line) <= 100), "{stdout}");
        let row = |name: &str| -> Vec<&str> {
            let row = stdout
                .lines()
                .find(|line| line.split_whitespace().next() == Some(name));
            row.unwrap_or_else(|| panic!("{name}: {stdout}"))
                .split_whitespace()
                .collect()
        };
        assert_eq!(
            (row("pooled")[1], row("unpooled")[1]),
            ("1", "100"),
            "{options}: {stdout}"
        );
        for said in [
            "these times are those of the emulator on this machine, not of a card",
            "99 of 100 turns did not call the driver",
            "only the counts are valid for a card",
            "50-200ns",
            "1-10ms",
            "0.5-5ms",
        ] {
            let words: Vec<&str> = stdout.split_whitespace().collect();
            assert!(words.join(" ").contains(said), "{options}: {said}: {stdout}");
        }
        // Without pools, there is nothing to compare with.
        let hot = stdout
            .lines()
            .find(|line| line.starts_with("1.00 MiB"))
            .expect("a row");
        assert_eq!(
            hot.ends_with('-'),
            options.ends_with("pools"),
            "{options}: {stdout}"
        );
    }
}

/// Both layouts must give the same numbers, or the benchmark fails. The expected ratio follows from the sectors that they
/// access.
#[test]
fn bench_kernels_compares_both_layouts() {
    for options in ["devices:1", "streams:seeded,strict:on", "without:vmm"] {
        let (code, stdout, stderr) = emulated(options, &["bench", "kernels", "--rounds", "2"]);
        assert_eq!((code, stderr.as_str()), (0, ""), "{options}");
        assert!(stdout.lines().all(|line| console_width(line) <= 100), "{stdout}");
        assert!(
            stdout.contains("these times are those of the emulator on this machine, not of a card"),
            "{stdout}"
        );
        for (bytes, by_sectors) in [("24", "1.33"), ("32", "1.78"), ("72", "2.44")] {
            let row = stdout
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>())
                .find(|row| row.first() == Some(&bytes));
            let row = row.unwrap_or_else(|| panic!("{bytes}: {stdout}"));
            assert_eq!((row.len(), row[4]), (5, by_sectors), "{stdout}");
            assert!(
                row[1..4]
                    .iter()
                    .all(|number| number.parse::<f64>().is_ok_and(|of| of > 0.0))
            );
        }
    }
}

#[test]
fn bench_reports_a_device_error_in_one_line() {
    for what in ["driver", "alloc", "kernels"] {
        let (code, stdout, stderr) = emulated("devices:1", &["bench", what, "--device", "cuda:3"]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert!(
            stderr.lines().count() == 1 && stderr.contains("there is no CUDA device 3"),
            "{stderr}"
        );
        let fails = if what == "kernels" {
            "fail:cuLaunchKernel"
        } else {
            "fail:cuMemAlloc"
        };
        let (code, stdout, stderr) = emulated(fails, &["bench", what]);
        assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
