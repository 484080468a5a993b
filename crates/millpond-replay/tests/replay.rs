//! Tests programs, runs, the smallest device, and the explanation of a failure.

mod support;

use millpond_engine::{Settings, Simulated, policies};
use millpond_replay::{
    Device, MOST_HELD, Options, PlacementRecorder, Program, ReplayError, Selection, Steps, Threads,
    TickEvery, Ticks, replay, run, smallest_device,
};
use millpond_trace::{Action, ReadOptions, Recording, read_bytes};
use proptest::prelude::*;
use std::num::NonZeroU64;
use support::{event, trace};

const MIB: u64 = 1 << 20;

fn read(csv: &str) -> Recording {
    let text = format!("time_us,action,id,bytes,stream,tag\n{csv}");
    read_bytes(text.as_bytes(), "tiny.csv", &ReadOptions::default()).expect("valid")
}

fn options(policies: &[&str], device: Option<u64>) -> Options {
    let policies = policies.iter().map(|p| (*p).to_owned()).collect();
    Options {
        policies,
        device: Device {
            bytes: device,
            ..Device::UNLIMITED
        },
        ..Options::default()
    }
}

#[test]
fn programs_larger_than_any_device_are_refused() {
    // Policies that map pages would keep a record of each.
    let damaged = read(
        "0,alloc,1,100,0,\n10,alloc,2,1125899906842624,0,\n20,free,2,1125899906842624,0,\n30,alloc,3,64,0,\n",
    );
    let trace = &damaged.traces[0];
    let error = Program::new(trace, Selection::default()).expect_err("a pebibyte");
    let beyond = ReplayError::Beyond {
        trace: "tiny".to_owned(),
        held: (1 << 50) + 100,
        event: Some(1),
    };
    assert_eq!(error, beyond);
    assert!(error.to_string().contains("at its event 1, more than"), "{error}");
    let after = Selection {
        window_us: Some((25, 30)),
        ..Selection::default()
    };
    let program = Program::new(trace, after).expect("it is left out");
    assert_eq!(program.peak_requested, 164);

    let most = read(&format!("0,alloc,1,{MOST_HELD},0,\n"));
    let paged = options(&["millpond", "torch-expandable", "cuda-async"], None);
    let replayed = replay(&most.traces[0], &paged, &|_, _| {}).expect("replayed");
    for result in &replayed.report.results {
        let served = result.first_failure.is_none() && result.peak_reserved_bytes >= MOST_HELD;
        assert!(served, "{result:?}");
    }
}

#[test]
fn the_recorded_policy_is_the_one_in_the_header() {
    let rows = "time_us,action,id,bytes,stream,tag\n0,segment_alloc,9,2097152,0,\n1,alloc,1,100,0,\n";
    let under = |header: &str| {
        let text = format!("{header}{rows}");
        let recording = read_bytes(text.as_bytes(), "tiny.csv", &ReadOptions::default()).expect("valid");
        let replayed = replay(&recording.traces[0], &options(&["bfc"], None), &|_, _| {}).expect("replayed");
        let recorded = replayed.report.recorded.expect("it names what was reserved");
        (recorded.policy, recorded.peak_reserved_bytes)
    };
    let named = under("# {\"millpond\": {\"policy\": \"bfc\"}}\n");
    assert_eq!(named, ("bfc".to_owned(), 2 * MIB));
    assert_eq!(under(""), ("torch-native".to_owned(), 2 * MIB));
    let hostile = under("# {\"millpond\": {\"policy\": \"b\\u001b[2Jfc\"}}\n");
    assert_eq!(hostile.0, "b[2Jfc");
}

#[test]
fn a_window_begins_with_the_blocks_that_are_live_at_its_start() {
    let recording =
        read("0,alloc,1,100,0,\n10,alloc,2,200,0,\n20,free,1,100,0,\n30,alloc,3,300,0,\n40,free,2,200,0,\n");
    let window = Selection {
        window_us: Some((20, 30)),
        ..Selection::default()
    };
    let program = Program::new(&recording.traces[0], window).expect("allocations inside");
    let kinds: Vec<_> = program.ops.iter().map(|op| (op.allocation, op.event())).collect();
    assert_eq!(kinds, [(0, None), (1, None), (0, Some(2)), (2, Some(3))]);
    assert_eq!(
        (program.events, program.initial_blocks, program.peak_requested),
        (2, 2, 500)
    );
    let empty = Selection {
        window_us: Some((41, 50)),
        ..Selection::default()
    };
    // Only block 3 lives in the window.
    assert_eq!(
        Program::new(&recording.traces[0], empty)
            .expect("block 3 lives")
            .requests,
        1
    );
}

/// Returns a program that uses 64 MiB once, and then allocates small blocks over and over.
fn idle_after_the_start(calls: usize) -> Recording {
    let mut csv = "0,alloc,1,67108864,0,\n1,free,1,67108864,0,\n".to_owned();
    for call in 0..calls {
        let id = call + 2;
        csv += &format!(
            "{},alloc,{id},5000,0,\n{},free,{id},5000,0,\n",
            2 * call + 2,
            2 * call + 3
        );
    }
    read(&csv)
}

#[test]
fn time_passes_for_a_policy_only_with_ticks() {
    let recording = idle_after_the_start(20);
    let given_back = |tick: Option<TickEvery>, decay: u64| {
        let mut options = options(&["millpond"], None);
        options.settings.millpond.retain.decay = decay;
        options.tick = tick;
        let replayed = replay(&recording.traces[0], &options, &|_, _| {}).expect("valid");
        let result = &replayed.report.results[0];
        (result.stalls > 0, result.driver_calls.unmap > 0)
    };
    let every = |calls| NonZeroU64::new(calls).map(TickEvery::Calls);
    assert_eq!(given_back(None, 1), (false, false));
    assert_eq!(given_back(every(4), 1), (true, true));
    assert_eq!(
        given_back(every(4), 100),
        (false, false),
        "42 calls are ten ticks"
    );
    assert_eq!(
        given_back(every(50), 1),
        (false, false),
        "there are not so many calls"
    );
}

#[test]
fn ticks_follow_the_steps_and_are_refused_without_steps() {
    let mut options = options(&["millpond"], None);
    options.tick = Some(TickEvery::Step);
    options.settings.millpond.retain.decay = 1;
    let none = read("0,alloc,1,67108864,0,\n1,free,1,67108864,0,\n");
    let error = replay(&none.traces[0], &options, &|_, _| {}).expect_err("one call is not a step");
    assert!(error.to_string().contains("use --tick N"), "{error}");

    let mut csv = "0,alloc,1,67108864,0,\n1,free,1,67108864,0,\n".to_owned();
    for call in 0..2000 {
        let (id, bytes) = (call + 2, 1000 * (1 + call % 50));
        csv += &format!(
            "{},alloc,{id},{bytes},0,\n{},free,{id},{bytes},0,\n",
            2 * call + 2,
            2 * call + 3
        );
    }
    let recording = read(&csv);
    let program = Program::new(&recording.traces[0], Selection::default()).expect("allocations");
    assert!(Steps::find(&program).is_some(), "fifty sizes, forty times");
    let replayed = replay(&recording.traces[0], &options, &|_, _| {}).expect("valid");
    assert_eq!(
        replayed.report.results[0].stalls, 1,
        "the large block's memory goes back"
    );
}

#[test]
fn a_failure_names_the_holders_and_the_reason() {
    let recording = read(
        "0,alloc,1,31457280,0,forward;layers.0.mlp;mm;a.py:f:1\n1,alloc,2,31457280,0,forward;layers.1.mlp;mm;a.py:f:1\n2,alloc,3,41943040,0,backward;head;mm;a.py:g:2\n",
    );
    let replayed = replay(
        &recording.traces[0],
        &options(&["torch-native"], Some(80 * MIB)),
        &|_, _| {},
    );
    let report = replayed.expect("valid").report;
    let failure = report.results[0]
        .first_failure
        .as_ref()
        .expect("80 MiB are too few");
    assert_eq!(
        (failure.event, failure.bytes, failure.held_bytes),
        (Some(2), 40 * MIB, 60 * MIB)
    );
    assert_eq!(failure.free_bytes, 20 * MIB);
    assert_eq!(failure.tag, "backward;head;mm;a.py:g:2");
    assert_eq!(failure.holders.len(), 1);
    assert_eq!(failure.holders[0].tag, "forward; layers.*.mlp; mm");
    assert_eq!(
        (failure.holders[0].bytes, failure.holders[0].blocks),
        (60 * MIB, 2)
    );
    assert!(failure.why.contains("20.0 MiB too little"), "{}", failure.why);
}

#[test]
fn a_block_is_reused_only_after_other_streams_have_finished_with_it() {
    let mut made = trace(1);
    made.allocations = 3;
    for (action, allocation) in [
        (Action::Alloc, 0),
        (Action::FreeRequested, 0),
        (Action::Alloc, 1),
        (Action::FreeCompleted, 0),
        (Action::Alloc, 2),
    ] {
        made.events.push(event(action, allocation, 20 * MIB, 0, 0));
    }
    let program = Program::new(&made, Selection::default()).expect("valid");
    let policy = policies::build("torch-native", &Settings::default()).expect("known");
    let outcome = run(&program, policy, Simulated::new(), &mut ());
    // The second allocation could not reuse the first one's block, but the third could.
    assert_eq!(outcome.stats.reserved.peak, 40 * MIB);
    assert_eq!((outcome.stats.hits, outcome.stats.requested.peak), (1, 40 * MIB));
}

#[test]
fn settings_that_contradict_a_policy_are_refused() {
    let recording = read("0,alloc,1,100,0,\n");
    let mut options = options(&["torch-native"], None);
    options.settings.torch.expandable_segments = Some(true);
    let error = replay(&recording.traces[0], &options, &|_, _| {}).expect_err("contradiction");
    assert!(error.to_string().contains("torch-expandable"), "{error}");
}

fn program() -> impl Strategy<Value = Program> {
    let size = (9u32..25, 0u64..1 << 24).prop_map(|(log, low)| (1u64 << log) + (low & ((1 << log) - 1)));
    let steps = proptest::collection::vec((proptest::option::weighted(0.6, size), 0usize..1000), 1..120);
    steps.prop_filter_map("allocates", |steps| {
        let mut made = trace(1);
        let mut held = Vec::new();
        for (bytes, which) in steps {
            if let Some(bytes) = bytes {
                made.events
                    .push(event(Action::Alloc, made.allocations, bytes, 0, 0));
                held.push((made.allocations, bytes));
                made.allocations += 1;
            } else if !held.is_empty() {
                let (allocation, bytes) = held.swap_remove(which % held.len());
                made.events.push(event(Action::Free, allocation, bytes, 0, 0));
            }
        }
        Program::new(&made, Selection::default()).ok()
    })
}

proptest! {
    /// A program finishes on the smallest device, and does not with one page less.
    #[test]
    fn a_program_does_not_finish_on_less_than_the_smallest_device(program in program()) {
        for name in ["torch-native", "torch-expandable"] {
            let build = || policies::build(name, &Settings::default()).expect("known");
            let unlimited = run(&program, build(), Simulated::new(), &mut ());
            let found = smallest_device(&program, &unlimited, true, Ticks::NEVER, &Threads::default(), &build, &|_| {}).expect("finite");
            prop_assert!(found.bytes >= program.peak_requested);
            prop_assert!(found.run.stop.is_none());
            let less = found.bytes - Simulated::PAGE;
            if less >= program.peak_requested {
                let outcome = run(&program, build(), Simulated::new().with_capacity(Some(less)), &mut ());
                prop_assert!(outcome.stop.is_some(), "{} finishes in {} as well", name, less);
            }
        }
    }

    /// The placement of a replay agrees with its statistics at every event.
    #[test]
    fn placements_lie_in_reserved_memory(program in program()) {
        for name in ["torch-native", "torch-expandable"] {
            let policy = policies::build(name, &Settings::default()).expect("known");
            let mut recorder = PlacementRecorder::new(&program);
            let outcome = run(&program, policy, Simulated::new().with_log(), &mut recorder);
            let placement = recorder.finish(None);
            let peak = placement.reserved.iter().map(|(_, bytes)| *bytes).max();
            prop_assert_eq!(peak, Some(outcome.stats.reserved.peak));
            for op in program.ops.iter().filter(|op| op.kind == millpond_replay::OpKind::Alloc) {
                let start = placement.address[op.allocation as usize];
                let end = start + placement.block_bytes[op.allocation as usize];
                prop_assert!(end - start >= op.bytes);
                let event = op.event().expect("recorded");
                let covered: u64 = placement.segments.iter()
                    .filter(|s| s.from_event <= event && event < s.to_event)
                    .map(|s| (s.address + s.bytes).min(end).saturating_sub(s.address.max(start)))
                    .sum();
                prop_assert_eq!(covered, end - start);
            }
        }
    }
}

#[test]
fn progress_advances_during_a_search_and_ends_complete() {
    let recording =
        read("0,alloc,1,50000000,0,\n1,alloc,2,50000000,0,\n2,free,1,50000000,0,\n3,alloc,3,90000000,0,\n");
    let mut options = options(&["torch-native"], None);
    options.fit = true;
    let seen = std::sync::Mutex::new(Vec::new());
    let progress = |done, all| seen.lock().expect("one thread").push((done, all));
    replay(&recording.traces[0], &options, &progress).expect("replayable");
    let seen = seen.into_inner().expect("one thread");
    assert!(seen.len() > 3, "{seen:?}");
    assert!(seen.is_sorted(), "it never goes back: {seen:?}");
    let (done, all) = *seen.last().expect("calls");
    assert_eq!(done, all);
    assert!(seen[0].0 > 0 && seen[0].0 < all / 2, "{seen:?}");
}

#[test]
fn an_interrupt_ends_a_search() {
    let recording =
        read("0,alloc,1,50000000,0,\n1,alloc,2,50000000,0,\n2,free,1,50000000,0,\n3,alloc,3,90000000,0,\n");
    let mut options = options(&["torch-native"], None);
    options.fit = true;
    let calls = std::sync::Mutex::new(0);
    let progress = |_, _| {
        *calls.lock().expect("one thread") += 1;
        options.threads.interrupt();
    };
    let outcome = replay(&recording.traces[0], &options, &progress);
    assert_eq!(outcome.err(), Some(ReplayError::Interrupted));
    // The first replay of the search ends, and the policy is finished.
    assert_eq!(calls.into_inner().expect("one thread"), 2);
}
