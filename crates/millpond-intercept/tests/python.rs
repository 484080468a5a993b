//! Runs Python programs that use packages of NVIDIA and Numba. `cargo xtask clients` makes their environments.
#![cfg(target_os = "linux")]

mod support;

use std::path::Path;
use std::process::Command;
use support::place;

/// Checks that every block that a program took is in the recording, with this owner.
fn check(client: &str, program: &str, version: &str, owner: &str) {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../clients");
    let python = root.join(client).join("python/bin/python");
    if !python.exists() {
        println!("skipped: `cargo xtask clients {client}` has not made the environment");
        return;
    }
    let Some(place) = place() else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/python")
        .join(program);
    let mut command = Command::new(python);
    command.arg(source).env("MILLPOND_CUDA_EMU", version);
    let run = place.record(client, command, &[]);
    let taken: u64 = run.succeeded().printed().trim().parse().expect("a number");
    let process = run.only();
    assert_eq!(process.summary.allocations, taken);
    let of_device = process
        .summary
        .owners
        .iter()
        .filter(|owned| !owned.name.contains("reserved by pools"));
    let owners: Vec<&str> = of_device.map(|owned| &*owned.name).collect();
    assert!(
        !owners.is_empty() && owners.iter().all(|name| name.starts_with(owner)),
        "{owners:?}"
    );
}

#[test]
fn memory_of_cuda_core_is_recorded() {
    check("cuda.core", "with_cuda_core.py", "version:13050", "cuda.");
}

#[test]
fn memory_of_numba_is_recorded() {
    check("numba-cuda", "with_numba.py", "version:12080", "cuda.bindings.");
}
