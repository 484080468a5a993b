//! Tests replays that run out of memory, and replays of recordings that did.

use super::{MIB, Rows, pieces};
use millpond_replay::{
    Cause, Device, OomOrigin, Options, Program, Selection, TuneOptions, apply_edits, replay, tune,
};

/// The program could have 510 MiB, and then 507.5 MiB. Expandable segments have pages of 20 MiB.
#[test]
fn a_setting_is_judged_by_the_bytes_that_the_program_could_have() {
    let more = "which is still 12.5 MiB more than it could have.";
    for (mib, free, words, fits) in [
        (150, 10 * MIB, "and gets the refused memory.", true),
        (307, 15 * MIB / 2, more, false),
    ] {
        let mut rows = pieces();
        rows.oom(mib * MIB, free);
        let trace = rows.trace();
        let options = Options {
            verdict: true,
            ..Options::default()
        };
        let report = replay(&trace, &options, &|_, _| {}).expect("replayed").report;
        let text = report.verdict.expect("a verdict").sentences.join("\n");
        let advice = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: it then needs";
        assert!(text.contains(advice) && text.contains(words), "{text}");
        let tuned = tune(&trace, &TuneOptions::default(), &|_, _| {}).expect("tuned");
        assert_eq!(tuned.device_bytes, Some(500 * MIB + free));
        assert_eq!(
            tuned.families[0].line().is_some(),
            fits,
            "{:?}",
            tuned.families[0]
        );
    }
}

#[test]
fn a_replay_on_a_device_is_explained_in_the_same_way() {
    let mut rows = pieces();
    rows.row("alloc", 99, 150 * MIB, 0, "net;head;loss;b.py:g:2", 0, "");
    let trace = rows.trace();
    let options = Options {
        policies: vec!["torch-native".to_owned()],
        device: Device {
            bytes: Some(510 * MIB),
            ..Device::UNLIMITED
        },
        ..Options::default()
    };
    let report = replay(&trace, &options, &|_, _| {}).expect("valid").report;
    let told = report.out_of_memory.expect("510 MiB are too few");
    let failure = report.results[0].first_failure.as_ref().expect("it fails");
    assert_eq!(
        (told.origin, told.policy.as_str()),
        (OomOrigin::Replayed, "torch-native")
    );
    assert_eq!(
        (told.cause, failure.cause),
        (Cause::Pieces, Cause::Pieces),
        "{}",
        told.why
    );
    assert_eq!(told.why, failure.why);
    let (before, after) = (told.before.expect("before"), told.after.expect("after"));
    assert_eq!(
        (before.reserved_bytes, after.reserved_bytes, after.holes),
        (500 * MIB, 500 * MIB, 10)
    );
    assert_eq!(told.remedies[0].spare_bytes, 90 * MIB);
    assert_eq!(
        told.remedies[0].text,
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    );
}

/// Each handle of 8 MiB has a live page and three free ones.
#[test]
fn relocation_of_pages_under_live_blocks_is_a_proved_remedy() {
    let mut rows = Rows::new();
    rows.alloc(1000, 1024 * MIB, 0).free(1000, 1024 * MIB);
    (0..512).for_each(|id| _ = rows.alloc(id, 2 * MIB, 0));
    (0..512)
        .filter(|id| id % 4 != 1)
        .for_each(|id| _ = rows.free(id, 2 * MIB));
    rows.alloc(1001, 700 * MIB, 0);
    let options = Options {
        policies: vec!["millpond".to_owned()],
        device: Device {
            bytes: Some(1026 * MIB),
            ..Device::UNLIMITED
        },
        ..Options::default()
    };
    let report = replay(&rows.trace(), &options, &|_, _| {}).expect("valid").report;
    let told = report.out_of_memory.expect("no handle is free");
    let remedy = told
        .remedies
        .iter()
        .find(|remedy| remedy.text == "MILLPOND_CONF=relocate:on");
    assert_eq!(remedy.map(|remedy| remedy.stalls), Some(1), "{:?}", told.remedies);
}

#[test]
fn a_refused_request_is_replayed_as_an_allocation() {
    let mut rows = pieces();
    let before = Program::new(&rows.trace(), Selection::default()).expect("a program");
    rows.oom(350 * MIB, 10 * MIB);
    let trace = rows.trace();
    let program = Program::new(&trace, Selection::default()).expect("a program");
    // 200 MiB are held at the event, and 420 MiB before it.
    assert_eq!((before.peak_requested, before.refused), (420 * MIB, 0));
    assert_eq!((program.peak_requested, program.refused), (550 * MIB, 1));
    assert_eq!(program.requests, before.requests + 1);
    assert_eq!(program.ops[program.peak_op].event(), Some(30));
    let as_recorded = Program::as_recorded(&trace, Selection::default()).expect("a program");
    assert_eq!(
        (as_recorded.ops, as_recorded.peak_requested),
        (before.ops, 420 * MIB)
    );

    let options = |device| Options {
        device,
        verdict: true,
        ..Options::default()
    };
    let report = replay(&trace, &options(Device::UNLIMITED), &|_, _| {})
        .expect("a report")
        .report;
    let verdict = report.verdict.as_ref().expect("a verdict");
    assert!(
        verdict.own.needs() >= Some(550 * MIB),
        "{:?}",
        verdict.own.needs()
    );
    let answer = report.answer().join(" ");
    let first = "Up to the refused request, the program holds at most 550 MiB at once and needs ";
    assert!(answer.contains(first), "{answer}");
    // The device of the recording is too small for it.
    let report = replay(
        &trace,
        &options(Device {
            bytes: Some(510 * MIB),
            ..Device::UNLIMITED
        }),
        &|_, _| {},
    )
    .expect("a report")
    .report;
    let own = &report.verdict.as_ref().expect("a verdict").own;
    let failure = own.result.first_failure.as_ref().expect("it fails");
    assert_eq!((failure.event, failure.bytes), (Some(30), 350 * MIB));

    // Edits change the request too.
    let edits = ["shard=net;head:2".parse().expect("an edit")];
    let edited = apply_edits(&trace, &edits).expect("it matches the request");
    assert_eq!(edited.edits[0].changed_blocks, 1);
    let program = Program::new(&edited.trace, Selection::default()).expect("a program");
    assert_eq!((program.peak_requested, program.refused), (420 * MIB, 0));
}

#[test]
fn a_request_that_no_device_can_serve_is_left_out() {
    let mut rows = pieces();
    rows.oom(1 << 61, 0);
    let trace = rows.trace();
    let program = Program::new(&trace, Selection::default()).expect("a program");
    assert_eq!((program.peak_requested, program.refused), (420 * MIB, 0));
    let options = Options {
        verdict: true,
        ..Options::default()
    };
    let report = replay(&trace, &options, &|_, _| {}).expect("a report").report;
    let answer = report.answer().join(" ");
    let first = "Without the request that no device can serve, the program holds at most 420 MiB";
    assert!(answer.contains(first), "{answer}");
}
