//! Tests that the memory of the driver's clients is recorded, however they look up its functions and however they end.
#![cfg(target_os = "linux")]

mod support;

use millpond_intercept::variable;
use millpond_trace::recording::{Gauge, Kind};
use std::collections::BTreeSet;
use std::process::Command;
use support::{Process, place};

const MIB: u64 = 1 << 20;

/// Checks the calls of the scenario `kinds`.
fn check_kinds(process: &Process) {
    let expected = [
        ("cuda", "device memory", 3 * MIB),
        ("cuda", "device memory", MIB),
        ("cuda", "device memory", MIB),
        ("managed", "managed memory", 2 * MIB),
        ("pinned", "pinned memory", MIB),
        ("cuda", "memory pool 4", 5 * MIB),
        ("cuda", "physical memory", 4 * MIB),
        ("cuda", "device memory", MIB / 2),
    ];
    let expected: Vec<_> = expected
        .into_iter()
        .map(|(memory, pool, bytes)| (memory.to_owned(), pool.to_owned(), bytes))
        .collect();
    assert_eq!(process.blocks(Kind::Alloc), expected);
    assert_eq!(process.blocks(Kind::Free).len(), 6);
    assert_eq!(process.left(), [MIB / 2, MIB]);
    assert_eq!(
        (
            process.summary.allocations,
            process.summary.frees,
            process.summary.lost
        ),
        (8, 6, 0)
    );
}

#[test]
fn calls_are_recorded_for_every_way_to_look_up_a_function() {
    let Some(place) = place() else { return };
    for way in ["linked", "dlsym", "lookup"] {
        let run = place.run(&format!("way-{way}"), way, "kinds", &[]);
        let process = run.succeeded().only();
        check_kinds(process);
        assert!(process.summary.ended, "{way}");
        // The client is its own owner.
        let program = if way == "linked" { "linked" } else { "client" };
        let owners: Vec<_> = process.summary.owners.iter().map(|owned| &*owned.name).collect();
        assert!(owners.contains(&program), "{owners:?}");
        let distinct: BTreeSet<u32> = process
            .rows
            .iter()
            .filter(|row| row.kind == Kind::Alloc)
            .map(|row| row.stack)
            .collect();
        assert_eq!(distinct.len(), 8, "{way}");
        let allocations = process.rows.iter().filter(|row| row.kind == Kind::Alloc);
        for row in allocations {
            assert_eq!(process.definitions.tag(row.tag), program);
            let stack: Vec<u64> = process.definitions.stack(row.stack).collect();
            let module = process
                .definitions
                .modules()
                .iter()
                .find(|module| module.path.ends_with(program));
            let module = module.expect("the client's module");
            // The innermost frames are the client's, whose build id is in the recording.
            assert!(
                (module.address..module.address + module.bytes).contains(&stack[0]),
                "{way}"
            );
            assert_eq!(module.build_id.len(), 40, "{way}");
        }
    }
}

#[test]
fn calls_before_main_are_recorded() {
    let Some(place) = place() else { return };
    let command = Command::new(place.folder.join("early"));
    let run = place.record("way-early", command, &[]);
    let process = run.succeeded().only();
    assert_eq!((process.left(), process.summary.ended), (vec![3 * MIB], true));
}

#[test]
fn the_log_survives_however_a_process_ends() {
    let Some(place) = place() else { return };
    for (scenario, signal) in [("abort", Some(6)), ("kill", Some(9)), ("exit", None)] {
        use std::os::unix::process::ExitStatusExt;
        let run = place.run(scenario, "dlsym", scenario, &[]);
        assert_eq!(run.output.status.signal(), signal, "{scenario}");
        check_kinds(run.only());
        assert!(!run.only().summary.ended, "{scenario}");
    }
}

#[test]
fn forked_and_executed_programs_have_their_own_recordings() {
    let Some(place) = place() else { return };
    let run = place.run("fork", "dlsym", "fork", &[]);
    run.succeeded();
    let child: u32 = run
        .printed()
        .trim()
        .rsplit(' ')
        .next()
        .and_then(|pid| pid.parse().ok())
        .expect("the child");
    // The child recorded before and after it replaced itself.
    let processes: Vec<u32> = run.processes.iter().map(|process| process.process).collect();
    assert_eq!(
        processes.iter().filter(|process| **process == child).count(),
        2,
        "{processes:?}"
    );
    assert_eq!(processes.len(), 3, "{processes:?}");
    run.processes.iter().for_each(check_kinds);

    // A child that does not replace itself does not write to its parent's log.
    let run = place.run("forked", "dlsym", "forked", &[]);
    let parent = run
        .succeeded()
        .processes
        .iter()
        .find(|process| process.summary.allocations > 0);
    let parent = parent.expect("the parent");
    // The calls of the child failed, and are in its own log.
    assert_eq!(run.processes.len(), 2);
    assert_eq!(parent.summary.allocations, 16);
    let threads: BTreeSet<u32> = parent
        .rows
        .iter()
        .filter(|row| row.kind == Kind::Alloc)
        .map(|row| row.thread)
        .collect();
    assert_eq!(threads.into_iter().collect::<Vec<_>>(), [parent.process]);
}

#[test]
fn events_of_threads_are_complete_and_in_order() {
    let Some(place) = place() else { return };
    let run = place.run("threads", "dlsym", "threads", &[]);
    let process = run.succeeded().only();
    assert_eq!(
        (
            process.summary.allocations,
            process.summary.frees,
            process.summary.lost
        ),
        (8000, 8000, 0)
    );
    assert!(process.left().is_empty());
    let threads: BTreeSet<u32> = process
        .rows
        .iter()
        .filter(|row| row.kind == Kind::Alloc)
        .map(|row| row.thread)
        .collect();
    assert_eq!(threads.len(), 4);
    assert!(process.rows.is_sorted_by_key(|row| row.time));
}

#[test]
fn a_captured_allocation_is_recorded_as_a_node_and_not_as_a_block() {
    let Some(place) = place() else { return };
    let run = place.run("capture", "lookup", "capture", &[]);
    let process = run.succeeded().only();
    assert_eq!((process.summary.allocations, process.summary.nodes), (1, 1));
    // The driver refused the free of the block that was allocated before.
    assert_eq!((process.left(), process.summary.frees), (vec![MIB], 0));
    // The driver reserves memory for the graph when the graph runs.
    let reserved: u64 = process
        .rows
        .iter()
        .filter(|row| row.kind == Kind::Reserve)
        .map(|row| row.bytes)
        .sum();
    assert!(reserved >= 9 * MIB, "{reserved}");
}

#[test]
fn allocations_by_graph_nodes_of_any_type_are_recorded() {
    let Some(place) = place() else { return };
    for way in ["dlsym", "lookup"] {
        let run = place.run(&format!("node-{way}"), way, "node", &[]);
        let process = run.succeeded().only();
        assert_eq!(
            (process.summary.allocations, process.summary.nodes),
            (0, 2),
            "{way}"
        );
        let reserved = process.rows.iter().filter(|row| row.kind == Kind::Reserve);
        let reserved: u64 = reserved.map(|row| row.bytes).sum();
        assert!(reserved >= 13 * MIB, "{way}: {reserved}");
    }
}

#[test]
fn a_context_that_ends_frees_its_memory() {
    let Some(place) = place() else { return };
    let run = place.run("reset", "dlsym", "reset", &[]);
    let process = run.succeeded().only();
    assert_eq!(process.left(), [] as [u64; 0]);
    assert_eq!(process.summary.frees, 8);
}

#[test]
fn a_limit_reduces_the_memory_of_the_device() {
    let Some(place) = place() else { return };
    let limit = (64 * MIB).to_string();
    let run = place.run("limit", "linked", "limit", &[(variable::LIMIT, &limit)]);
    let size = 64 * MIB;
    let expected = format!("free {size} total {size} device {size} fit 64 result 2\nleft 0\n");
    assert_eq!(run.succeeded().printed(), expected);
    assert_eq!((run.only().summary.refused, run.only().summary.limited), (1, 1));
    assert_eq!(run.only().summary.peak, size);

    // A context takes its part of the device.
    let context = (4 * MIB).to_string();
    let run = place.run(
        "context",
        "lookup",
        "limit",
        &[(variable::LIMIT, &limit), (variable::CONTEXT, &context)],
    );
    let free = 60 * MIB;
    let expected = format!("free {free} total {size} device {size} fit 60 result 2\nleft 0\n");
    assert_eq!(run.succeeded().printed(), expected);

    // A pool counts with its reserved bytes, in steps of 32 MiB.
    let run = place.run("pool", "dlsym", "pool", &[(variable::LIMIT, &limit)]);
    assert_eq!(run.succeeded().printed(), "fit 64 result 2\n");
    let uneven = (50 * MIB).to_string();
    let run = place.run("uneven", "dlsym", "pool", &[(variable::LIMIT, &uneven)]);
    assert_eq!(run.succeeded().printed(), "fit 32 result 2\n");
}

#[test]
fn lookups_of_other_symbols_are_not_changed() {
    let Some(place) = place() else { return };
    let run = place.run("next", "dlsym", "next", &[]);
    assert_eq!(run.succeeded().printed(), "next 1\nmissing 1\n");
}

#[test]
fn a_process_without_the_driver_has_no_log() {
    let Some(place) = place() else { return };
    let mut command = Command::new("sh");
    command.args(["-c", "echo run"]);
    let run = place.record("shell", command, &[]);
    assert_eq!(
        (run.succeeded().printed().as_str(), run.processes.len()),
        ("run\n", 0)
    );
}

#[test]
fn the_use_of_a_device_is_measured_only_one_time() {
    let Some(place) = place() else { return };
    let run = place.run("measured", "dlsym", "kinds", &[(variable::FRAMES, "0")]);
    let process = run.succeeded().only();
    let gauges: Vec<_> = process
        .rows
        .iter()
        .filter(|row| row.kind == Kind::Gauge)
        .map(|row| row.tag)
        .collect();
    assert_eq!(gauges, [Gauge::DeviceUsed as u32, Gauge::DeviceTotal as u32]);
    // Without stacks there are no owners.
    check_kinds(process);
    assert!(
        process
            .rows
            .iter()
            .all(|row| row.kind == Kind::Gauge || row.tag == 0 && row.stack == 0)
    );
}

#[test]
fn the_client_of_the_cost_example_runs_on_the_empty_driver() {
    let Some(place) = place() else { return };
    let driver = place.folder.join("empty");
    let driver = driver.to_str().expect("UTF-8");
    let run = place.run("cost", "dlsym", "time", &[("LD_LIBRARY_PATH", driver)]);
    let time: f64 = run.succeeded().printed().trim().parse().expect("a number");
    assert!(time > 0.0);
}

#[test]
fn a_driver_may_return_other_addresses_than_its_symbols() {
    let Some(place) = place() else { return };
    let driver = place.folder.join("empty");
    let driver = driver.to_str().expect("UTF-8");
    let run = place.run(
        "empty-driver",
        "lookup",
        "threads",
        &[("LD_LIBRARY_PATH", driver)],
    );
    let process = run.succeeded().only();
    assert_eq!((process.summary.allocations, process.summary.frees), (8000, 8000));
}
