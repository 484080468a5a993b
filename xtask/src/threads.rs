//! Tests under the thread sanitizer.

use crate::shell::{step, step_with, works};

/// What several threads own: the same as under Miri, with real threads and many more rounds.
///
/// Not: tests of the pool's short way. It relies on fences, which the sanitizer does not know, and it would tell of races where
/// there are none.
const TESTS: &str = "block:: buffer:: storage:: tensor:: budget:: ledger:: rental:: workspace::";
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
    // The standard library is built with it too, as its counts and locks are what orders the threads. rustix calls the C library,
    // which the sanitizer watches, and not the system itself.
    let flags = "-Zsanitizer=thread --cfg rustix_use_libc";
    let tests =
        "+nightly test -Zbuild-std -p millpond --lib --features dlpack --target-dir target/threads --target";
    let tests = tests.split(' ').chain([TARGET, "--"]);
    let tests: Vec<&str> = tests.chain(TESTS.split(' ')).collect();
    step_with("cargo", &tests, &[("RUSTFLAGS", flags)])
}
