//! `millpond plan`: a step found, solved, drawn and saved.

mod support;

use millpond_engine::plan::Plan;
use std::fmt::Write;
use std::path::Path;
use support::{folder, json, run, small};

/// A recording of a step that repeats: layers that keep a block each, and give them back in turn.
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

#[test]
fn a_program_without_a_step_is_told_so() {
    let dir = folder("plan_none");
    let file = small(&dir, "run.csv");
    assert!(json(&["plan", &file, "--json"])["step"].is_null());
    let (code, text, _) = run(&["plan", &file]);
    assert!(code == 0 && text.contains("No step repeats"), "{text}");
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
