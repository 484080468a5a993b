//! The tests that Miri can run.

use crate::shell::{step, step_with, works};

/// Tests whose unsafe code stays in the process: blocks over the program's own heap, and what turns them into elements;
/// caches and their claim, the account, shelves; the lock-free tables. Not: what calls the system (`mmap`, `mremap`,
/// `membarrier`, `fork`), which Miri does not have, and so no test with a real pool.
const TESTS: &str = "block:: buffer:: storage:: rental:: unpooled:: workspace:: pool::account pool::cache pool::claim \
    pool::classes pool::fresh pool::shelf tag:: event:: ledger:: device:: dtype:: time::";

pub(crate) fn run() -> Result<(), String> {
    if !works("cargo", &["+nightly", "--version"]) {
        step(
            "rustup",
            &["toolchain", "install", "nightly", "--profile", "minimal"],
        )?;
    }
    if !works("cargo", &["+nightly", "miri", "--version"]) {
        let add = "component add miri rust-src --toolchain nightly";
        step("rustup", &add.split(' ').collect::<Vec<_>>())?;
    }
    // A folder of its own, because other flags build everything anew.
    let tests = "+nightly miri test -p millpond --lib --target-dir target/miri --";
    let tests: Vec<&str> = tests.split(' ').chain(TESTS.split_whitespace()).collect();
    // Addresses are integers to the engine, and become pointers again where they are used.
    step_with("cargo", &tests, &[("MIRIFLAGS", "-Zmiri-permissive-provenance")])
}
