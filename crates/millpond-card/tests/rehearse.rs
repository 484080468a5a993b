//! Runs the probes and the runner on the emulated driver, so that errors of their own are found before they run on a card.

use millpond_engine::{Costs, Meter};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn emulator() -> PathBuf {
    let mut folder = std::env::current_exe().expect("a program");
    while folder.pop() {
        let library = folder.join("libmillpond_cuda_emu.so");
        if library.exists() {
            return library;
        }
    }
    panic!("the emulated driver is not built");
}

fn card(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millpond-card"))
        .args(arguments)
        .args(["--driver", &emulator().to_string_lossy()])
        .env("MILLPOND_CUDA_EMU", "streams:threads,memory:80G")
        .output()
        .expect("it starts")
}

fn out(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs steps of a rehearsal. Returns the result and the folder that it is in.
fn rehearse(name: &str, steps: &str) -> (Value, PathBuf) {
    let out = out(name);
    let ran = card(&[
        "run",
        "--rehearse",
        "--quick",
        "--steps",
        steps,
        "--out",
        &out.to_string_lossy(),
    ]);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let text = std::fs::read_to_string(out.join("card.json")).expect("a result");
    (serde_json::from_str(&text).expect("JSON"), out)
}

/// Returns whether the check of this name holds, in whichever step it is.
fn holds(result: &Value, what: &str) -> bool {
    let steps = result["steps"].as_array().expect("steps");
    let mut checks = steps
        .iter()
        .flat_map(|step| step["checks"].as_array().expect("checks"));
    let check = checks.find(|check| check["what"] == what);
    check.unwrap_or_else(|| panic!("there is no check '{what}'"))["holds"] == true
}

#[test]
fn every_probe_comes_to_its_end() {
    let (result, out) = rehearse("card-rehearsal", "1,2,3,4,5,6,7,8,9,10");
    assert_eq!(result["rehearsal"], true);
    assert_eq!(result["device"]["emulated"], true);
    let steps = result["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 10);
    for step in steps {
        assert_eq!(step["outcome"], "done", "{step}");
        let rows = step["tables"].as_array().expect("tables");
        assert!(
            rows.iter()
                .any(|table| table["rows"].as_array().is_some_and(|rows| !rows.is_empty())),
            "{step}"
        );
    }
    for what in [
        "one unmap spans several handles",
        "the comparison finds what differs",
        "contents move with their handle",
        "two mappings of a handle are one memory in stream order",
        "two mappings of a handle are one memory across ordered streams",
        "the first end ends a capture, whatever it answers",
        "addresses that are not there are refused, so that less can be asked for",
        "the driver loads the PTX and finds every kernel",
        "an illegal address answers 700 at the next wait",
    ] {
        assert!(holds(&result, what), "{what}");
    }
    let text = std::fs::read_to_string(out.join("card.md")).expect("tables");
    assert!(
        text.contains("A rehearsal on the emulated driver") && text.contains("## What was assumed"),
        "{text}"
    );
    let costs = std::fs::read_to_string(out.join("costs.toml")).expect("costs");
    let costs = Costs::from_toml(&costs).expect("a replay reads them");
    let mut meter = Meter::default();
    meter.calls.create = 1;
    assert!(costs.milliseconds(&meter, 0) > 0.0);
}

#[test]
fn an_emulated_driver_is_refused_outside_a_rehearsal() {
    let out = out("card-refused");
    let out = out.to_string_lossy();
    for arguments in [&["run", "--out", &out][..], &["probe", "mapping"], &["device"]] {
        let ran = card(arguments);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(
            said.contains("is emulated") && said.contains("--rehearse"),
            "{said}"
        );
    }
}

#[test]
fn a_driver_that_fails_does_not_stop_the_other_steps() {
    let out = out("card-failing");
    let ran = Command::new(env!("CARGO_BIN_EXE_millpond-card"))
        .args([
            "run",
            "--rehearse",
            "--quick",
            "--steps",
            "1,5",
            "--out",
            &out.to_string_lossy(),
        ])
        .args(["--driver", &emulator().to_string_lossy()])
        .env("MILLPOND_CUDA_EMU", "fail:cuMemMap")
        .output()
        .expect("it starts");
    assert_eq!(ran.status.code(), Some(1));
    let text = std::fs::read_to_string(out.join("card.json")).expect("a result");
    let result: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(result["steps"][0]["outcome"], "FAILED");
    assert!(
        result["steps"][0]["troubles"]
            .to_string()
            .contains("cuMemMap answered 2"),
        "{result}"
    );
    assert_eq!(result["steps"][1]["outcome"], "done");
}
