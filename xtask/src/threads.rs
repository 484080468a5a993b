//! Runs tests under the thread sanitizer.

use crate::shell::{step, step_with, works};

/// Tests of memory that several threads own. As opposed to Miri, the sanitizer runs real threads and many more rounds.
///
/// The tests of the pool's fast path are left out. The fast path relies on fences, which the sanitizer does not support, so it would
/// report races that do not exist.
const TESTS: &str = "block:: buffer:: storage:: tests:: dlpack:: budget:: ledger:: rental:: workspace::";
const TARGET: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn run() -> Result<(), String> {
    if !works("cargo", &["+nightly", "--version"]) {
        step(
            "rustup",
            &["toolchain", "install", "nightly", "--profile", "minimal"],
        )?;
    }
    step(
        "rustup",
        &["component", "add", "rust-src", "--toolchain", "nightly"],
    )?;
    // The standard library is built with the sanitizer too, because its reference counts and locks order the threads. rustix calls the
    // C library, which the sanitizer observes, and not the system directly.
    let flags = "-Zsanitizer=thread --cfg rustix_use_libc";
    let tests = "+nightly test -Zbuild-std -p millpond-account -p millpond-pool -p millpond-tensor --lib --features millpond-tensor/dlpack --target-dir target/threads --target";
    let tests = tests.split(' ').chain([TARGET, "--"]);
    let tests: Vec<&str> = tests.chain(TESTS.split(' ')).collect();
    step_with("cargo", &tests, &[("RUSTFLAGS", flags)])
}
