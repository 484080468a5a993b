//! Runs every fuzz target for a limited time.

use crate::shell::{Result, files, need_nightly, root, shell, works};
use xshell::cmd;

/// Modules that the targets share. They are not targets.
const SHARED: [&str; 4] = ["check", "file", "rows", "walk"];

pub(crate) fn run(seconds: Option<&str>) -> Result {
    let seconds = seconds.unwrap_or("120");
    if seconds.parse::<u32>().is_err() {
        return Err(format!("'{seconds}' is not a number of seconds").into());
    }
    let sh = &shell()?;
    need_nightly(sh)?;
    if !works("cargo", &["fuzz", "--version"]) {
        cmd!(sh, "cargo install --locked cargo-fuzz").run()?;
    }
    let files = files(sh, &root().join("fuzz/fuzz_targets"), "rs")?;
    let mut targets: Vec<_> = files.iter().filter_map(|file| file.file_stem()).collect();
    // The shared modules are in the same folder.
    targets.retain(|target| SHARED.iter().all(|shared| target != shared));
    for target in &targets {
        // A reader may allocate at most 500 MB at once for any input.
        cmd!(
            sh,
            "cargo +nightly fuzz run {target} -- -max_total_time={seconds} -rss_limit_mb=1500 -malloc_limit_mb=500"
        )
        .run()?;
    }
    println!("\n{} targets, {seconds} s each, nothing found", targets.len());
    Ok(())
}
