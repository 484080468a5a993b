//! Tests `millpond plan`: a step is found, solved, drawn and saved.

mod support;

use millpond_engine::plan::Plan;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use support::{folder, json, run, small, trace};

/// Writes a recording of a repeated step: layers each keep a block and free it in turn.
fn repeating(dir: &Path, steps: u64) -> String {
    let mut csv = String::from("time_us,action,id,bytes,stream,tag\n0,alloc,1,9000000,0,weights\n");
    let mut id = 1;
    for _ in 0..steps {
        let mut kept = Vec::new();
        for layer in 0..100u64 {
            let (scratch, block) = (id + 1, id + 2);
            let bytes = 256 * (1 + layer % 7);
            let _ = write!(
                csv,
                "0,alloc,{scratch},4096,0,s\n0,alloc,{block},{bytes},0,a\n0,free,{scratch},4096,0,\n"
            );
            kept.push((block, bytes));
            id += 2;
        }
        for (block, bytes) in kept.into_iter().rev() {
            let _ = writeln!(csv, "0,free,{block},{bytes},0,");
        }
    }
    let path = dir.join("steps.csv");
    std::fs::write(&path, csv).expect("writable");
    path.display().to_string()
}

#[test]
fn a_step_is_found_solved_drawn_and_saved() {
    let dir = folder("plan");
    let file = repeating(&dir, 6);
    let (svg, saved) = (dir.join("step.svg"), dir.join("step.plan"));
    let (svg_name, saved_name) = (svg.display().to_string(), saved.display().to_string());
    let facts = json(&["plan", &file, "--json", "--svg", &svg_name, "--save", &saved_name]);
    let step = &facts["step"];
    assert_eq!((&step["allocations"], &step["steps"]), (&200.into(), &6.into()));
    assert_eq!(step["base_bytes"], 9_000_192);
    assert_eq!(step["plan_bytes"], step["lower_bound_bytes"]);
    assert!(
        std::fs::read_to_string(svg)
            .expect("a picture")
            .starts_with("<svg")
    );
    let plan = Plan::from_text(&std::fs::read_to_string(saved).expect("a plan")).expect("a plan");
    assert_eq!(plan.step.period(), 200);
    let (code, text, _) = run(&["plan", &file]);
    assert_eq!(code, 0);
    assert!(text.contains("lower bound") && text.contains('█'), "{text}");
}

/// A loop that runs after the program held much more memory is not a step, in `plan` and in `report`.
#[test]
fn a_loop_far_below_the_peak_is_reported_as_a_loop() {
    let dir = folder("plan_loop");
    let file = repeating(&dir, 30);
    let (of_steps, _, _) = run(&["report", &file, "--at", "step:2"]);
    assert_eq!(of_steps, 0);
    assert_eq!(json(&["plan", &file, "--json"])["step"]["is_loop"], false);
    let csv = std::fs::read_to_string(&file).expect("written");
    let (head, rest) = csv.split_once('\n').expect("a head");
    let large = "0,alloc,1000000,900000000,0,init\n0,free,1000000,900000000,0,\n";
    let looping = dir.join("loop.csv");
    std::fs::write(&looping, format!("{head}\n{large}{rest}")).expect("writable");
    let looping = looping.display().to_string();
    let step = &json(&["plan", &looping, "--json"])["step"];
    assert_eq!(
        (&step["is_loop"], &step["program_peak_bytes"]),
        (&true.into(), &900_000_000.into())
    );
    let (code, text, _) = run(&["plan", &looping]);
    assert!(
        code == 0 && text.contains("rounds ") && !text.contains("  steps "),
        "{text}"
    );
    let (code, _, stderr) = run(&["report", &looping, "--at", "step:2"]);
    assert!(
        code == 2 && stderr.contains("do not repeat up to its peak"),
        "{stderr}"
    );
}

#[test]
fn the_lack_of_a_repeating_step_is_reported() {
    let dir = folder("plan_none");
    let file = small(&dir, "run.csv");
    assert!(json(&["plan", &file, "--json"])["step"].is_null());
    let (code, text, _) = run(&["plan", &file]);
    assert!(
        code == 0 && text.contains("No repeating step was found"),
        "{text}"
    );
}

#[test]
fn the_replay_shows_what_each_step_cost() {
    let dir = folder("plan_replay");
    let file = repeating(&dir, 8);
    let report = json(&["replay", &file, "-p", "planned", "--json"]);
    let result = &report["results"][0];
    let steps = result["steps"].as_array().expect("steps");
    assert!(steps.len() >= 8, "{steps:?}");
    assert!(
        steps[4..].iter().all(|step| step["driver_calls"] == 0),
        "{steps:?}"
    );
    assert_eq!(
        result["plans"][0]["plan_bytes"],
        result["plans"][0]["lower_bound_bytes"]
    );
}

#[test]
fn a_saved_plan_saves_driver_calls_in_the_first_steps() {
    let dir = folder("plan_given");
    let file = repeating(&dir, 8);
    let saved = dir.join("step.plan").display().to_string();
    for _ in 0..2 {
        let (code, _, stderr) = run(&["plan", &file, "--save", &saved]);
        assert_eq!(code, 0, "an older plan is replaced: {stderr}");
    }
    let found = json(&["replay", &file, "-p", "planned", "--json"]);
    let given = json(&["replay", &file, "-p", "planned", "--json", "--plan", &saved]);
    let (found, given) = (&found["results"][0], &given["results"][0]);
    let quiet_from = |result: &Value| {
        let steps = result["steps"].as_array().expect("steps");
        steps
            .iter()
            .rposition(|step| step["driver_calls"] != 0)
            .map_or(0, |last| last + 1)
    };
    assert!(
        quiet_from(given) <= quiet_from(found),
        "{} {}",
        quiet_from(given),
        quiet_from(found)
    );
    assert_eq!(found["plans"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        given["plans"].as_array().map(Vec::len),
        Some(0),
        "nothing is solved"
    );
}

#[test]
fn a_saved_plan_is_followed_in_a_real_program() {
    let saved = folder("plan_real").join("step.plan").display().to_string();
    let file = trace("llama8b_fsdp_streams");
    assert_eq!(run(&["plan", &file, "--save", &saved]).0, 0);
    let found = json(&["replay", &file, "-p", "planned", "--json"]);
    let report = json(&["replay", &file, "-p", "planned", "--json", "--plan", &saved]);
    let result = &report["results"][0];
    assert_eq!(
        result["plans"].as_array().map(Vec::len),
        Some(0),
        "nothing is solved"
    );
    let calls: Vec<&Value> = result["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|step| &step["driver_calls"])
        .collect();
    assert!(
        calls.len() > 4 && calls[3..].iter().all(|calls| **calls == 0),
        "{calls:?}"
    );
    let all = |result: &Value| -> u64 {
        let steps = result["steps"].as_array().expect("steps");
        steps
            .iter()
            .filter_map(|step| step["driver_calls"].as_u64())
            .sum()
    };
    assert!(
        all(result) < all(&found["results"][0]),
        "a saved plan spares calls"
    );
}

#[test]
fn a_plan_that_cannot_be_followed_is_refused() {
    let dir = folder("plan_refused");
    let file = repeating(&dir, 6);
    let write = |name: &str, text: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, text).expect("writable");
        path.display().to_string()
    };
    let saved = dir.join("step.plan").display().to_string();
    assert_eq!(run(&["plan", &file, "--save", &saved]).0, 0);
    let text = std::fs::read_to_string(&saved).expect("a plan");
    let cut = write("cut.plan", &text.as_bytes()[..text.len() - 3]);
    let other = write("other.plan", text.replace("\n4096 0 ", "\n3840 0 ").as_bytes());
    let binary = write("binary.plan", b"\xff\xfe");
    let cases: [(&str, &[&str], &str); 6] = [
        (&file, &[], "not a saved plan"),
        (&binary, &[], "not a saved plan"),
        (&cut, &[], "line 202 of the plan"),
        (&other, &[], "never comes in steps"),
        ("/nowhere/step.plan", &[], "cannot read"),
        (&saved, &["-p", "millpond"], "--policy leaves out"),
    ];
    for (plan, more, expected) in cases {
        let mut args = vec!["replay", file.as_str(), "--plan", plan];
        args.extend(more);
        let (code, stdout, stderr) = run(&args);
        assert_eq!((code, stdout.as_str()), (2, ""), "{plan}");
        assert!(
            stderr.contains(expected) && stderr.lines().count() == 1,
            "{plan}: {stderr}"
        );
    }
}
