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
fn every_probe_runs_to_completion() {
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
        "the comparison finds every difference",
        "contents move with their handle",
        "two mappings of a handle are one memory in stream order",
        "two mappings of a handle are one memory across ordered streams",
        "the first end ends a capture, whatever it returns",
        "a request for more addresses than exist is refused, so that a smaller one can follow",
        "the driver loads the PTX and finds every kernel",
        "an illegal address returns 700 at the next wait",
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

/// The tables whose answers are compared, and the column of the answers. Without a column, all cells are compared.
const ANSWERS: [(&str, Option<&str>); 7] = [
    ("Mapping", Some("answer")),
    ("Calls during the capture of another stream", None),
    ("Ends of a capture", None),
    ("Registered memory", None),
    ("Calls while a kernel runs", Some("answer")),
    ("Limits of the driver's pools", None),
    ("After an illegal address", Some("answer")),
];
/// The emulated driver refuses to unmap what is not mapped. The card's driver accepts it silently, which would hide mistakes.
const STRICTER: [&str; 1] = ["unmap four handles again"];

/// Returns the cells of a table in Markdown, with the columns as the first row.
fn table(text: &str, name: &str) -> Vec<Vec<String>> {
    let (_, rest) = text
        .split_once(&format!("### {name}\n"))
        .unwrap_or_else(|| panic!("there is no table '{name}'"));
    let lines = rest.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let inside = line.trim_matches('|').split('|');
        inside.map(|cell| cell.trim().to_owned()).collect()
    };
    rows.enumerate()
        .filter(|(number, _)| *number != 1)
        .map(|(_, line)| cells(line))
        .collect()
}

/// The emulated driver returns the same answers as a card's driver. `docs/measured` contains the card's answers as printed.
#[test]
fn the_emulated_driver_returns_the_answers_of_a_card() {
    let measured = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measured/h200.md");
    let measured = std::fs::read_to_string(measured).expect("the measured tables");
    let (_, out) = rehearse("card-compared", "1,3,4,5,6,8,10");
    let emulated = std::fs::read_to_string(out.join("card.md")).expect("tables");
    let mut different = Vec::new();
    for (name, column) in ANSWERS {
        let [real, ours] = [&measured, &emulated].map(|text| table(text, name));
        assert!(real.len() > 2 && real.len() == ours.len(), "{name}");
        let columns = &real[0];
        for (real, ours) in real.iter().zip(&ours).skip(1) {
            if STRICTER.contains(&real[0].as_str()) {
                continue;
            }
            for ((column_of, real_cell), our_cell) in columns.iter().zip(real).zip(ours) {
                if column.is_none_or(|column| column == column_of) && real_cell != our_cell {
                    different.push(format!(
                        "{name}, {}, {column_of}: the card {real_cell}, emulated {our_cell}",
                        real[0]
                    ));
                }
            }
            // A call that waits for the kernel on the card waits for it here too.
            if real.last().is_some_and(|state| state == "is over") {
                assert_eq!(ours.last(), real.last(), "{name}, {}", real[0]);
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
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
            .contains("cuMemMap returned 2"),
        "{result}"
    );
    assert_eq!(result["steps"][1]["outcome"], "done");
}
