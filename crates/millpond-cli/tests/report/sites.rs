//! Tests the call sites and stacks in reports.

use super::shown;
use crate::support::{folder, json, run};
use millpond_trace::recording::{Kind, Row, Writer};

/// Writes a recording of ten blocks from one function. Every `each`-th block has a stack, and blocks have tags only if requested.
fn with_stacks(name: &str, has_tag: bool, each: u64) -> String {
    let writer = with_blocks(has_tag, each);
    let path = folder(name).join("made.mpr");
    std::fs::write(&path, writer.finish(20).expect("memory")).expect("written");
    shown(&path)
}

fn with_blocks(has_tag: bool, each: u64) -> Writer<Vec<u8>> {
    let mut writer = Writer::new(Vec::new(), &[("program".to_owned(), "made".to_owned())]).expect("memory");
    let define = |kind, tag, stack| Row {
        tag,
        stack,
        ..Row::new(kind, 0)
    };
    for (frame, address) in [
        ("app::grow\nsrc/app.rs\n7", 16),
        ("malloc\n\n0", 12),
        (
            "millpond_pool::pool::heap::Heap::allocate\nsrc/pool/heap.rs\n9",
            8,
        ),
    ] {
        let row = define(Kind::DefineFrame, 0, 0);
        writer.say(&row, Some(frame), Some(&[address])).expect("memory");
    }
    let stack = define(Kind::DefineStack, 0, 1);
    writer.say(&stack, None, Some(&[8, 12, 16])).expect("memory");
    if has_tag {
        writer
            .say(&define(Kind::DefineTag, 1, 0), Some("weights"), None)
            .expect("memory");
    }
    for id in 1..=10 {
        let row = Row {
            id,
            requested: 1 << 20,
            bytes: 1 << 20,
            stack: u32::from(id.is_multiple_of(each)),
            tag: u32::from(has_tag),
            ..Row::new(Kind::Alloc, id)
        };
        writer.push(&row).expect("memory");
    }
    writer
}

/// A trace contains no stacks, so the explanation takes them from the rows.
#[test]
fn a_refused_request_is_explained_with_call_sites() {
    let mut writer = with_blocks(false, 2);
    let refused = Row {
        requested: 3 << 20,
        stack: 1,
        ..Row::new(Kind::Refused, 15)
    };
    writer.push(&refused).expect("memory");
    let error = "out of memory: 3.00 MiB requested\n  1.00 MiB free";
    writer
        .say(&Row::new(Kind::Mark, 15), Some(error), None)
        .expect("memory");
    let path = folder("refused_site").join("made.mpr");
    std::fs::write(&path, writer.finish(20).expect("memory")).expect("written");
    let (code, report, stderr) = run(&["report", &shown(&path)]);
    assert_eq!(code, 0, "{stderr}");
    let lines: Vec<String> = report
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "request 3.00 MiB on the default stream",
        "at app::grow (app.rs:7)",
        "error out of memory: 3.00 MiB requested",
        "1.00 MiB free",
        "held 10.0 MiB in 10 blocks",
        "by site 5.00 MiB 5 blocks for 0 us (no stack recorded)",
        "5.00 MiB 5 blocks for 0 us app::grow (app.rs:7)",
    ];
    let start = lines
        .iter()
        .position(|line| line == expected[0])
        .unwrap_or_else(|| panic!("{report}"));
    assert_eq!(lines[start..start + expected.len()], expected, "{report}");
}

#[test]
fn blocks_are_grouped_by_site_if_there_are_stacks_and_no_tags() {
    let (plain, tagged) = (with_stacks("by_site", false, 1), with_stacks("by_tag", true, 1));
    let printed = |arguments: &[&str]| {
        let (code, text, stderr) = run(arguments);
        assert_eq!(code, 0, "{stderr}");
        text
    };
    let report = printed(&["report", &plain]);
    assert!(report.contains("Held at the peak, by site"), "{report}");
    assert!(report.contains("app::grow (app.rs:7)"), "{report}");
    assert!(printed(&["report", &tagged]).contains("Held at the peak, by tag"));
    assert!(printed(&["report", &plain, "--by", "tag"]).contains("Held at the peak, by tag"));
    // The frames of the library itself are left out of whole stacks.
    let stacks = &json(&["report", &plain, "--by", "stack", "--json"])["peak_by"]["rows"];
    assert_eq!(stacks[0]["name"], "malloc\napp::grow (app.rs:7)");
    assert_eq!(json(&["report", &plain, "--json"])["by"], "site");
    assert_eq!(json(&["report", &tagged, "--json"])["by"], "tag");
    let compared = |second: &str| json(&["diff", &plain, second, "--json"])["by"].clone();
    assert_eq!(compared(&plain), "site");
    assert_eq!(compared(&tagged), "tag");
}

#[test]
fn sums_by_site_are_estimated_if_stacks_are_a_sample() {
    let path = folder("sampled_stacks").join("made.mpr");
    std::fs::write(&path, sampled().finish(20_000).expect("memory")).expect("written");
    let sampled = shown(&path);
    let (_, text, _) = run(&["report", &sampled, "--top", "2"]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("held share samples who"), "{words}");
    assert!(
        words.contains("one block for each 64.0 KiB has a stack. `millpond run --stacks all`"),
        "{words}"
    );
    assert!(!words.contains("(no stack recorded)"), "{words}");
    let peak = &json(&["report", &sampled, "--json"])["peak_by"]["rows"];
    let (first, second) = (&peak[0], &peak[1]);
    assert_eq!(
        (&first["name"], &second["name"]),
        (&"small (a.c:1)".into(), &"large (a.c:2)".into())
    );
    let bytes = |group: &serde_json::Value| group["bytes"].as_u64().expect("a number");
    assert_eq!(bytes(first) + bytes(second), 10_000 * 1024 + 100 * 65_536);
    // There are 10,000 small blocks, and about 1 of 64 has a stack.
    let error = bytes(first) as f64 / (10_000.0 * 1024.0);
    assert!((error - 1.0).abs() < 0.1, "{error}");
    // Properties that all blocks have are exact.
    let pool = &json(&["report", &sampled, "--json", "--by", "pool"])["peak_by"]["rows"][0];
    assert_eq!(
        (bytes(pool), &pool["blocks"]),
        (10_000 * 1024 + 100 * 65_536, &10_100.into())
    );
    let (_, text, _) = run(&["diff", &sampled, &with_stacks("all_stacks", false, 1)]);
    assert!(text.contains("Estimated from samples"), "{text}");
    // An exported profile has the estimates too.
    let folded = folder("sampled_folded").join("run.folded").display().to_string();
    let (code, _, said) = run(&["convert", &sampled, &folded, "--at", "peak"]);
    assert!(code == 0, "{said}");
    let lines = std::fs::read_to_string(folded).expect("written");
    let small = lines.lines().find_map(|line| line.strip_prefix("small "));
    let error = small.expect("a line").parse::<f64>().expect("bytes") / (10_000.0 * 1024.0);
    assert!((error - 1.0).abs() < 0.15, "{error}");
    // All stacks are recorded.
    let (_, text, _) = run(&["report", &with_stacks("all_stacks", false, 1)]);
    assert!(!text.contains("samples"), "{text}");
}

/// Returns a recording of 10,000 blocks of 1 KiB and 100 blocks of 64 KiB. One block for each 64 KiB has a stack.
fn sampled() -> Writer<Vec<u8>> {
    let facts = [("program", "made"), ("bytes_per_stack", "65536")];
    let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut writer = Writer::new(Vec::new(), &facts).expect("memory");
    let define = |kind, stack| Row {
        stack,
        ..Row::new(kind, 0)
    };
    for (stack, frame) in [(1, "small\na.c\n1"), (2, "large\na.c\n2")] {
        let address = [8 * u64::from(stack)];
        let frame = writer.say(&define(Kind::DefineFrame, 0), Some(frame), Some(&address));
        frame
            .and_then(|()| writer.say(&define(Kind::DefineStack, stack), None, Some(&address)))
            .expect("memory");
    }
    for id in 1..=10_100 {
        let is_large = id % 101 == 0;
        let bytes = if is_large { 65_536 } else { 1024 };
        let row = Row {
            id,
            requested: bytes,
            bytes,
            stack: match (is_large, id % 64) {
                (true, _) => 2,
                (false, 1) => 1,
                (false, _) => 0,
            },
            ..Row::new(Kind::Alloc, id)
        };
        writer.push(&row).expect("memory");
    }
    writer
}

#[test]
fn whole_stacks_are_printed_below_their_groups() {
    let path = folder("report_stacks").join("run.csv");
    let stack = "at::mul<model.py:forward:12<torch/nn/modules/module.py:_call_impl:7<\
                 torch/nn/modules/module.py:_wrapped_call_impl:8<train.py:step:80";
    let lines = format!(
        "time_us,action,id,bytes,stream,tag\n0,alloc,1,3000000,0,{stack}\n1,alloc,2,1000000,0,fwd;a.1;mm;{stack}\n\
         2,alloc,3,500000,0,a name\n"
    );
    std::fs::write(&path, lines).expect("written");
    let file = shown(&path);
    let (code, text, _) = run(&["report", &file, "--by", "stack"]);
    assert_eq!(code, 0);
    // Both tags have the same stack, so they are one group.
    let (_, table) = text.split_once("Held at the peak, by stack").expect("a table");
    assert!(table.contains("model.py:forward:12 and 4 frames"), "{table}");
    let lines: Vec<&str> = table.lines().map(str::trim).collect();
    let at = lines
        .iter()
        .position(|line| *line == "at::mul")
        .expect("the innermost frame");
    assert_eq!(
        lines[at..at + 4],
        [
            "at::mul",
            "model.py:forward:12",
            "… 2 frames around a call",
            "train.py:step:80"
        ]
    );
    assert!(table.contains("(no stack recorded)"), "{table}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let rows = &json(&["report", &file, "--by", "stack", "--json"])["peak_by"]["rows"];
    assert_eq!(rows[0]["name"], stack.replace('<', "\n"));
    assert_eq!(rows[0]["blocks"], 2);
    let (code, text, _) = run(&["diff", &file, "--at", "0,end", "--by", "stack"]);
    assert!(code == 0 && text.contains("… 2 frames around a call"), "{text}");
    // The legend of a picture has one line for it.
    let picture = folder("report_stacks_plot").join("run.svg").display().to_string();
    let (code, ..) = run(&["report", &file, "--by", "stack", "--plot", &picture]);
    let picture = std::fs::read_to_string(picture).expect("written");
    assert!(
        code == 0 && picture.contains("model.py:forward:12 and 4 frames"),
        "{picture}"
    );
    let (_, text, _) = run(&["report", &file, "--by", "tag"]);
    assert!(
        text.contains("model.py:forward:12") && text.contains("fwd; a.*; mm"),
        "{text}"
    );
}
