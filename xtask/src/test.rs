//! Runs all checks that must pass before a change is merged.

use crate::shell::{step, step_with, works};

pub(crate) fn run() -> Result<(), String> {
    for component in ["fmt", "clippy"] {
        if !works("cargo", &[component, "--version"]) {
            let name = if component == "fmt" { "rustfmt" } else { component };
            step("rustup", &["component", "add", name])?;
        }
    }
    step("cargo", &["fmt", "--all", "--check"])?;
    crate::layers::run()?;
    crate::book::test()?;
    // The second has the tests without the parts that only make them faster; the last two are the smallest libraries.
    for features in [
        "--workspace --all-targets",
        "--package=millpond --no-default-features --features=data,monitor --all-targets",
        "--package=millpond --no-default-features",
        "--package=millpond --no-default-features --features=cuda",
    ] {
        lint(&features.split(' ').collect::<Vec<_>>())?;
    }
    let sets = feature_sets();
    for set in &sets {
        lint(&[*set, &["--all-targets"]].concat())?;
    }
    crate::ptx::offer();
    let found = crate::debian::offer();
    let found: Vec<_> = found
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    for set in &sets {
        step_with("cargo", &[&["test"], *set].concat(), &found)?;
    }
    // The command with its default features, as the README's first command builds it.
    let default = [
        "test",
        "--package=millpond-cli",
        "--test=features",
        "--test=readme",
    ];
    step("cargo", &default)?;
    // A separate folder, because different flags rebuild everything.
    let models = "test -p millpond-account -p millpond-pool --release --lib models --target-dir target/loom";
    let models: Vec<_> = models.split(' ').collect();
    step_with("cargo", &models, &[("RUSTFLAGS", "--cfg loom")])?;
    let strict = [("RUSTDOCFLAGS", "-D warnings")];
    step_with("cargo", &["doc", "--workspace", "--no-deps", "--quiet"], &strict)
}

fn lint(of: &[&str]) -> Result<(), String> {
    step("cargo", &[&["clippy"], of, &["--", "-D", "warnings"]].concat())
}

/// Returns the arguments of as few builds as possible that test everything: one build with all features. If other allocators cannot
/// be built, the bench that compares with them is tested without them.
fn feature_sets() -> Vec<&'static [&'static str]> {
    if works("c++", &["--version"]) && works("make", &["--version"]) {
        return vec![&["--workspace", "--all-features"]];
    }
    eprintln!("skipped: the host bench's peers, which take a C++ compiler and make");
    let others = &[
        "--workspace",
        "--all-features",
        "--exclude=millpond-bench",
        "--exclude=millpond-cli",
    ];
    let without_peers = &[
        "--package=millpond-bench",
        "--package=millpond-cli",
        "--features=millpond-cli/full",
    ];
    vec![others, without_peers]
}

/// The command that runs the tests of CUDA devices.
pub(crate) const CUDA: &str = "test -p millpond --all-features --test cuda --test cuda_pool --test cuda_graph --test cuda_cudarc --test cuda_tensor --test cuda_nvrtc --test cuda_transfer --test cuda_hostile";
