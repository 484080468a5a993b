//! The tests that Miri can run.

use crate::shell::{step, step_with, works};

/// Whole pools over the program's heap, with threads; blocks over it and what turns them into elements; tensors that cross to
/// other libraries and back. Not: tests over sources of the system's memory (`mmap`, `mremap`, `mlock`) or with forks, which
/// Miri does not have. `membarrier` it has not either: full fences stand in its place. Safe modules are left out; some
/// would take an hour.
const TESTS: &str =
    "pool::on_heap os::map::tests::bytes block:: buffer:: storage:: tensor:: rental:: unpooled:: workspace::";
/// Tests of memory that several threads or other libraries own. One run tests one order of the threads and one choice of the values
/// that each thread reads, so these tests run under [`SEEDS`]. Tests of one thread would take twenty times as long and find no more.
const OWNERS: &str = "block:: tensor::dlpack:: buffer::tests::whoever tensor::tests::of_many";
const SEEDS: &str = "-Zmiri-many-seeds=0..20";
/// Safe code whose order of memory only Miri finds wrong: the processors at hand keep more order than they promise.
const ORDERS: &str = "session::ring";

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
    // Addresses are integers to the engine, and become pointers again where they are used. A pool's shared part is never
    // freed, and would be told as a leak; that all memory goes back the sources of these tests see to.
    let flags = "-Zmiri-permissive-provenance -Zmiri-ignore-leaks";
    let seeds = format!("{flags} {SEEDS}");
    for (features, names, flags) in [
        ("dlpack", TESTS, flags),
        ("dlpack", OWNERS, seeds.as_str()),
        ("record", ORDERS, flags),
    ] {
        // A folder of its own, because other flags build everything anew.
        let tests = "+nightly miri test -p millpond --lib --target-dir target/miri --features";
        let tests = tests.split(' ').chain([features, "--"]);
        let tests: Vec<&str> = tests.chain(names.split_whitespace()).collect();
        step_with("cargo", &tests, &[("MIRIFLAGS", flags)])?;
    }
    Ok(())
}
