//! Checks the guarantees of a page: it runs and loads only its own content, it stays small, and the script
//! decodes it exactly.

use std::fmt::Write as _;

use millpond_trace::{ReadOptions, Trace, read_bytes};

use super::{Page, Run, blobs::PAGE_BYTES, html::write_within, places, story, window, write};
use crate::options::Options;
use crate::placement::{Placement, SegmentSpan};
use crate::program::{Program, Selection};
use crate::replay::replay;

/// A xorshift generator that returns the same numbers on every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Returns a program without any structure to guess, which is the hardest to encode.
fn program(events: usize, tags: &[&str]) -> Trace {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut csv = String::from("time_us,action,id,bytes,stream,tag\n");
    let mut live: Vec<(u64, u64)> = Vec::new();
    let mut id = 0;
    let mut time = 0;
    for _ in 0..events {
        time += dice.below(50);
        if live.len() > 2000 || (live.len() > 500 && dice.below(2) == 0) {
            let (id, bytes) = live.swap_remove(dice.below(live.len() as u64) as usize);
            writeln!(csv, "{time},free,{id},{bytes},0,").unwrap();
        } else {
            id += 1;
            let bytes = 1 + dice.below(1 << 26);
            let tag = tags[dice.below(tags.len() as u64) as usize];
            writeln!(csv, "{time},alloc,{id},{bytes},0,{tag}").unwrap();
            live.push((id, bytes));
        }
    }
    read_bytes(csv.as_bytes(), "random", &ReadOptions::default())
        .unwrap()
        .traces
        .remove(0)
}

/// Returns addresses that follow no rule, with rounding that follows one.
fn placement(trace: &Trace, seed: u64, stopped_at: Option<u32>) -> Placement {
    let mut dice = Dice(seed | 1);
    let mut placement = Placement {
        stopped_at,
        ..Placement::default()
    };
    for life in story::lives(trace) {
        let served = stopped_at.is_none_or(|stop| life.birth < stop);
        placement.address.push(if served {
            (1 << 44) + 512 * dice.below(1 << 27)
        } else {
            u64::MAX
        });
        placement.block_bytes.push(if served {
            life.requested.next_multiple_of(512)
        } else {
            0
        });
    }
    let mut reserved = 0;
    for event in (0..stopped_at.unwrap_or(trace.events.len() as u32)).step_by(100) {
        reserved += dice.below(1 << 30);
        placement.reserved.push((event, reserved));
    }
    placement.segments.push(SegmentSpan {
        address: 1 << 44,
        bytes: 1 << 36,
        from_event: 0,
        to_event: u32::MAX,
    });
    placement
}

fn page<'a>(trace: &'a Trace, runs: &'a [Run<'a>]) -> Page<'a> {
    Page {
        title: trace.origin.name.clone(),
        version: "millpond test".into(),
        trace,
        runs,
        in_use: Some(0),
        best: runs.len().checked_sub(1),
        opens_at: None,
        columns: vec!["policy".into(), "peak reserved".into()],
        rows: runs
            .iter()
            .map(|run| vec![run.name.to_owned(), run.peak_reserved().to_string()])
            .collect(),
        advice: vec!["Do this.".into()],
        cautions: vec!["But mind that.".into()],
        device_bytes: Some(80 << 30),
        peak_requested: 1 << 30,
    }
}

fn written(page: &Page<'_>) -> String {
    let mut bytes = Vec::new();
    write(page, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn names_cannot_run_scripts_or_load_content() {
    let evil = "</script><img src=x onerror=alert(1)><!--<script>\" onload='alert(2)' https://evil.example/";
    let trace = program(300, &[evil, "a;b;c;d"]);
    let placement = placement(&trace, 7, None);
    let runs = [Run {
        name: evil,
        fidelity: evil,
        needs: None,
        placement: &placement,
    }];
    let mut page = page(&trace, &runs);
    for text in [
        &mut page.title,
        &mut page.version,
        &mut page.advice[0],
        &mut page.cautions[0],
        &mut page.columns[1],
    ] {
        *text = evil.to_owned();
    }
    page.rows.push(vec![evil.to_owned(), evil.to_owned()]);
    let html = written(&page);
    assert!(!html.contains("<img"));
    assert!(!html.contains("<!--"));
    // There is one script and its data: the recording, its tags, its times, and two parts of one policy.
    assert_eq!(html.matches("<script").count(), 2 + 5);
    assert_eq!(html.matches("</script").count(), 2 + 5);
    assert_eq!(html.matches("<script>").count(), 1);
    let ours = html.replace("https://evil.example/", "");
    for outside in [
        "http://", "https://", "@import", "url(", "<link", "<iframe", " href=",
    ] {
        assert!(!ours.contains(outside), "{outside}");
    }
    let head = html.split("</head>").next().unwrap();
    assert!(head.contains("default-src 'none'; script-src 'sha256-"));
    assert!(!head.contains("unsafe-inline"));
}

#[test]
fn the_answer_and_figures_with_their_moments_come_first() {
    let trace = program(300, &["a"]);
    let placements = [placement(&trace, 7, None), placement(&trace, 8, None)];
    let mut runs = runs(["one", "two"], &placements);
    let html = written(&page(&trace, &runs));
    let order = [
        "<h1>",
        "<li>Do this.</li>",
        "class=\"facts-line\"",
        "class=\"figures\"",
        "<canvas",
    ];
    let places = order.map(|part| html.find(part).unwrap_or_else(|| panic!("{part} is missing")));
    assert!(places.is_sorted(), "{places:?}");
    assert!(!html.contains("advice failed"));
    // Both placements reserve most at the last of their changes.
    for part in [
        "<span>Requested at peak</span></dt><dd>1.00 GiB<small>at event ",
        "<span>Your allocator</span>",
        "<small>one</small><small>reserved at peak, at event 200, 0.00 s in</small>",
        "<span>Recommended</span>",
        "<span>Potential saving</span>",
    ] {
        assert!(html.contains(part), "{part}");
    }
    // If the needed bytes are known, they are the main figures.
    (runs[0].needs, runs[1].needs) = (Some(8 << 30), Some(6 << 30));
    let html = written(&page(&trace, &runs));
    assert!(html.contains("<dd>8.00 GiB<small>one</small><small>needed; "));
    assert!(html.contains("<dd>2.00 GiB<small>25.0 % less needed</small>"));
    // A failure is the headline.
    let failed = Page {
        opens_at: Some(100),
        ..page(&trace, &runs)
    };
    assert!(written(&failed).contains("<ol class=\"advice failed\">"));
}

fn runs<'a, const N: usize>(names: [&'a str; N], placements: &'a [Placement]) -> Vec<Run<'a>> {
    let pairs = names.into_iter().zip(placements);
    let run = |(name, placement)| Run {
        name,
        fidelity: "",
        needs: None,
        placement,
    };
    pairs.map(run).collect()
}

#[test]
#[ignore = "needs node"]
fn a_page_opens_at_the_peak_or_the_failure_with_the_relevant_policies() {
    let trace = program(1000, &["a"]);
    let placements = [
        placement(&trace, 1, None),
        placement(&trace, 2, Some(200)),
        placement(&trace, 3, None),
        placement(&trace, 4, None),
    ];
    let runs = runs(["none", "own", "better", "millpond"], &placements);
    let shown = Page {
        in_use: Some(1),
        best: Some(2),
        ..page(&trace, &runs)
    };
    let opens = asked("opens.js", &shown, PAGE_BYTES);
    assert_eq!(opens["lines"], serde_json::json!(["own", "better"]));
    assert_eq!(opens["focus"], "better");
    assert_eq!(opens["name"], "at the peak of requested bytes");
    assert_eq!(opens["window"], serde_json::json!([0, 999]));
    assert_eq!(opens["all"].as_array().unwrap().len(), 4);
    assert_eq!(opens["again"], opens["lines"]);
    let none_better = Page {
        best: None,
        ..shown.clone()
    };
    let opens = asked("opens.js", &none_better, PAGE_BYTES);
    assert_eq!(opens["lines"], serde_json::json!(["own", "millpond"]));
    let failed = Page {
        opens_at: Some(200),
        ..shown
    };
    let opens = asked("opens.js", &failed, PAGE_BYTES);
    assert_eq!(opens["focus"], "own");
    assert_eq!(opens["name"], "before memory ran out");
    assert_eq!(opens["moment"], 199);
    assert_eq!(opens["window"], serde_json::json!([0, 250]));
}

#[test]
fn an_empty_recording_makes_a_page() {
    let mut trace = program(10, &["a"]);
    trace.events.clear();
    trace.allocations = 0;
    let placement = Placement::default();
    let runs = [Run {
        name: "none",
        fidelity: "",
        needs: None,
        placement: &placement,
    }];
    let html = written(&page(&trace, &runs));
    assert!(html.ends_with("</html>\n"));
}

#[test]
fn the_allocated_curve_is_the_sum_of_live_blocks() {
    let trace = program(2000, &["a", "b"]);
    let placement = placement(&trace, 3, Some(1500));
    let lives = story::lives(&trace);
    let curve = places::allocated(&trace, &lives, &placement);
    for event in (0..1500).step_by(61) {
        let alive = |serial: &usize| lives[*serial].birth <= event && event < lives[*serial].death;
        let sum: u64 = (0..lives.len())
            .filter(alive)
            .map(|serial| placement.block_bytes[serial])
            .sum();
        assert_eq!(curve[event as usize], sum);
    }
}

/// The script is the decoder, so this round trip runs it, with a limit too small to keep all addresses.
#[test]
#[ignore = "needs node"]
fn the_script_decodes_the_page_exactly() {
    let trace = program(20_000, &["a;b.0;c;d", "a;b.1;c;e", "", "x<y<z"]);
    let placements = [
        placement(&trace, 1, None),
        placement(&trace, 2, Some(15_000)),
        cacheless(&trace),
    ];
    let runs = runs(["random", "stopped", "cacheless"], &placements);
    let (sums, threshold) = read_back(&trace, &runs, 380_000);
    let lives = story::lives(&trace);
    let requested = story::held(&trace, &lives, |serial| lives[serial].requested);
    let first = trace.events[0].time_us;
    let mut truth = vec![
        sum(trace.events.len(), |i| requested[i] as f64),
        sum(trace.events.len(), |i| (trace.events[i].time_us - first) as f64),
        sum(lives.len(), |i| trace.tags.get(lives[i].tag).len() as f64),
    ];
    let mut kept = 0;
    for placement in &placements {
        let end = placement
            .stopped_at
            .map_or(trace.events.len(), |event| event as usize);
        let mut reserved = places::Curve::new(&placement.reserved);
        let allocated = places::allocated(&trace, &lives, placement);
        truth.push(sum(end, |i| reserved.after(i) as f64));
        truth.push(sum(end, |i| allocated[i] as f64));
        let drawn = |i: usize| placement.address[i] != u64::MAX && lives[i].area() >= threshold;
        kept += (0..lives.len()).filter(|&i| drawn(i)).count();
        let address = |i: usize| {
            if drawn(i) {
                placement.address[i] as f64
            } else {
                -1.0
            }
        };
        truth.push(sum(lives.len(), address));
    }
    assert_eq!(sums, truth);
    assert!(
        threshold > 0.0 && kept > lives.len() / 2,
        "{kept} of {}",
        lives.len()
    );
}

/// Runs the script on a page. Returns a sum over each curve, and the area below which addresses were left
/// out.
fn read_back(trace: &Trace, runs: &[Run<'_>], limit: u64) -> (Vec<f64>, f64) {
    let page = page(trace, runs);
    let mut html = Vec::new();
    write_within(&page, limit, &mut html).unwrap();
    let html = String::from_utf8(html).unwrap();
    let meta = html.split("id=\"meta\">").nth(1).unwrap();
    let meta = meta.split("</script>").next().unwrap();
    let threshold = serde_json::from_str::<serde_json::Value>(meta).unwrap()["threshold"].as_f64();
    let sums = asked("decode.js", &page, limit);
    (serde_json::from_value(sums).unwrap(), threshold.unwrap())
}

/// Returns the output of a script of `check` for a page.
fn asked(script: &str, page: &Page<'_>, limit: u64) -> serde_json::Value {
    let name = format!("millpond-page-{}-{limit}-{script}.html", std::process::id());
    let file = std::env::temp_dir().join(name);
    let mut html = Vec::new();
    write_within(page, limit, &mut html).unwrap();
    std::fs::write(&file, &html).unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page/check/");
    let output = std::process::Command::new("node")
        .arg(format!("{folder}{script}"))
        .arg(&file)
        .output()
        .unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn sum(length: usize, mut value: impl FnMut(usize) -> f64) -> f64 {
    (0..length).fold(0.0, |total, i| total + value(i) * ((i % 97) + 1) as f64)
}

/// Returns the placement of a policy whose reserved bytes change with every call.
fn cacheless(trace: &Trace) -> Placement {
    let mut placement = placement(trace, 5, None);
    let lives = story::lives(trace);
    let allocated = places::allocated(trace, &lives, &placement);
    placement.reserved = allocated
        .iter()
        .enumerate()
        .map(|(event, &bytes)| (event as u32, bytes + 4096))
        .collect();
    placement
}

#[test]
#[ignore = "a million events: seconds in release, minutes without"]
fn a_million_random_events_and_ten_policies_fit_into_the_size_limit() {
    let trace = program(1_000_000, &["a;b;c;d", "a;b;c;e", "f;g;h;i"]);
    let placements: Vec<Placement> = (0..9)
        .map(|seed| placement(&trace, seed + 11, None))
        .chain([cacheless(&trace)])
        .collect();
    let runs: Vec<Run<'_>> = placements
        .iter()
        .map(|placement| Run {
            name: "p",
            fidelity: "",
            needs: None,
            placement,
        })
        .collect();
    let bytes = written(&page(&trace, &runs)).len() as u64;
    assert!(bytes <= PAGE_BYTES, "{bytes}");
}

#[test]
fn a_window_becomes_a_recording_of_the_replayed_part() {
    let csv = "time_us,action,id,bytes,stream,tag\n0,alloc,1,3000000,0,old\n5,alloc,2,64000000,0,before\n\
        8,free,2,64000000,0,\n10,alloc,3,5000000,0,new\n20,free,1,3000000,0,\n30,alloc,4,1000000,0,new\n\
        90,alloc,5,99000000,0,after\n";
    let recording = read_bytes(csv.as_bytes(), "made", &ReadOptions::default()).unwrap();
    let trace = &recording.traces[0];
    let options = Options {
        policies: vec!["none".into()],
        selection: Selection {
            window_us: Some((10, 30)),
            ..Selection::default()
        },
        placements: true,
        ..Options::default()
    };
    let replayed = replay(trace, &options, &|_, _| {}).unwrap();
    let program = Program::new(trace, options.selection).unwrap();
    let (part, placements) = window(trace, &program, &replayed.placements);
    let lives = story::lives(&part);
    let requested = story::held(&part, &lives, |serial| lives[serial].requested);
    assert_eq!(requested, [8_000_000, 5_000_000, 6_000_000]);
    assert_eq!((part.allocations, part.initial_blocks.len()), (3, 1));
    assert_eq!(part.tags.get(part.initial_blocks[0].tag), "old");
    let [placement] = placements.as_slice() else {
        panic!("one policy")
    };
    assert!(placement.address.iter().all(|address| *address != u64::MAX));
    let events: Vec<u32> = placement.reserved.iter().map(|(event, _)| *event).collect();
    assert_eq!(events, [0, 1, 2], "what lived before and the first event are one");
    assert!(placement.segments.iter().all(|span| span.to_event <= 3));
    assert_eq!(replayed.report.peak_requested_bytes, 8_000_000);
}

#[test]
fn memory_stays_until_the_end_if_the_last_request_was_refused() {
    // A replay makes the first of these requests again, and no device can serve the second.
    let csv = "time_us,action,id,bytes,stream,tag\n0,alloc,1,3000000,0,a\n5,oom,0,64000000,0,b\n6,oom,0,99999999999999999,0,b\n";
    let recording = read_bytes(csv.as_bytes(), "made", &ReadOptions::default()).unwrap();
    let options = Options {
        policies: vec!["torch-native".into()],
        placements: true,
        ..Options::default()
    };
    let replayed = replay(&recording.traces[0], &options, &|_, _| {}).unwrap();
    let ends = replayed.placements[0].segments.iter().map(|span| span.to_event);
    assert_eq!(ends.collect::<Vec<_>>(), [3, 3]);
}

/// A snapshot whose first event completes the free of a block of 512 bytes. The second event allocates 64 bytes.
const BEGINS_WITH_A_COMPLETED_FREE: &[u8] = b"(dS'segments'\n(lsS'device_traces'\n(l(l\
    (dS'action'\nS'free_completed'\nsS'addr'\nI4096\nsS'size'\nI512\nsS'stream'\nI0\nsS'time_us'\nI1\nsa\
    (dS'action'\nS'alloc'\nsS'addr'\nI8192\nsS'size'\nI64\nsS'stream'\nI0\nsS'time_us'\nI2\nsaas.";

fn begins_with_a_completed_free() -> Trace {
    let read = read_bytes(BEGINS_WITH_A_COMPLETED_FREE, "made", &ReadOptions::default());
    let trace = read.unwrap().traces.remove(0);
    assert!(
        trace.initial_blocks[0].pending,
        "the block waits for a stream when the recording begins"
    );
    trace
}

#[test]
fn a_completed_free_at_the_start_does_not_reduce_the_held_bytes() {
    let trace = begins_with_a_completed_free();
    let lives = story::lives(&trace);
    assert_eq!(
        story::held(&trace, &lives, |serial| lives[serial].requested),
        [0, 64]
    );
    let options = Options {
        placements: true,
        ..Options::default()
    };
    let replayed = replay(&trace, &options, &|_, _| {}).unwrap();
    for placed in &replayed.placements {
        let allocated = places::allocated(&trace, &lives, placed);
        assert!(allocated[0] == 0 && allocated[1] < 1 << 30, "{allocated:?}");
    }
    let (program, placements) = (
        Program::new(&trace, options.selection).unwrap(),
        &replayed.placements,
    );
    let (part, _) = window(&trace, &program, placements);
    let lives = story::lives(&part);
    assert_eq!(
        story::held(&part, &lives, |serial| lives[serial].requested),
        [0, 64]
    );
}

#[test]
#[ignore = "needs node"]
fn the_script_does_not_reduce_the_held_bytes_for_a_completed_free() {
    let (sums, _) = read_back(&begins_with_a_completed_free(), &[], PAGE_BYTES);
    assert_eq!(sums[0], sum(2, |i| [0.0, 64.0][i]));
}
