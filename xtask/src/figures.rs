//! Measures the tables on which the project's claims are based.

use crate::shell::{Result, files, root, shell, target};
use std::path::PathBuf;
use xshell::{Shell, cmd};

pub(crate) fn run(folder: Option<&str>) -> Result {
    let sh = &shell()?;
    let shared = root().join("../shared/traces");
    let folder = match folder {
        Some(folder) => PathBuf::from(folder),
        None if shared.is_dir() => shared,
        None => root().join("traces"),
    };
    let recordings = &files(sh, &folder, "zst")?;
    let random = files(sh, &folder.join("random"), "zst").unwrap_or_default();
    let snapshots = &files(sh, &folder.join("snapshots"), "pickle").unwrap_or_default();

    let policies = "torch-native,torch-expandable,millpond";
    cmd!(
        sh,
        "cargo run --release --quiet -- replay --quiet --fit --policy {policies} {recordings...} {random...}"
    )
    .run()?;
    on_a_device(sh, recordings)?;
    if !snapshots.is_empty() {
        for (package, example) in [
            ("millpond-replay", "agreement"),
            ("millpond-trace", "pickle_speed"),
        ] {
            cmd!(
                sh,
                "cargo run --release --quiet -p {package} --example {example} -- {snapshots...}"
            )
            .run()?;
        }
    }
    for table in ["speed", "placement"] {
        cmd!(
            sh,
            "cargo run --release --quiet -p millpond-bench --bin {table} -- {folder}"
        )
        .run()?;
    }
    Ok(())
}

/// Replays the same recordings on the emulated driver. The code that runs on a card reserves, maps and moves pages, and the result
/// is compared with the simulation to the byte.
fn on_a_device(sh: &Shell, recordings: &[PathBuf]) -> Result {
    cmd!(
        sh,
        "cargo build --release --quiet -p millpond-cuda-emu -p millpond-cli --features millpond-cli/bench"
    )
    .run()?;
    let program = target().join("release").join("millpond");
    let policies = "millpond,planned,torch-native,torch-expandable";
    cmd!(
        sh,
        "{program} cuda-emu -- {program} replay --quiet --source cuda:0 --policy {policies} {recordings...}"
    )
    .run()?;
    // Only the counts and the claims of this bench are meaningful here, because its times are those of the emulator.
    cmd!(sh, "{program} cuda-emu -- {program} bench alloc --rounds 5").run()?;
    Ok(())
}
