//! Tests the report as JSON.

use crate::support::{folder, json, run, small, trace};
use serde_json::Value;

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

fn sorted<const N: usize>(mut keys: [&'static str; N]) -> Vec<&'static str> {
    keys.sort_unstable();
    keys.to_vec()
}

#[test]
fn the_json_has_exactly_these_keys() {
    let file = small(&folder("keys"), "run.csv");
    let (code, stdout, _) = run(&[
        "replay",
        &file,
        "--json",
        "--fit",
        "-d",
        "48MiB",
        "-p",
        "torch-native",
    ]);
    assert_eq!(code, 3);
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    let top = sorted([
        "schema",
        "trace",
        "device",
        "events",
        "allocations",
        "initial_blocks",
        "peak_requested_bytes",
        "recorded",
        "settings",
        "edits",
        "cautions",
        "out_of_memory",
        "results",
        "verdict",
    ]);
    assert_eq!(keys(&report), top);
    let result = &report["results"][0];
    let of_result = sorted([
        "policy",
        "conf",
        "fidelity",
        "peak_reserved_bytes",
        "peak_allocated_bytes",
        "overhead",
        "hit_rate",
        "smallest_device_bytes",
        "fit",
        "driver_calls",
        "stalls",
        "moved_bytes",
        "handle_operations",
        "cross_stream_waits",
        "modelled_driver_ms",
        "ns_per_event",
        "steps",
        "plans",
        "first_failure",
    ]);
    assert_eq!(keys(result), of_result);
    let of_fit = sorted([
        "stalls",
        "stalls_per_allocation",
        "modelled_driver_ms",
        "moved_bytes",
    ]);
    assert_eq!(keys(&result["fit"]), of_fit);
    let of_calls = sorted([
        "malloc",
        "free",
        "create",
        "map",
        "set_access",
        "unmap",
        "release",
        "reserve",
        "event_record",
        "event_wait",
    ]);
    assert_eq!(keys(&result["driver_calls"]), of_calls);
    let of_failure = sorted([
        "event",
        "bytes",
        "stream",
        "tag",
        "held_bytes",
        "free_bytes",
        "largest_hole_bytes",
        "reserved_bytes",
        "cached_bytes",
        "holders",
        "cause",
        "why",
    ]);
    assert_eq!(keys(&result["first_failure"]), of_failure);
    assert_eq!(
        keys(&result["first_failure"]["holders"][0]),
        sorted(["tag", "bytes", "blocks", "oldest_us", "oldest_steps"])
    );
    assert_eq!(report["schema"], 2);
    assert_eq!(report["peak_requested_bytes"], 60 << 20);
    assert_eq!(result["first_failure"]["event"], 1);
    assert_eq!(result["first_failure"]["held_bytes"], 30 << 20);
}

/// Returns the figures of one report without those that are measured, and their number.
fn timeless(mut report: Value) -> (Value, usize) {
    fn forget(value: &mut Value) -> usize {
        match value {
            Value::Object(fields) => {
                let measured = ["ns_per_event", "solve_ms", "waited_ms"];
                let removed = measured.iter().filter(|name| fields.remove(**name).is_some());
                removed.count() + fields.values_mut().map(forget).sum::<usize>()
            }
            Value::Array(values) => values.iter_mut().map(forget).sum(),
            _ => 0,
        }
    }
    let removed = forget(&mut report);
    assert!(removed > 0, "{report}");
    (report, removed)
}

#[test]
fn runs_and_threads_change_no_figure() {
    let file = trace("cpu_tiny_gpt_varlen");
    let with = |threads: &str| {
        timeless(json(&[
            "replay",
            &file,
            "--json",
            "--device",
            "160MiB",
            "--threads",
            threads,
        ]))
    };
    let one = with("1");
    assert_eq!(one, with("1"));
    assert_eq!(one, with("4"));
}

#[test]
fn cautions_are_in_the_json() {
    let file = folder("cut").join("run.csv");
    std::fs::write(
        &file,
        "time_us,action,id,bytes,stream,tag\n0,alloc,1,31457280,0,a\n1,free,1,31457280,0,\n2,all",
    )
    .expect("written");
    let report = json(&["replay", &file.display().to_string(), "--json", "-p", "none"]);
    let cautions = report["cautions"].as_array().expect("cautions");
    assert_eq!(cautions.len(), 2, "{cautions:?}");
    assert!(cautions[0].to_string().contains("truncated after"));
    assert!(
        cautions[1]
            .to_string()
            .contains("nothing can be said about the time after")
    );
}
