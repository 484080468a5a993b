//! Runs every fuzz target for a limited time.

use crate::shell::{root, step, works};

/// Modules that the targets share. They are not targets.
const SHARED: [&str; 4] = ["check.rs", "file.rs", "rows.rs", "walk.rs"];

pub(crate) fn run(seconds: Option<&str>) -> Result<(), String> {
    let seconds: u32 = match seconds {
        None => 120,
        Some(text) => text
            .parse()
            .map_err(|_| format!("'{text}' is no number of seconds"))?,
    };
    if !works("cargo", &["+nightly", "--version"]) {
        step(
            "rustup",
            &["toolchain", "install", "nightly", "--profile", "minimal"],
        )?;
    }
    if !works("cargo", &["fuzz", "--version"]) {
        step("cargo", &["install", "--locked", "cargo-fuzz"])?;
    }
    let folder = root().join("fuzz").join("fuzz_targets");
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut targets: Vec<String> = entries
        .filter_map(Result::ok)
        // The shared modules are in the same folder.
        .filter(|entry| SHARED.iter().all(|shared| entry.file_name() != *shared))
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned))
        .collect();
    targets.sort();
    for target in &targets {
        let limit = format!("-max_total_time={seconds}");
        // A reader may allocate at most 500 MB at once for any input.
        step(
            "cargo",
            &[
                "+nightly",
                "fuzz",
                "run",
                target,
                "--",
                &limit,
                "-rss_limit_mb=1500",
                "-malloc_limit_mb=500",
            ],
        )?;
    }
    println!("\n{} targets, {seconds} s each, nothing found", targets.len());
    Ok(())
}
