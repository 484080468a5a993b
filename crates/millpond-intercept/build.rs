//! Builds the library that is preloaded, with the compiler of this build, so that the crate contains it.
//!
//! Cargo installs programs without libraries, so a library next to the command would be missing after `cargo install`. The library uses
//! only the standard library. One call of the compiler therefore builds it, without cargo and without a network.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=preload");
    println!("cargo::rerun-if-changed=src/format.rs");
    let out = PathBuf::from(variable("OUT_DIR")).join("preload.so");
    let is_supported = variable("CARGO_CFG_TARGET_OS") == "linux"
        && variable("CARGO_CFG_TARGET_ENV") == "gnu"
        && matches!(&*variable("CARGO_CFG_TARGET_ARCH"), "x86_64" | "aarch64");
    if !is_supported {
        // The command then says that it records nothing on this system.
        std::fs::write(out, "").unwrap_or_else(|error| panic!("cannot write to the output folder: {error}"));
        return;
    }
    let mut compiler = Command::new(variable("RUSTC"));
    compiler
        .args([
            "--edition",
            "2024",
            "--crate-name",
            "millpond_preload",
            "--crate-type",
            "cdylib",
        ])
        .args([
            "--target",
            &variable("TARGET"),
            "--cfg",
            "preloaded",
            "--cap-lints",
            "allow",
        ])
        .args([
            "-C",
            "opt-level=3",
            "-C",
            "panic=abort",
            "-C",
            "codegen-units=1",
            "-C",
            "strip=symbols",
        ])
        // Stacks are unwound through the functions of the library.
        .args(["-C", "force-unwind-tables=yes"])
        // Otherwise a missing symbol would be noticed only when a program starts.
        .args(["-C", "link-arg=-Wl,-z,defs"]);
    let linker = env::var("RUSTC_LINKER").ok();
    compiler.args(
        linker
            .iter()
            .flat_map(|linker| ["-C".to_owned(), format!("linker={linker}")]),
    );
    let source = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("preload/lib.rs");
    let status = compiler.arg(source).arg("-o").arg(&out).status();
    assert!(
        status.as_ref().is_ok_and(|status| status.success()),
        "the compiler did not build the library that is preloaded: {status:?}"
    );
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo did not set {name}: {error}"))
}
