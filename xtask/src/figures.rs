//! Measures the tables on which the project's claims are based.

use crate::shell::{root, step, target};
use std::path::PathBuf;

pub(crate) fn run(folder: Option<&str>) -> Result<(), String> {
    let folder = match folder {
        Some(folder) => PathBuf::from(folder),
        None => {
            let shared = root().join("..").join("shared").join("traces");
            if shared.is_dir() {
                shared
            } else {
                root().join("traces")
            }
        }
    };
    let mut recordings = files(&folder, "zst")?;
    recordings.extend(files(&folder.join("random"), "zst").unwrap_or_default());
    let snapshots = files(&folder.join("snapshots"), "pickle").unwrap_or_default();

    let mut replay = vec!["run", "--release", "--quiet", "--", "replay", "--quiet", "--fit"];
    replay.extend(["--policy", "torch-native,torch-expandable,millpond"]);
    replay.extend(recordings.iter().map(String::as_str));
    step("cargo", &replay)?;
    on_a_device(&files(&folder, "zst")?)?;
    if !snapshots.is_empty() {
        let mut agreement = vec![
            "run",
            "--release",
            "--quiet",
            "-p",
            "millpond-replay",
            "--example",
            "agreement",
            "--",
        ];
        agreement.extend(snapshots.iter().map(String::as_str));
        step("cargo", &agreement)?;
    }
    if !snapshots.is_empty() {
        let mut pickles = vec![
            "run",
            "--release",
            "--quiet",
            "-p",
            "millpond-trace",
            "--example",
            "pickle_speed",
            "--",
        ];
        pickles.extend(snapshots.iter().map(String::as_str));
        step("cargo", &pickles)?;
    }
    let folder = folder.to_str().ok_or("the folder's name is not UTF-8")?;
    for table in ["speed", "placement"] {
        step(
            "cargo",
            &[
                "run",
                "--release",
                "--quiet",
                "-p",
                "millpond-bench",
                "--bin",
                table,
                "--",
                folder,
            ],
        )?;
    }
    Ok(())
}

/// Replays the same recordings on the emulated driver. The code that runs on a card reserves, maps and moves pages, and the result
/// is compared with the simulation to the byte.
fn on_a_device(recordings: &[String]) -> Result<(), String> {
    let build = [
        "build",
        "--release",
        "--quiet",
        "-p",
        "millpond-cuda-emu",
        "-p",
        "millpond-cli",
        "--features",
        "millpond-cli/bench",
    ];
    step("cargo", &build)?;
    let program = target().join("release").join("millpond");
    let program = program.to_str().ok_or("the program's name is not UTF-8")?;
    let mut replay = vec![
        "cuda-emu", "--", program, "replay", "--quiet", "--source", "cuda:0",
    ];
    replay.extend(["--policy", "millpond,planned,torch-native,torch-expandable"]);
    replay.extend(recordings.iter().map(String::as_str));
    step(program, &replay)?;
    // Only the counts and the claims of this bench are meaningful here, because its times are those of the emulator.
    step(
        program,
        &["cuda-emu", "--", program, "bench", "alloc", "--rounds", "5"],
    )
}

fn files(folder: &std::path::Path, extension: &str) -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found: Vec<String> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .filter_map(|path| path.to_str().map(str::to_owned))
        .collect();
    found.sort();
    Ok(found)
}
