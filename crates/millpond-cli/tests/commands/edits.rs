//! Tests changes of the recorded program: those that are proposed, and those that users name.

use crate::support::{folder, json, json_with, run};
use serde_json::Value;

/// Writes a recording of two training steps: a parameter, two layers, logits and their gradients.
fn training(name: &str) -> String {
    let mut csv = String::from("time_us,action,id,bytes,stream,tag\n0,alloc,1,4194304,0,init;;empty\n");
    let mib = |count: u64| count << 20;
    for id in [10, 20] {
        for (action, number, bytes, tag) in [
            ("alloc", 1, mib(64), "forward;layers.0;mm"),
            ("alloc", 2, mib(8), "forward;layers.0;add"),
            ("alloc", 7, mib(64), "forward;layers.1;mm"),
            ("alloc", 8, mib(8), "forward;layers.1;add"),
            ("alloc", 3, mib(288), "forward;head;mm"),
            ("alloc", 4, mib(288), "backward;head;mm"),
            ("free", 3, mib(288), ""),
            ("free", 4, mib(288), ""),
            ("alloc", 9, mib(64), "backward;layers.1;mm"),
            ("free", 7, mib(64), ""),
            ("free", 8, mib(8), ""),
            ("alloc", 5, mib(64), "backward;layers.0;mm"),
            ("free", 9, mib(64), ""),
            ("free", 1, mib(64), ""),
            ("free", 2, mib(8), ""),
            ("free", 5, mib(64), ""),
            ("alloc", 6, mib(1), "optimizer;;work"),
            ("free", 6, mib(1), ""),
        ] {
            csv.push_str(&format!("{id},{action},{},{bytes},0,{tag}\n", id + number));
        }
    }
    let path = folder(name).join("run.csv");
    std::fs::write(&path, csv).expect("written");
    path.display().to_string()
}

#[test]
fn tune_proposes_changes_of_the_program_that_replay_confirms() {
    let file = training("tune_proposals");
    let tuned = json(&["tune", &file, "--json", "--policy", "torch"]);
    let proposals = tuned["proposals"].as_array().expect("a list");
    let edits: Vec<&str> = proposals
        .iter()
        .filter_map(|proposal| proposal["edits"][0]["edit"].as_str())
        .collect();
    assert!(edits.contains(&"scale=0.5"), "{edits:?}");
    assert!(
        edits
            .iter()
            .any(|edit| edit.starts_with("chunk=") && edit.contains("head")),
        "{edits:?}"
    );
    assert!(edits.contains(&"recompute=layers.*"), "{edits:?}");
    for proposal in proposals {
        let edit = proposal["edits"][0]["edit"].as_str().expect("an edit");
        assert_eq!(proposal["edits"].as_array().map(Vec::len), Some(1));
        let policy = proposal["policy"].as_str().expect("a policy");
        let replayed = json(&[
            "replay", &file, "--json", "--fit", "--policy", policy, "--edit", edit,
        ]);
        assert_eq!(
            replayed["results"][0]["smallest_device_bytes"], proposal["needs_bytes"],
            "{edit}"
        );
        assert_eq!(replayed["edits"][0]["edit"].as_str(), Some(edit));
        assert!(
            proposal["needs_bytes"].as_u64().expect("bytes") * 100
                <= proposal["unchanged_bytes"].as_u64().expect("bytes") * 98
        );
    }
    let (code, stdout, _) = run(&["tune", &file]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("--edit 'scale=0.5'") && stdout.contains("the batch times 0.5"),
        "{stdout}"
    );
}

/// Each change alone leaves the program too large for the device.
#[test]
fn two_changes_are_tried_together_if_one_is_not_enough() {
    let file = training("two_changes");
    let policy = ["--policy", "torch"];
    let alone = json(&[&["tune", &file, "--json"][..], &policy].concat());
    let least = alone["proposals"][0]["best_needs_bytes"].as_u64().expect("bytes");
    let device = format!("{}MiB", (least >> 20) - 2);
    let on_device = ["--device", &device];
    // No setting makes it fit.
    let tuned = json_with(3, &[&["tune", &file, "--json"][..], &policy, &on_device].concat());
    let best = &tuned["proposals"][0];
    assert_eq!(best["fits"], true, "{best}");
    let edits: Vec<&str> = best["edits"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|edit| edit["edit"].as_str())
        .collect();
    assert_eq!(edits.len(), 2, "{best}");
    let flags = ["--edit", edits[0], "--edit", edits[1]];

    // Both commands print the flags, and the replay with them finishes.
    let printed = format!("--edit '{}' --edit '{}'", edits[0], edits[1]);
    let (_, stdout, _) = run(&[&["tune", &file][..], &policy, &on_device].concat());
    assert!(
        stdout
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .contains(&printed),
        "{stdout}"
    );
    let own = ["replay", &file, "-p", "torch-native"];
    let failed = json_with(3, &[&own[..], &on_device, &["--json"]].concat());
    let remedy = &failed["out_of_memory"]["remedies"][0];
    assert_eq!(remedy["edits"].as_array().map(Vec::len), Some(2), "{remedy}");
    let (code, stdout, _) = run(&[&own[..], &on_device, &flags].concat());
    assert_eq!(code, 0, "{stdout}");
}

/// The program holds more than the device has, so only a change of the program helps.
#[test]
fn changes_of_the_program_that_serve_a_refused_request_finish_on_the_device() {
    let file = training("oom_changes");
    let peak = &json(&["replay", &file, "--json", "-p", "torch-native"])["peak_requested_bytes"];
    let device = format!("{}MiB", (peak.as_u64().expect("bytes") >> 20) * 9 / 10);
    let on_device = |args: &[&str]| {
        let all = [
            "replay",
            &file,
            "--json",
            "-p",
            "torch-native",
            "--device",
            &device,
        ];
        let (_, stdout, stderr) = run(&[&all, args].concat());
        serde_json::from_str::<Value>(&stdout).unwrap_or_else(|_| panic!("{stderr}"))
    };
    let failed = on_device(&[]);
    let told = &failed["out_of_memory"];
    assert_eq!(told["cause"], "nothing_free");
    let remedies = told["remedies"].as_array().expect("a list");
    assert!(!remedies.is_empty());
    for remedy in remedies {
        assert_eq!(remedy["kind"], "change", "no allocator can help: {remedy}");
        let edit = remedy["edits"][0].as_str().expect("an edit");
        let changed = on_device(&["--edit", edit]);
        assert!(changed["results"][0]["first_failure"].is_null(), "{edit}");
        assert_eq!(
            changed["results"][0]["peak_reserved_bytes"],
            remedy["peak_reserved_bytes"]
        );
    }
    let (_, stdout, _) = run(&["replay", &file, "--device", &device]);
    let flat = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let best = remedies[0]["text"].as_str().expect("words");
    assert!(
        flat.contains(&format!("With {best}, the program finishes.")),
        "{stdout}"
    );
}

#[test]
fn edits_report_their_assumptions_and_are_refused_in_one_line() {
    let file = training("edits_told");
    let (code, stdout, _) = run(&[
        "replay",
        &file,
        "-p",
        "none",
        "--edit",
        "recompute=layers.*",
        "--edit",
        "scale=0.5",
    ]);
    assert_eq!(code, 0);
    assert!(
        stdout.starts_with("edited: recompute=layers.*: 4 blocks changed"),
        "{stdout}"
    );
    assert!(
        stdout.contains("edited: scale=0.5:") && stdout.contains("keep their sizes"),
        "{stdout}"
    );
    for (edit, why) in [
        ("recompute=layer", "'forward; layers.*; mm'"),
        ("offload=init", "cannot be applied"),
        ("half", "is not an edit"),
    ] {
        let (code, _, stderr) = run(&["replay", &file, "--edit", edit]);
        assert_eq!(code, 2, "{stderr}");
        assert!(
            stderr.contains(why) && stderr.trim().lines().count() == 1,
            "{stderr}"
        );
    }
    let (code, _, stderr) = run(&["replay", &file, "--source", "host", "--edit", "scale=0.5"]);
    assert_eq!(code, 2, "{stderr}");
}
