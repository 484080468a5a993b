//! Tests the output of the command for a recording in which memory ran out.

mod support;

use millpond_trace::recording::{Kind, Row, Writer};
use serde_json::Value;
use std::path::{Path, PathBuf};
use support::{command, folder, json, json_with, run, shared};

const MIB: u64 = 1 << 20;

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Writes a PyTorch snapshot of a program that fragments its memory and then asks for 150 MiB, which the allocator
/// refuses `times` times.
fn snapshot(folder: &Path, times: u64) -> PathBuf {
    let mut csv = String::from("time_us,action,id,bytes,stream,tag,address\n");
    let mut time = 0;
    let mut row = |action: &str, id: u64, bytes: u64, tag: &str, address: u64| {
        csv.push_str(&format!("{time},{action},{id},{bytes},0,{tag},{address}\n"));
        time += 250_000;
    };
    for at in 0..5 {
        let start = (1 + at) << 30;
        row("segment_alloc", 0, 100 * MIB, "", start);
        row("alloc", 20 + at, 100 * MIB, "data;;load;data.py:read:3", start);
        row("free", 20 + at, 100 * MIB, "", start);
        row("alloc", 2 * at, 40 * MIB, "data;;load;data.py:read:3", start);
        row(
            "alloc",
            2 * at + 1,
            40 * MIB,
            "net;layers.1;mm;net.py:forward:7<train.py:step:9",
            start + 40 * MIB,
        );
    }
    for at in 0..5 {
        row("free", 2 * at, 40 * MIB, "", (1 + at) << 30);
    }
    for _ in 0..times {
        row(
            "oom",
            0,
            150 * MIB,
            "net;head;loss;loss.py:entropy:5<train.py:step:10",
            10 * MIB,
        );
    }
    let path = folder.join(format!("run-{times}.csv"));
    std::fs::write(&path, csv).expect("written");
    let pickle = folder.join(format!("run-{times}.pickle"));
    let (code, _, stderr) = run(&["convert", &shown(&path), &shown(&pickle)]);
    assert_eq!(code, 0, "{stderr}");
    pickle
}

/// Returns the first lines of a text, up to a line that begins with `end`.
fn until<'a>(text: &'a str, end: &str) -> &'a str {
    text.find(end).map_or(text, |at| &text[..at])
}

#[test]
fn replay_and_report_begin_with_the_reason_why_memory_ran_out() {
    let file = shown(&snapshot(&folder("oom_first"), 1));
    for args in [&["replay", &file][..], &["report", &file]] {
        let (code, stdout, stderr) = run(args);
        assert_eq!(code, 0, "{stderr}");
        let head = until(
            &stdout,
            if args[0] == "replay" {
                "  policy"
            } else {
                "\n  peak "
            },
        );
        let words = head.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "The program ran out of memory at event 30, 7.50 s in: 150 MiB were requested for net; head; loss.",
            "would be enough together, and no piece is large enough alone.",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would have served it.",
            "request 150 MiB on the default stream in net; head; loss at loss.py:entropy:5 at train.py:step:10",
            "device 10.0 MiB free of the 510 MiB that the program could have",
            "500 MiB reserved; 300 MiB free in 10 holes, largest 40.0 MiB",
            "held 200 MiB in 5 blocks",
            "net; layers.*; mm",
            "another allocator 90.0 MiB unused millpond",
        ] {
            assert!(words.contains(part), "{args:?}: {part}: {head}");
        }
    }
}

#[test]
fn info_lists_the_refused_requests_and_counts_them() {
    let dir = folder("oom_info");
    let file = shown(&snapshot(&dir, 1));
    let (_, stdout, _) = run(&["info", &file]);
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = "out of memory 150 MiB at event 30, 7.50 s in in net; head; loss at loss.py:entropy:5";
    assert!(words.contains(told), "{stdout}");
    let many = shown(&snapshot(&dir, 300));
    let facts = json(&["info", &many, "--json"]);
    let history = &facts["devices"][0]["history"];
    let events: Vec<u64> = history["out_of_memory"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|of| of["event"].as_u64())
        .collect();
    assert_eq!(events, [30, 31, 32, 33, 329]);
    let report = json(&["report", &many, "--json"]);
    let told = &report["out_of_memory"][0];
    assert_eq!(
        (
            &told["refused"],
            &told["first"]["event"],
            &told["request"]["event"]
        ),
        (&Value::from(300), &Value::from(30), &Value::from(329))
    );
}

#[test]
fn the_json_has_every_figure() {
    let file = shown(&snapshot(&folder("oom_json"), 1));
    let report = json(&["replay", &file, "--json", "-p", "torch-native"]);
    let told = &report["out_of_memory"];
    let figures =
        ["device_bytes", "device_free_bytes", "held_bytes", "held_blocks"].map(|key| told[key].as_u64());
    assert_eq!(figures, [510 * MIB, 10 * MIB, 200 * MIB, 5].map(Some));
    assert_eq!(
        (&told["origin"], &told["cause"]),
        (&Value::from("recorded"), &Value::from("pieces"))
    );
    assert_eq!(told["after"]["holes"], 10);
    assert_eq!(told["reproduced"], true);
    assert_eq!(told["remedies"][0]["kind"], "setting");
    assert_eq!(told["remedies"][0]["spare_bytes"], 90 * MIB);
    assert_eq!(told["holders"][0]["bytes"], 200 * MIB);
    // With a named device, the report also shows what others held. The recorded event stays the same. The replay makes
    // the refused request again, and runs out of memory too.
    let named = json_with(
        3,
        &["replay", &file, "--json", "-p", "torch-native", "-d", "600MiB"],
    );
    assert_eq!(named["results"][0]["first_failure"]["event"], 30);
    assert_eq!(named["out_of_memory"]["others_bytes"], 90 * MIB);
    assert_eq!(named["out_of_memory"]["remedies"], told["remedies"]);
}

#[test]
fn the_page_opens_where_memory_ran_out() {
    let dir = folder("oom_page");
    let file = shown(&snapshot(&dir, 1));
    let page = shown(&dir.join("page.html"));
    let meta = |args: &[&str]| -> Value {
        let (code, _, stderr) = run(args);
        assert!(code == 0 || code == 3, "{stderr}");
        let html = std::fs::read_to_string(&page).expect("a page");
        let meta = html
            .split("id=\"meta\">")
            .nth(1)
            .and_then(|rest| rest.split("</script>").next());
        assert!(
            html.contains("<li>The program ran out of memory at event")
                || html.contains("runs out of memory at event")
        );
        serde_json::from_str(meta.expect("data")).expect("JSON")
    };
    assert_eq!(
        meta(&["replay", &file, "--html", &page, "-p", "torch-native,millpond"])["opensAt"],
        30
    );
    let gnn = support::trace("gnn_sage_sampled");
    let failed = meta(&[
        "replay",
        &gnn,
        "--html",
        &page,
        "-p",
        "torch-native",
        "-d",
        "1260MiB",
    ]);
    assert_eq!(failed["opensAt"], failed["runs"][0]["stopped"]);
}

#[test]
fn a_device_that_is_too_small_is_explained_in_full() {
    let gnn = support::trace("gnn_sage_sampled");
    let (code, stdout, stderr) = run(&[
        "replay",
        &gnn,
        "-d",
        "1260MiB",
        "-p",
        "torch-native,pow2,millpond",
    ]);
    assert_eq!(code, 0, "{stderr}");
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "torch-native runs out of memory at event",
        "at models.py:forward:258",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would have served it",
        "✗ pow2 runs out of memory at event",
    ] {
        assert!(words.contains(part), "{part}: {stdout}");
    }
}

#[test]
fn a_snapshot_of_the_library_shows_its_error_and_its_holes() {
    let path = folder("oom_own").join("run.oom-1.mpr");
    let mut writer = Writer::new(Vec::new(), &[("program".to_owned(), "made".to_owned())]).expect("memory");
    let defines = |kind| Row {
        pool: 1,
        tag: 1,
        ..Row::new(kind, 0)
    };
    writer
        .say(
            &defines(Kind::DefinePool),
            Some("host\nwork\nmillpond"),
            Some(&[u64::MAX]),
        )
        .expect("memory");
    writer
        .say(
            &Row {
                pool: 0,
                ..defines(Kind::DefineTag)
            },
            Some("weights"),
            None,
        )
        .expect("memory");
    let row = |kind, address, bytes| Row {
        pool: 1,
        address,
        bytes,
        requested: bytes,
        ..Row::new(kind, 1_000)
    };
    writer
        .push(&row(Kind::Reserve, 1 << 30, 64 * MIB))
        .expect("memory");
    writer.push(&row(Kind::Keyframe, 0, 2)).expect("memory");
    for (id, at) in [(1, 0), (2, 32 * MIB)] {
        writer
            .push(&Row {
                id,
                tag: 1,
                ..row(Kind::Live, (1 << 30) + at, 16 * MIB)
            })
            .expect("memory");
    }
    writer
        .push(&Row {
            bytes: 0,
            ..row(Kind::Refused, 0, 24 * MIB)
        })
        .expect("memory");
    let mark = Row {
        requested: 0,
        ..row(Kind::Mark, 0, 0)
    };
    writer
        .say(
            &mark,
            Some("out of memory: 24.0 MiB requested, and the pool's limit is 64.0 MiB"),
            None,
        )
        .expect("memory");
    std::fs::write(&path, writer.finish(2_000).expect("memory")).expect("written");
    let told = json(&["report", &shown(&path), "--json"])["out_of_memory"][0].clone();
    assert_eq!(
        (&told["cause"], &told["held_bytes"]),
        (&Value::from("pieces"), &Value::from(32 * MIB)),
        "{told}"
    );
    assert_eq!(
        (&told["after"]["holes"], &told["after"]["largest_hole_bytes"]),
        (&Value::from(2), &Value::from(16 * MIB))
    );
    let (_, stdout, _) = run(&["report", &shown(&path)]);
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("error out of memory: 24.0 MiB requested, and the pool's limit is 64.0 MiB"),
        "{stdout}"
    );
    assert!(words.contains("weights"), "{stdout}");
}

/// Appends an event to a real snapshot, as PyTorch writes it, where the program holds the most.
#[test]
fn real_snapshots_are_explained() {
    let Some(shared) = shared() else { return };
    let dir = folder("oom_real");
    for name in ["gpt_small_step", "gpt_medium_ctx512_training"] {
        let real = shared.join(format!("snapshots/{name}.pickle"));
        if !real.is_file() {
            eprintln!("skipped: no {}", real.display());
            continue;
        }
        let csv = dir.join(format!("{name}.csv"));
        assert_eq!(run(&["convert", &shown(&real), &shown(&csv)]).0, 0);
        let facts = json(&["info", &shown(&csv), "--json"]);
        let peak = facts["devices"][0]["history"]["peak_event"]
            .as_u64()
            .expect("a peak") as usize;
        let text = std::fs::read_to_string(&csv).expect("written");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let head = lines
            .iter()
            .position(|line| line.starts_with("time_us"))
            .expect("columns")
            + 1;
        let at = head + peak + 1;
        let fields: Vec<String> = lines[at - 1].split(',').map(str::to_owned).collect();
        let free = 64 * MIB;
        lines.insert(
            at,
            format!(
                "{},oom,0,{},{},{free:#x},0:0,0,{}",
                fields[0],
                4096 * MIB,
                fields[4],
                fields[8..].join(",")
            ),
        );
        std::fs::write(&csv, lines.join("\n") + "\n").expect("written");
        let pickle = dir.join(format!("{name}.pickle"));
        assert_eq!(run(&["convert", &shown(&csv), &shown(&pickle)]).0, 0);
        let told =
            json(&["replay", &shown(&pickle), "--json", "-p", "torch-native"])["out_of_memory"].clone();
        assert_eq!(
            (&told["request"]["bytes"], &told["device_free_bytes"]),
            (&Value::from(4096 * MIB), &Value::from(free)),
            "{name}"
        );
        let state = &told["after"];
        let of = |key: &str| state[key].as_u64().expect("a figure");
        let held = told["held_bytes"].as_u64().expect("a figure");
        assert_eq!(
            of("reserved_bytes"),
            of("free_bytes") + of("waiting_bytes") + of("rounding_bytes") + held,
            "{name}: {told}"
        );
        assert_eq!(
            told["device_bytes"].as_u64(),
            Some(of("reserved_bytes") + free),
            "{name}"
        );
        assert!(!told["request"]["tag"].as_str().expect("a tag").is_empty());
    }
}

#[test]
fn an_event_fits_on_narrow_terminals() {
    let file = shown(&snapshot(&folder("oom_width"), 1));
    for columns in ["60", "80", "120"] {
        let mut report = command(&["report", &file]);
        report.env("COLUMNS", columns);
        let text = String::from_utf8(report.output().expect("it starts").stdout).expect("UTF-8");
        let most = columns.parse::<usize>().expect("a number");
        let head = until(&text, "\n  peak ");
        let long: Vec<&str> = head
            .lines()
            .filter(|line| line.chars().count() > most && !line.contains("PYTORCH_"))
            .collect();
        assert!(long.is_empty(), "{columns}: {long:?}");
    }
}
