//! Tests on optional recordings that are stored next to the project.

use millpond_trace::{Action, Caution, ReadOptions, Trace, read, read_bytes, write_csv};
use std::path::PathBuf;

fn shared(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("MILLPOND_SHARED").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")),
        PathBuf::from,
    );
    let path = root.join("traces").join(name);
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
        return None;
    }
    Some(path)
}

/// Returns the most bytes requested at once, and those requested at the end.
fn requested(trace: &Trace) -> (u64, u64) {
    let alive = trace.initial_blocks.iter().filter(|block| !block.pending);
    let mut live: u64 = alive.map(|block| block.requested).sum();
    let mut pending = vec![false; trace.allocations as usize];
    let mut peak = live;
    for event in &trace.events {
        match event.action {
            Action::Alloc => live += event.bytes,
            Action::Free => live -= event.bytes,
            Action::FreeRequested => {
                pending[event.allocation as usize] = true;
                live -= event.bytes;
            }
            Action::FreeCompleted if !pending[event.allocation as usize] => {}
            _ => {}
        }
        peak = peak.max(live);
    }
    (peak, live)
}

#[test]
fn traces_have_the_expected_events_and_peaks() {
    for (name, events, peak) in [
        ("gpt2m_train_amp", 109_898, 17_617_034_216),
        ("llama8b_fsdp_streams", 59_928, 39_375_651_860),
        ("gnn_sage_sampled", 66_496, 1_297_543_656),
        ("cpu_tiny_gpt_varlen", 82_850, 153_098_096),
        ("random/rmm_1MiB_100k", 200_000, 16_777_215_997),
    ] {
        let Some(path) = shared(&format!("{name}.csv.zst")) else {
            continue;
        };
        let recording = read(&path, &ReadOptions::default()).unwrap();
        let trace = &recording.traces[0];
        assert_eq!((trace.events.len(), requested(trace).0), (events, peak), "{name}");
        assert_eq!(trace.cautions, [], "{name}");
        let mut csv = Vec::new();
        write_csv(trace, &mut csv).unwrap();
        let back = read_bytes(&csv, name, &ReadOptions::default())
            .unwrap()
            .traces
            .remove(0);
        assert_eq!((&trace.events, &trace.tags), (&back.events, &back.tags), "{name}");
    }
}

#[test]
fn snapshots_agree_with_their_own_final_state() {
    for (name, initial) in [
        ("gpt_forward_bf16", 137),
        ("gpt_medium_ctx1024_inference", 223),
        ("gpt_medium_ctx128_training", 664),
        ("gpt_medium_ctx512_training", 664),
        ("gpt_small_step", 447),
    ] {
        let Some(path) = shared(&format!("snapshots/{name}.pickle")) else {
            continue;
        };
        let recording = read(&path, &ReadOptions::default()).unwrap();
        let trace = &recording.traces[0];
        assert_eq!(trace.initial_blocks.len(), initial, "{name}");
        let state = recording.states[0].total();
        assert_eq!(requested(trace).1, state.requested_bytes, "{name}");
        assert_eq!(trace.final_reserved_bytes, Some(state.reserved_bytes), "{name}");
        assert!(
            matches!(trace.cautions.as_slice(), [Caution::RingWrapped { .. }]),
            "{name}: {:?}",
            trace.cautions
        );
    }
}

#[test]
fn memory_of_a_backward_pass_is_named_by_its_node() {
    for (name, nodes) in [
        (
            "gpt_medium_ctx512_training",
            ["bwd;MulBackward0;", "bwd;IndexBackward0;"],
        ),
        // Compiled functions have forward lines instead of nodes.
        ("gpt_small_step", ["bwd;MeanBackward0;", "bwd;model.py:forward:"]),
    ] {
        let Some(path) = shared(&format!("snapshots/{name}.pickle")) else {
            continue;
        };
        let recording = read(&path, &ReadOptions::default()).unwrap();
        let trace = &recording.traces[0];
        let of_engine = |tag: &&str| tag.contains("torch::autograd::Engine::evaluate_function");
        let backward: Vec<&str> = trace.tags.iter().filter(of_engine).collect();
        assert!(backward.len() > 20, "{name}: {}", backward.len());
        for tag in &backward {
            let path = tag.strip_prefix("bwd;").and_then(|rest| rest.split(';').next());
            let is_named = path.is_some_and(|path| !path.is_empty() && !path.contains("empty"));
            assert!(is_named, "{name}: {tag}");
        }
        for node in nodes {
            assert!(backward.iter().any(|tag| tag.starts_with(node)), "{name}: {node}");
        }
    }
}

#[test]
fn snapshots_without_history_give_a_state() {
    for (name, pools, pending) in [
        ("opt13b_state_only_old_schema", 2, 0),
        ("rl_private_pools_state_only", 5, 9),
    ] {
        let Some(path) = shared(&format!("snapshots/{name}.pickle")) else {
            continue;
        };
        let recording = read(&path, &ReadOptions::default()).unwrap();
        assert!(recording.traces.is_empty());
        assert_eq!(
            (
                recording.states[0].pools.len(),
                recording.states[0].total().pending_blocks
            ),
            (pools, pending)
        );
    }
}
