//! Tests `millpond report` as a user runs it.

#[path = "report/diff.rs"]
mod diff;
#[path = "report/pools.rs"]
mod pools;
#[path = "report/sites.rs"]
mod sites;
mod support;

use millpond_trace::recording::{Kind, Row, Writer};
use std::path::Path;
use support::{command, folder, json, run, shared, small, state_only, trace};

/// Returns a recording of blocks that are not freed, each with its own tag.
fn recording(path: &Path, blocks: &[(&str, u64)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &[("program".to_owned(), "made".to_owned())]).expect("memory");
    for (number, (tag, _)) in (1..).zip(blocks) {
        let row = Row {
            tag: number,
            ..Row::new(Kind::DefineTag, 0)
        };
        writer.say(&row, Some(tag), None).expect("memory");
    }
    for (number, (_, bytes)) in (1..).zip(blocks) {
        let row = Row {
            id: u64::from(number),
            bytes: *bytes,
            requested: *bytes,
            tag: number,
            ..Row::new(Kind::Alloc, 1_000_000 * u64::from(number))
        };
        writer.push(&row).expect("memory");
    }
    let bytes = writer.finish(10_000_000).expect("memory");
    std::fs::write(path, &bytes).expect("written");
    bytes
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_report_names_the_owners_of_the_peak() {
    let (code, stdout, stderr) = run(&["report", &trace("llama8b_fsdp_streams"), "--top", "3"]);
    assert_eq!(code, 0, "{stderr}");
    for word in [
        "peak          36.7 GiB in 471 blocks",
        "5, found by 4,947 allocations that repeat",
        "Held at the peak, by tag",
        "others)",
        "still held at the end: 13.0 GiB in 288 blocks",
    ] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
}

#[test]
fn the_json_adds_up_and_agrees_with_info() {
    let file = trace("llama8b_fsdp_streams");
    let value = json(&["report", &file, "--json", "--top", "4"]);
    let info = json(&["info", &file, "--json"]);
    let peak = &value["summary"]["peak"];
    assert_eq!(
        peak["bytes"],
        info["devices"][0]["history"]["peak_requested_bytes"]
    );
    let by = &value["peak_by"];
    let rows = by["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4);
    let bytes = |value: &serde_json::Value| value["bytes"].as_u64().expect("bytes");
    let sum: u64 = rows.iter().map(bytes).sum();
    assert_eq!(sum + bytes(&by["rest"]), bytes(peak));
    assert!(by["rest_groups"].as_u64() > Some(0));
}

#[test]
fn a_report_covers_the_selected_moment_or_window() {
    let path = folder("report_moments").join("run.mpr");
    recording(&path, &[("a", 1 << 20), ("b", 2 << 20), ("c", 4 << 20)]);
    let file = shown(&path);
    for (at, bytes) in [
        ("peak", 7u64 << 20),
        ("end", 7 << 20),
        ("2ms", 3 << 20),
        ("500us", 0),
    ] {
        assert_eq!(
            json(&["report", &file, "--json", "--at", at])["at"]["bytes"],
            bytes,
            "{at}"
        );
    }
    let part = json(&["report", &file, "--json", "--time-window", "1500us..2.5ms"]);
    assert_eq!(part["summary"]["begin"]["bytes"], 1 << 20);
    assert_eq!(part["kept_by"]["rows"][0]["name"], "b");
    for wrong in [
        &["--at", "step:1"][..],
        &["--at", "soon"],
        &["--from", "2s"],
        &["--time-window", "2s..1s"],
        &["--device", "24GiB"],
        &["--by", "colour"],
        &["--plot", "run.gif"],
    ] {
        let mut args = vec!["report", &file];
        args.extend(wrong);
        let (code, stdout, stderr) = run(&args);
        assert_eq!((code, stdout.as_str()), (2, ""), "{wrong:?}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let path = folder("report_width").join("run.mpr");
    let long = "a very long name of something ".repeat(20);
    recording(&path, &[(&long, 1 << 20), ("b", u64::MAX), ("c", 1 << 63)]);
    for width in ["60", "80", "160"] {
        for file in [shown(&path), trace("llama8b_fsdp_streams")] {
            let output = command(&["report", &file])
                .env("COLUMNS", width)
                .output()
                .expect("it starts");
            let text = String::from_utf8(output.stdout).expect("UTF-8");
            let most = text.lines().map(|line| line.chars().count()).max();
            assert!(most <= width.parse().ok(), "{width}: {text}");
        }
    }
}

#[test]
fn names_from_files_cannot_control_the_terminal() {
    let path = folder("report_hostile").join("run.mpr");
    recording(
        &path,
        &[
            ("\u{1b}]0;evil\u{7}\u{1b}[2J", 1 << 20),
            ("two\nlines\r\u{202e}", 2 << 20),
        ],
    );
    for args in [
        &["report"][..],
        &["report", "--by", "site"],
        &["report", "--by", "stack"],
        &["diff", "--at", "1ms,end"],
    ] {
        let mut args = args.to_vec();
        let file = shown(&path);
        args.insert(1, &file);
        for colours in [false, true] {
            let mut command = command(&args);
            if colours {
                command.env("CLICOLOR_FORCE", "1");
            }
            let text = String::from_utf8(command.output().expect("it starts").stdout).expect("UTF-8");
            assert!(
                !text.contains("\u{1b}]") && !text.contains("\u{1b}[2J"),
                "{text:?}"
            );
            assert!(!text.contains(['\u{7}', '\r', '\u{202e}']), "{text:?}");
            assert_eq!(text.contains('\u{1b}'), colours, "{args:?} {text:?}");
        }
    }
}

#[test]
fn a_truncated_recording_is_reported() {
    let path = folder("report_cut").join("run.mpr");
    let bytes = recording(&path, &[("a", 1 << 20)]);
    std::fs::write(&path, &bytes[..bytes.len() - 20]).expect("written");
    let (code, stdout, _) = run(&["report", &shown(&path)]);
    assert_eq!(code, 0);
    assert!(stdout.contains("the recording is truncated after"), "{stdout}");
    std::fs::write(&path, b"\xff\xff\xff\xffno recording").expect("written");
    let (code, _, stderr) = run(&["report", &shown(&path)]);
    assert_eq!((code, stderr.lines().count()), (2, 1), "{stderr}");
    let (code, _, stderr) = run(&["report", "/dev/null"]);
    assert!(code == 2 && stderr.contains("is not a regular file"), "{stderr}");
}

#[test]
fn pictures_are_written_and_other_files_are_not_replaced() {
    let folder = folder("report_plot");
    let file = small(&folder, "run.csv");
    for (name, begins) in [
        ("a.svg", &b"<svg xmlns="[..]),
        ("a.png", &b"\x89PNG\r\n\x1a\n"[..]),
    ] {
        let path = folder.join(name);
        // The second run replaces the file of the first.
        for _ in 0..2 {
            let (code, _, stderr) = run(&["report", &file, "--plot", &shown(&path)]);
            assert_eq!(code, 0, "{stderr}");
            assert!(std::fs::read(&path).expect("written").starts_with(begins));
        }
    }
    let other = folder.join("mine.svg");
    std::fs::write(&other, "not a picture of ours").expect("written");
    assert_eq!(run(&["report", &file, "--plot", &shown(&other)]).0, 2);
}

#[test]
fn the_peak_of_several_devices_is_labelled_as_a_sum() {
    let path = folder("report_devices").join("two.mpr");
    for (devices, label) in [([0, 0], false), ([0, 1], true)] {
        let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
        for (pool, device) in (1..).zip(devices) {
            let define = Row {
                pool,
                ..Row::new(Kind::DefinePool, 0)
            };
            writer
                .say(&define, Some("cuda\n"), Some(&[device]))
                .expect("memory");
            let alloc = Row {
                id: u64::from(pool),
                bytes: 1 << 20,
                requested: 1 << 20,
                pool,
                ..Row::new(Kind::Alloc, 1)
            };
            writer.push(&alloc).expect("memory");
        }
        std::fs::write(&path, writer.finish(9).expect("memory")).expect("written");
        let (code, report, stderr) = run(&["report", &shown(&path)]);
        assert_eq!((code, &*stderr), (0, ""));
        assert!(report.contains("2.00 MiB in 2 blocks"), "{report}");
        assert_eq!(report.contains("in, 2 devices together"), label, "{report}");
    }
}

/// A snapshot without a history shows the blocks at the time it was written. No peak, traffic or findings are reported.
#[test]
fn a_state_without_a_history_is_shown_and_no_more_is_claimed() {
    let folder = folder("report_state");
    let state = state_only(&folder);
    let (code, report, stderr) = run(&["report", &state]);
    assert_eq!(code, 0, "{stderr}");
    for part in [
        "what the allocator held when the snapshot was written",
        "device 0 was recorded without a history",
        "_record_memory_history()",
        "512 B in 1 block, 500 B of it requested",
        "2.00 MiB then",
        "(older than the recording)",
        "one of 2.00 MiB between 1 block in 1 segment",
        "give back nothing: every segment outside private pools holds a block",
        "a request of 1.00 MiB without a call of the driver; --device says",
        "0x1000 2.00 MiB <0.1 % 1 2.00 MiB (older than the recording)",
    ] {
        let flat = report.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(part), "{part}: {report}");
    }
    for claim in [
        "Nothing found",
        "peak  ",
        "traffic",
        "lifetimes",
        "held     0 us",
        "over 0",
    ] {
        assert!(!report.contains(claim), "{claim}: {report}");
    }
    let told = json(&["report", &state, "--json"]);
    assert_eq!(
        (&told["at"]["bytes"], &told["summary"]),
        (&512.into(), &serde_json::Value::Null)
    );
    let sums = &told["states"][0];
    assert_eq!(sums["total"]["free_bytes"], (2 << 20) - 512);
    assert_eq!(sums["on_device"], serde_json::Value::Null);
    let on = json(&["report", &state, "--json", "--device", "24MiB"]);
    let on = &on["states"][0]["on_device"];
    assert_eq!(on["largest_request_bytes"], 22 << 20, "{on}");
    let info = json(&["info", &state, "--json"]);
    assert_eq!(info["devices"][0]["segments"]["total"]["holes"], 1);
    let page = shown(&folder.join("state.html"));
    assert_eq!(run(&["view", &state, "--html", &page]).0, 0);
    let page = std::fs::read_to_string(page).expect("a page");
    for part in [
        r#""state_only":true"#,
        r#""largest_cached_request_bytes":1048576"#,
    ] {
        assert!(page.contains(part), "{part}");
    }
    let plot = shown(&folder.join("state.svg"));
    let (code, _, stderr) = run(&["report", &state, "--plot", &plot]);
    assert!(
        code == 2 && stderr.contains("--plot has nothing to draw"),
        "{stderr}"
    );

    let (code, diff, stderr) = run(&["diff", &state, &state]);
    assert_eq!(code, 0, "{stderr}");
    assert!(diff.contains("at the moment of its snapshot"), "{diff}");
    assert!(diff.contains("largest hole"), "{diff}");
    let figures: Vec<&str> = diff
        .lines()
        .filter(|line| line.starts_with("  ") && line.contains(" B "))
        .collect();
    assert!(
        figures.iter().any(|line| line.trim_start().starts_with("end  ")),
        "{diff}"
    );
    assert!(
        !diff.lines().any(|line| line.trim_start().starts_with("peak ")),
        "{diff}"
    );
    for gate in ["peak>+2%", "leaks>0"] {
        let (code, _, stderr) = run(&["diff", &state, &state, "--fail-if", gate]);
        assert!(
            code == 2 && stderr.contains("cannot be judged"),
            "{gate}: {stderr}"
        );
    }
    assert_eq!(run(&["diff", &state, &state, "--fail-if", "end>+2%"]).0, 0);
}

#[test]
fn the_figures_of_a_large_state_agree_between_info_and_report() {
    let Some(shared) = shared() else { return };
    let state = shown(&shared.join("snapshots/rl_private_pools_state_only.pickle"));
    let info = json(&["info", &state, "--json"]);
    let pools = info["devices"][0]["state"].as_array().expect("pools");
    let sum = |key: &str| pools.iter().filter_map(|pool| pool[key].as_u64()).sum::<u64>();
    let told = json(&["report", &state, "--json"]);
    assert_eq!(told["at"]["bytes"], sum("allocated_bytes"));
    assert_eq!(told["at"]["reserved_bytes"], sum("reserved_bytes"));
    let held = &told["states"][0];
    for key in ["segments", "blocks", "reserved_bytes"] {
        let of_pools: u64 = held["pools"]
            .as_array()
            .expect("pools")
            .iter()
            .filter_map(|pool| pool[key].as_u64())
            .sum();
        assert_eq!(
            (held["total"][key].as_u64(), of_pools),
            (Some(sum(key)), sum(key)),
            "{key}"
        );
    }
    let bytes = |key: &str| held["total"][key].as_u64().expect("bytes");
    let used = bytes("block_bytes") + bytes("waiting_bytes");
    assert_eq!(
        (used, used + bytes("free_bytes")),
        (sum("active_bytes"), sum("reserved_bytes"))
    );
}

/// Equal blocks take two bytes each in the file, and hundreds in the tables of a report.
#[test]
fn a_recording_whose_blocks_all_live_at_once_is_reported() {
    let path = folder("all_live").join("made.mpr");
    let mut writer = Writer::new(Vec::new(), &[]).expect("memory");
    for id in 1..=400_000 {
        let row = Row {
            id,
            address: 64 * id,
            requested: 64,
            bytes: 64,
            ..Row::new(Kind::Alloc, 90 * id)
        };
        writer.push(&row).expect("memory");
    }
    std::fs::write(&path, writer.finish(40_000_000).expect("memory")).expect("written");
    let bytes = std::fs::metadata(&path).expect("a file").len();
    assert!(bytes < 1_200_000, "{bytes}");
    let peak = &json(&["report", &shown(&path), "--json"])["summary"]["peak"];
    assert_eq!(peak["blocks"], 400_000);
    let out = folder("all_live_out").join("run.csv.zst").display().to_string();
    let (code, _, said) = run(&["convert", &shown(&path), &out]);
    assert_eq!(code, 0, "{said}");
}

/// A program that leaves a block behind in each step, as one with a leak does.
#[test]
fn the_steps_of_a_program_that_grows_are_found() {
    let path = folder("growing_steps").join("run.csv");
    let mut lines = "time_us,action,id,bytes,stream,tag\n".to_owned();
    let mut id = 0;
    for step in 0..12 {
        let mut held = Vec::new();
        for layer in 0..40 {
            id += 1;
            held.push(id);
            lines += &format!(
                "{},alloc,{id},{},0,fwd;act\n",
                100 * step + layer,
                1_000_000 + 1000 * layer
            );
        }
        id += 1;
        lines += &format!("{},alloc,{id},4000000,0,metrics;update\n", 100 * step + 50);
        for (back, id) in held.iter().rev().enumerate() {
            lines += &format!(
                "{},free,{id},{},0,\n",
                100 * step + 51 + back,
                1_000_000 + 1000 * (39 - back)
            );
        }
    }
    std::fs::write(&path, lines).expect("written");
    let report = json(&["report", &shown(&path), "--json"]);
    let steps = report["steps"]["steps"].as_array().expect("steps");
    assert!(steps.len() >= 10, "{}", report["steps"]);
    let findings = report["findings"].as_array().expect("findings");
    let growth = findings
        .iter()
        .find(|finding| finding["name"] == "growth from step to step");
    assert_eq!(growth.expect("growth")["who"][0]["name"], "metrics; update");
}
