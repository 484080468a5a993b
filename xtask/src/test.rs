//! Everything that must hold before a change lands.

use crate::shell::{step, step_with, works};

pub(crate) fn run() -> Result<(), String> {
    for component in ["fmt", "clippy"] {
        if !works("cargo", &[component, "--version"]) {
            let name = if component == "fmt" { "rustfmt" } else { component };
            step("rustup", &["component", "add", name])?;
        }
    }
    step("cargo", &["fmt", "--all", "--check"])?;
    step(
        "cargo",
        &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
    )?;
    crate::ptx::offer();
    let found = crate::debian::offer();
    let found: Vec<_> = found
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    step_with("cargo", &["test", "--workspace"], &found)?;
    features()?;
    peers()?;
    // A folder of its own, because other flags build everything anew.
    let models = "test -p millpond --release --lib models --target-dir target/loom";
    let models: Vec<_> = models.split(' ').collect();
    step_with("cargo", &models, &[("RUSTFLAGS", "--cfg loom")])?;
    let strict = [("RUSTDOCFLAGS", "-D warnings")];
    step_with("cargo", &["doc", "--workspace", "--no-deps", "--quiet"], &strict)
}

/// The tests of CUDA devices.
pub(crate) const CUDA: &str = "test -p millpond --all-features --test cuda --test cuda_pool --test cuda_graph --test cuda_cudarc --test cuda_tensor --test cuda_nvrtc --test cuda_transfer --test cuda_hostile";

/// The library with each of its features, and with none.
fn features() -> Result<(), String> {
    for features in ["--no-default-features", "--all-features"] {
        let lints = [
            "clippy",
            "-p",
            "millpond",
            features,
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        step("cargo", &lints)?;
    }
    for tests in [
        "test -p millpond --all-features --lib --test leaks -- event ledger leaks safetensors tensor::",
        "test -p millpond --all-features --test safetensors --test dlpack",
        CUDA,
    ] {
        step("cargo", &tests.split(' ').collect::<Vec<_>>())?;
    }
    Ok(())
}

/// The bench beside other allocators, where they can be built.
fn peers() -> Result<(), String> {
    if !(works("c++", &["--version"]) && works("make", &["--version"])) {
        eprintln!("skipped: the host bench, whose peers take a C++ compiler and make");
        return Ok(());
    }
    let bench = ["--package", "millpond-bench", "--features", "peers"];
    let clippy = [
        ["clippy"].as_slice(),
        &bench,
        &["--all-targets", "--", "-D", "warnings"],
    ]
    .concat();
    step("cargo", &clippy)?;
    step(
        "cargo",
        &[["test"].as_slice(), &bench, &["--lib", "--test", "host"]].concat(),
    )
}
