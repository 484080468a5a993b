//! The command's benches and replays, and PyTorch's allocator beside ours.

use super::Session;
use super::child::Program;
use super::report::Step;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The recordings that are replayed.
const RECORDINGS: [&str; 2] = ["gnn_sage_sampled", "llama8b_fsdp_streams"];
const POLICIES: &str = "millpond,planned,torch-native,torch-expandable";

const COMMAND: &str = "millpond";

fn millpond(session: &Session, name: &str, seconds: u64) -> Program {
    Program::new(session, COMMAND, name, seconds)
        .env("COLUMNS", "120")
        .env("NO_COLOR", "1")
}

/// Runs a bench and keeps what it printed.
fn bench(session: &Session, step: &mut Step, what: &str, more: &[&str], seconds: u64) -> Option<String> {
    if !session.folder.join(COMMAND).exists() {
        step.note(&format!("{COMMAND} is not carried, so there is no bench {what}"));
        return None;
    }
    let name = format!("bench-{what}");
    let program = millpond(session, &name, seconds)
        .args(["bench", what])
        .args(more.iter().copied());
    let ran = match program.run(session) {
        Ok(ran) => ran,
        Err(why) => {
            step.trouble(why);
            return None;
        }
    };
    if let Some(trouble) = ran.trouble() {
        step.trouble(format!("bench {what}: {trouble}"));
    }
    step.file(&format!("{name}.txt"), &ran.out);
    Some(ran.out)
}

pub(super) fn bench_alloc(session: &Session, step: &mut Step, seconds: u64) {
    let rounds: &[&str] = if session.quick { &["--rounds", "1"] } else { &[] };
    bench(session, step, "alloc", rounds, seconds);
}

pub(super) fn bench_transfer(session: &Session, step: &mut Step, seconds: u64) {
    let more: &[&str] = if session.quick { &["--quick"] } else { &[] };
    bench(session, step, "transfer", more, seconds);
}

pub(super) fn bench_driver(session: &Session, step: &mut Step, seconds: u64) {
    let rounds: &[&str] = if session.quick { &["--rounds", "1"] } else { &[] };
    bench(session, step, "driver", rounds, seconds);
}

pub(super) fn bench_kernels(session: &Session, step: &mut Step, seconds: u64) {
    let rounds: &[&str] = if session.quick { &["--rounds", "1"] } else { &[] };
    bench(session, step, "kernels", rounds, seconds);
}

const REPLAYS: &str = "Recordings on the device";

/// Replays recordings on the device with their contents written and compared.
pub(super) fn replays(session: &Session, step: &mut Step, seconds: u64) {
    step.table(
        REPLAYS,
        &[
            "recording",
            "policy",
            "peak, bytes",
            "simulated, bytes",
            "difference",
            "same calls",
            "blocks compared",
            "wrong",
            "driver, ms",
            "modelled, ms",
        ],
    );
    let mut wrong = 0;
    let mut compared = 0;
    let mut different = Vec::new();
    for name in &RECORDINGS[..if session.quick { 1 } else { 2 }] {
        let Some(path) = recording(session, name) else {
            step.note(&format!("{name} is not carried, so not replayed"));
            continue;
        };
        let path = path.to_string_lossy();
        let program = millpond(session, &format!("replay-{name}"), seconds).args([
            "replay", &path, "--source", "cuda:0", "--check", "--json", "-p", POLICIES,
        ]);
        let ran = match program.run(session) {
            Ok(ran) => ran,
            Err(why) => return step.trouble(why),
        };
        if let Some(trouble) = ran.trouble() {
            step.trouble(format!("replay of {name}: {trouble}"));
        }
        let Ok(facts) = serde_json::from_str::<Value>(&ran.out) else {
            continue;
        };
        for run in facts["source"]["runs"].as_array().into_iter().flatten() {
            let check = &run["check"];
            wrong += check["wrong"].as_u64().unwrap_or(0);
            compared += check["blocks"].as_u64().unwrap_or(0);
            if run["difference_bytes"] != 0 {
                different.push(format!("{name} with {}", run["policy"]));
            }
            let of = |key: &str| run[key].clone();
            step.row(
                REPLAYS,
                vec![
                    json!(name),
                    of("policy"),
                    of("peak_reserved_bytes"),
                    of("simulated_peak_reserved_bytes"),
                    of("difference_bytes"),
                    of("same_calls"),
                    check["blocks"].clone(),
                    check["wrong"].clone(),
                    of("driver_ms"),
                    of("modelled_driver_ms"),
                ],
            );
        }
        step.answer(&format!("replay of {name}"), facts);
    }
    step.check(
        "every block has what was written into it",
        wrong == 0 && compared > 0,
        format!("{wrong} of {compared} blocks were wrong"),
    );
    step.check(
        "the device gives what the simulation reserves",
        different.is_empty(),
        if different.is_empty() {
            "no difference".to_owned()
        } else {
            different.join(", ")
        },
    );
}

fn recording(session: &Session, name: &str) -> Option<PathBuf> {
    let path = session.folder.join("traces").join(format!("{name}.csv.zst"));
    path.exists().then_some(path)
}

const TORCH: &str = "PyTorch's allocator";

/// The same recordings by PyTorch's own allocator, where the machine has PyTorch with a device.
pub(super) fn torch(session: &Session, step: &mut Step, seconds: u64) {
    let script = session.folder.join("torch_replay.py");
    if !script.exists() || !session.folder.join(COMMAND).exists() {
        return step.note("PyTorch's replay is not carried");
    }
    let script = script.to_string_lossy();
    let has = Program::new(session, "python3", "torch-version", 60)
        .args([
            "-c",
            "import torch; assert torch.cuda.is_available(); print(torch.__version__)",
        ])
        .run(session);
    match has {
        Ok(ran) if ran.trouble().is_none() => step.note(&format!("PyTorch {}", ran.out.trim())),
        _ => return step.note("there is no PyTorch with a device on this machine"),
    }
    step.table(
        TORCH,
        &[
            "recording",
            "settings",
            "peak reserved, bytes",
            "peak allocated, bytes",
            "ms of host time",
        ],
    );
    for name in &RECORDINGS[..if session.quick { 1 } else { 2 }] {
        let Some(path) = recording(session, name) else {
            continue;
        };
        let csv = session.out.join(format!("{name}.csv"));
        let (path, csv) = (path.to_string_lossy(), csv.to_string_lossy());
        let converted = millpond(session, &format!("convert-{name}"), seconds)
            .args(["convert", &path, &csv])
            .run(session);
        match converted.map(|ran| ran.trouble()) {
            Ok(None) => {}
            Ok(Some(why)) | Err(why) => return step.trouble(format!("convert: {why}")),
        }
        for settings in ["", "expandable_segments:True"] {
            let ran = Program::new(session, "python3", &format!("torch-{name}"), seconds)
                .args([script.as_ref(), csv.as_ref()])
                .env("PYTORCH_CUDA_ALLOC_CONF", settings)
                .env("PYTORCH_ALLOC_CONF", settings)
                .run(session);
            let ran = match ran {
                Ok(ran) => ran,
                Err(why) => return step.trouble(why),
            };
            match (ran.trouble(), serde_json::from_str::<Value>(&ran.out)) {
                (None, Ok(facts)) => step.row(
                    TORCH,
                    vec![
                        json!(name),
                        json!(if settings.is_empty() {
                            "as it comes"
                        } else {
                            settings
                        }),
                        facts["peak_reserved"].clone(),
                        facts["peak_allocated"].clone(),
                        facts["ms"].clone(),
                    ],
                ),
                (trouble, _) => step.trouble(format!("PyTorch: {}", trouble.unwrap_or(ran.out))),
            }
        }
        let _ = std::fs::remove_file(Path::new(csv.as_ref()));
    }
}

/// A library of CUDA's that the folder carries, or that the machine has with its toolkit or its Python packages.
pub(super) fn machine_library(session: &Session, name: &str) -> Option<PathBuf> {
    let mut folders = vec![session.folder.join("lib"), PathBuf::from("/usr/local/cuda/lib64")];
    let asked = Program::new(session, "python3", "python-folders", 20)
        .args(["-c", "import sys; print('\\n'.join(sys.path))"])
        .run(session);
    let packages = asked.map(|ran| ran.out).unwrap_or_default();
    for package in packages.lines().map(|line| Path::new(line).join("nvidia")) {
        let libraries = std::fs::read_dir(package).into_iter().flatten().flatten();
        folders.extend(libraries.map(|library| library.path().join("lib")));
    }
    let mut found: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|file| file.path())
        .filter(|path| {
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
            // Such as libnvrtc.so.12, and not libnvrtc-builtins.so.12.1.
            file.is_some_and(|file| file.starts_with(&format!("{name}.")))
        })
        .collect();
    found.sort();
    found.pop()
}
