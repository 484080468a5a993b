//! Tests the verdict: compares each of its figures with separate replays.

use millpond_engine::{Settings, Simulated, TorchConf, display_size, display_size_up, parse_size, policies};
use millpond_replay::{Choice, Device, Options, Program, Report, Run, Selection, Verdict, replay, run};
use millpond_trace::{ReadOptions, Trace, read, read_bytes};
use std::path::Path;

const MIB: u64 = 1 << 20;

fn recorded(name: &str) -> Trace {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let path = folder.join(format!("{name}.csv.zst"));
    let mut recording = read(&path, &ReadOptions::default()).expect("a recording of the repository");
    recording.traces.remove(0)
}

fn written(name: &str, csv: &str) -> Trace {
    let mut recording = read_bytes(csv.as_bytes(), name, &ReadOptions::default()).expect("valid");
    recording.traces.remove(0)
}

/// A program that splits freed segments of 40 MiB by blocks of 21 MiB, and then needs blocks of 40 MiB again.
fn with_holes() -> Trace {
    let mut csv = String::from("time_us,action,id,bytes,stream,tag\n");
    let mut line = |action: &str, id: u64, mib: u64| {
        csv.push_str(&format!("{id},{action},{id},{},0,\n", mib * MIB));
    };
    for action in ["alloc", "free"] {
        for id in 0..16 {
            line(action, id, 40);
        }
    }
    for id in 16..32 {
        line("alloc", id, 21);
    }
    for id in 32..40 {
        line("alloc", id, 40);
    }
    written("holes.csv", &csv)
}

fn answer(trace: &Trace, device: Option<u64>) -> (Report, Verdict) {
    let options = Options {
        verdict: true,
        device: Device {
            bytes: device,
            ..Device::UNLIMITED
        },
        ..Options::default()
    };
    let report = replay(trace, &options, &|_, _| {}).expect("replayed").report;
    let verdict = report.verdict.clone().expect("a verdict");
    (report, verdict)
}

/// Replays with the settings of a choice.
fn on(trace: &Trace, choice: &Choice, bytes: u64) -> Run {
    let settings = Settings {
        torch: TorchConf::parse(&choice.result.conf).expect("settings of PyTorch"),
        ..Settings::default()
    };
    let policy = policies::build(&choice.result.policy, &settings).expect("a policy");
    let program = Program::new(trace, Selection::default()).expect("a program");
    let device = Device {
        bytes: Some(bytes),
        ..Device::UNLIMITED
    };
    run(&program, policy, device.source(), &mut ())
}

/// Checks the memory that a choice needs, the failure below it, and its card.
fn check(trace: &Trace, choice: &Choice) {
    let needs = choice
        .result
        .smallest_device_bytes
        .expect("it finishes somewhere");
    assert!(on(trace, choice, needs).stop.is_none());
    let below = on(trace, choice, needs - Simulated::PAGE);
    let stop = below.stop.as_ref().expect("a page less is not enough");
    let told = choice.below.as_ref().expect("the failure is told");
    assert_eq!(told.free_bytes, stop.device_free);
    assert_eq!(told.largest_hole_bytes, stop.largest_hole);
    assert_eq!(told.cached_bytes, below.stats.cached());
    assert_eq!(told.reserved_bytes, below.stats.reserved.current);
    assert_eq!(told.held_bytes, below.stats.requested.current);
    // Users type the size that they read.
    let printed = parse_size(&display_size_up(needs).to_string()).expect("a size");
    assert!(on(trace, choice, printed).stop.is_none());
    if let Some(card) = &choice.card {
        assert!(card.bytes >= needs && on(trace, choice, card.bytes).stop.is_none());
    }
}

/// A replay does not predict what a pool of host memory takes, so the recorded bytes are reported.
#[test]
fn a_pool_of_host_memory_gets_its_recorded_figures() {
    let mut trace = with_holes();
    let sentences = |trace: &Trace| {
        let (report, verdict) = answer(trace, None);
        (verdict.sentences, report.cautions.join(" "))
    };
    trace.recorded_peak_reserved = Some(800 * MIB);
    trace.settings.policy = Some("millpond".to_owned());
    trace.origin.device = 0;
    let (of_device, cautions) = sentences(&trace);
    assert!(of_device[0].contains("and needs"), "{of_device:?}");
    assert!(!cautions.contains("spans"), "{cautions}");
    trace.origin.device = -1;
    let (of_host, cautions) = sentences(&trace);
    assert_eq!(
        of_host,
        [
            "The program holds at most 656 MiB at once, and its pool takes at most 800 MiB from the system.",
            "Of that, 144 MiB (18 %) is rounding and free memory that the pool keeps. The setting trim-every:1s returns the free \
             part sooner.",
        ]
    );
    assert!(cautions.contains("from spans"), "{cautions}");
    trace.unlisted_bytes = 104 * MIB;
    assert_eq!(
        sentences(&trace).0[1..],
        [
            "Of that, 40.0 MiB (5 %) is rounding and free memory that the pool keeps. The setting trim-every:1s returns the free \
             part sooner.",
            "The pool's memory includes 104 MiB of blocks from before the recording, which it does not list. The child of a fork \
             inherits such blocks.",
        ]
    );
    trace.recorded_peak_reserved = None;
    assert_eq!(
        sentences(&trace).0,
        ["The program holds at most 656 MiB at once."]
    );
    // A recording of another allocator does not say how it serves small blocks.
    trace.settings.policy = None;
    assert!(sentences(&trace).0[0].contains("and needs"));
}

#[test]
fn recordings_of_models_get_figures_that_replays_confirm() {
    for name in ["llama8b_fsdp_streams", "gnn_sage_sampled", "cpu_tiny_gpt_varlen"] {
        let trace = recorded(name);
        let (report, verdict) = answer(&trace, None);
        let says = |at: usize, figure: u64| {
            let sentence = verdict.sentences.get(at).map_or("", String::as_str);
            let figures = [
                display_size(figure).to_string(),
                display_size_up(figure).to_string(),
            ];
            let is_said = figures.iter().any(|figure| sentence.contains(figure));
            assert!(is_said, "{name}: none of {figures:?} in {sentence:?}");
        };
        let needs = |choice: &Choice| choice.result.smallest_device_bytes.expect("found");
        check(&trace, &verdict.own);
        assert_eq!(verdict.own.result.policy, "torch-native", "{name}");
        assert!(!verdict.own_is_known);
        says(0, report.peak_requested_bytes);
        says(0, needs(&verdict.own));
        says(1, needs(&verdict.own) - report.peak_requested_bytes);
        let Some(better) = verdict.better.as_ref() else {
            // Expandable segments need 0.1 % less there, as PyTorch itself showed.
            assert_eq!(name, "cpu_tiny_gpt_varlen");
            continue;
        };
        check(&trace, better);
        assert!(needs(better) < needs(&verdict.own));
        says(2, needs(better));
        says(2, needs(&verdict.own) - needs(better));
        assert!(
            better
                .apply
                .as_ref()
                .is_some_and(|line| line.starts_with("export PYTORCH_CUDA_ALLOC_CONF=")),
            "{:?}",
            better.apply
        );
        let rows: Vec<String> = report.results.iter().map(|result| result.label()).collect();
        let expected = [
            verdict.own.result.label(),
            better.result.label(),
            "millpond".to_owned(),
            "planned".to_owned(),
        ];
        assert_eq!(rows, expected, "{name}");
    }
}

#[test]
fn holes_are_the_evidence_of_waste() {
    let (_, verdict) = answer(&with_holes(), None);
    let [first, waste, advice] = verdict.sentences.as_slice() else {
        panic!("three sentences: {:?}", verdict.sentences);
    };
    // 16 blocks of 21 MiB and 8 of 40 MiB live at once. The first 16 lie in segments of 40 MiB.
    assert!(
        first.contains("holds at most 656 MiB at once and needs 960 MiB under PyTorch's default allocator"),
        "{first}"
    );
    assert!(
        waste.contains("Of that, 304 MiB (32 %) is waste")
            && waste.contains("a request for 40.0 MiB fails although"),
        "{waste}"
    );
    assert!(
        advice.contains(
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: it then needs 660 MiB, 300 MiB less"
        ),
        "{advice}"
    );
}

#[test]
fn a_setting_is_recommended_if_only_the_allocator_needs_too_much() {
    let (report, verdict) = answer(&with_holes(), Some(800 * MIB));
    assert!(report.results[0].first_failure.is_some());
    assert!(report.results[1].first_failure.is_none());
    let text = verdict.sentences.join("\n");
    assert!(
        text.contains(
            "runs out of memory in 800 MiB under PyTorch's default allocator, where it needs 960 MiB"
        ),
        "{text}"
    );
    assert!(
        text.contains("expandable_segments:True: it then needs 660 MiB"),
        "{text}"
    );
    assert!(text.contains("and finishes there"), "{text}");
}

/// The program holds 656 MiB, and the best setting needs 660 MiB.
#[test]
fn a_setting_that_the_device_has_too_little_for_does_not_finish_there() {
    let (_, verdict) = answer(&with_holes(), Some(658 * MIB));
    let text = verdict.sentences.join("\n");
    let advice = "it then needs 660 MiB, 300 MiB less, which is still 2.00 MiB more than the device has.";
    assert!(text.contains(advice), "{text}");
    assert!(!text.contains("finishes there"), "{text}");
}

#[test]
fn no_setting_is_recommended_if_the_program_itself_needs_too_much() {
    let (report, verdict) = answer(&with_holes(), Some(600 * MIB));
    assert!(report.results.iter().all(|result| result.first_failure.is_some()));
    let text = verdict.sentences.join("\n");
    assert!(
        text.contains(
            "No allocator can run this in 600 MiB: the program itself holds 656 MiB at its peak, 56.0 MiB too much."
        ),
        "{text}"
    );
    assert!(text.contains("use a device with 660 MiB for it"), "{text}");
    assert!(!text.contains("Set "), "{text}");
}

#[test]
fn a_program_without_waste_gets_no_recommendation() {
    let csv = "time_us,action,id,bytes,stream,tag\n0,alloc,1,1073741824,0,\n1,free,1,1073741824,0,\n";
    let (_, verdict) = answer(&written("plain.csv", csv), None);
    assert!(verdict.better.is_none(), "{:?}", verdict.better);
    assert_eq!(verdict.sentences[1], "Its allocator wastes 0.0 % of that.");
    assert!(verdict.sentences[2].contains("No setting of this allocator that was tried lowers this"));
}

#[test]
fn given_settings_apply_to_the_programs_own_allocator() {
    let options = Options {
        verdict: true,
        settings: Settings {
            torch: TorchConf::parse("expandable_segments:True").expect("valid"),
            ..Settings::default()
        },
        applied: vec![millpond_replay::Applied {
            policies: vec!["torch-native".to_owned(), "torch-expandable".to_owned()],
            settings: "expandable_segments:True".to_owned(),
            from: "--torch-conf",
        }],
        ..Options::default()
    };
    let report = replay(&with_holes(), &options, &|_, _| {})
        .expect("replayed")
        .report;
    let verdict = report.verdict.expect("a verdict");
    assert!(verdict.own_is_known && verdict.better.is_none());
    assert_eq!(verdict.own.result.policy, "torch-expandable");
    assert!(verdict.sentences[0].contains("PyTorch's allocator with expandable_segments:True"));
}

#[test]
fn rmm_programs_get_only_rmm_resources_as_recommendations() {
    let mut csv = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    for id in 0..64u64 {
        csv.push_str(&format!(
            "1,00:00:00.000001,allocate,0x{:x},{},0\n",
            (id + 1) << 32,
            20 * MIB
        ));
    }
    for id in (0..64u64).step_by(2) {
        csv.push_str(&format!(
            "1,00:00:00.000002,free,0x{:x},{},0\n",
            (id + 1) << 32,
            20 * MIB
        ));
    }
    for id in 64..68u64 {
        csv.push_str(&format!(
            "1,00:00:00.000003,allocate,0x{:x},{},0\n",
            (id + 1) << 32,
            40 * MIB
        ));
    }
    let (_, verdict) = answer(&written("rmm.csv", &csv), None);
    assert_eq!(verdict.own.result.policy, "rmm-pool");
    let text = verdict.sentences.join("\n");
    assert!(
        !text.contains("PYTORCH") && !text.contains("MILLPOND_CONF"),
        "{text}"
    );
    assert!(text.contains("RMM's pool_memory_resource"), "{text}");
    let apply = verdict.better.and_then(|better| better.apply);
    assert!(apply.is_none_or(|apply| apply.starts_with("rmm::mr::")), "{text}");
}
