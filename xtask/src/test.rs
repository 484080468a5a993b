//! Runs the checks that must pass before a change is merged.

use crate::covered::{Passed, fingerprint};
use crate::shell::{Result as Outcome, link_emulator, root, step, step_with, target, works};
use std::num::NonZero;

const NEXTEST: &str = "0.9.143";

/// The command that runs the tests of CUDA devices.
pub(crate) const CUDA: &str = "test -p millpond --all-features --test cuda --test cuda_pool --test cuda_graph --test cuda_cudarc --test cuda_tensor --test cuda_nvrtc --test cuda_transfer --test cuda_hostile";

/// The selection of the long checks that run.
enum Extent {
    None,
    Changed,
    All,
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let extent = match args {
        [] => Extent::None,
        [flag] if flag == "--changed" => Extent::Changed,
        [flag] if flag == "--all" => Extent::All,
        _ => return Err("test takes --changed, --all or nothing".to_owned()),
    };
    short()?;
    let mut passed = Passed::read()?;
    let mut left = Vec::new();
    for check in LONG {
        // Outside a repository, it is unknown which files have changed.
        let files = fingerprint(&root(), check.covers).ok();
        let has_passed = files.as_ref().is_some_and(|files| passed.has(check.name, files));
        if has_passed && !matches!(extent, Extent::All) {
            continue;
        }
        if matches!(extent, Extent::None) {
            left.push(check.name);
            continue;
        }
        println!("\nLong check: {}", check.name);
        (check.run)()?;
        if let Some(files) = files {
            passed.record(check.name, files)?;
        }
    }
    if !left.is_empty() {
        let left = left.join(", ");
        println!(
            "\nThese checks take longer, and their files have changed: {left}. `cargo xtask test --changed` runs them."
        );
    }
    Ok(())
}

/// The checks of every change: formatting, layers, links, lints, tests with all features, and examples in the documentation.
fn short() -> Result<(), String> {
    install()?;
    step("cargo", &["fmt", "--all", "--check"])?;
    crate::layers::run()?;
    crate::book::check()?;
    let features = features()?;
    let all = ["--workspace", "--features", &features];
    lint(&[&all[..], &["--all-targets"]].concat())?;
    crate::ptx::offer();
    let programs = crate::debian::offer();
    let programs: Vec<_> = programs
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let threads = test_threads().to_string();
    let run = ["nextest", "run", "--test-threads", &threads];
    step_with("cargo", &[&run, &all[..]].concat(), &programs)?;
    // The examples with a device run on the emulated driver, which was built for the tests.
    let driver = with_driver().map_err(|error| error.to_string())?;
    let driver = [("LD_LIBRARY_PATH", driver.as_str())];
    step_with("cargo", &[&["test", "--doc"], &all[..]].concat(), &driver)
}

/// Returns the number of tests that run at once. Some tests wait most of the time, so it is larger than the number of processors.
fn test_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    processors + processors.div_ceil(2)
}

/// Returns the path of the loader with the emulated driver before all others.
fn with_driver() -> Outcome<String> {
    let library = target().join("debug/deps/libmillpond_cuda_emu.so");
    if !library.exists() {
        return Err(format!("the tests have not built {}", library.display()).into());
    }
    let driver = link_emulator(&library)?;
    let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let path = std::iter::once(driver).chain(std::env::split_paths(&others));
    let path = std::env::join_paths(path)?.into_string();
    path.map_err(|path| format!("LD_LIBRARY_PATH is not UTF-8: {}", path.display()).into())
}

/// Installs the parts of the toolchain that are missing.
fn install() -> Result<(), String> {
    for (component, program) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !works("cargo", &[program, "--version"]) {
            step("rustup", &["component", "add", component])?;
        }
    }
    if works("cargo", &["nextest", "--version"]) {
        return Ok(());
    }
    step(
        "cargo",
        &["install", "--locked", "cargo-nextest", "--version", NEXTEST],
    )
}

fn lint(of: &[&str]) -> Result<(), String> {
    step("cargo", &[&["clippy"], of, &["--", "-D", "warnings"]].concat())
}

/// Returns all features of all crates but `peers`, which builds other allocators.
fn features() -> Result<String, String> {
    let metadata = crate::layers::metadata()?;
    let packages = metadata["packages"]
        .as_array()
        .ok_or("cargo metadata lists no packages")?;
    let mut all = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let features = package["features"]
            .as_object()
            .ok_or("cargo metadata lists no features")?;
        all.extend(
            features
                .keys()
                .filter(|feature| *feature != "peers")
                .map(|feature| format!("{name}/{feature}")),
        );
    }
    Ok(all.join(","))
}

/// A check that takes minutes.
struct Long {
    name: &'static str,
    /// The files and folders whose change makes the check necessary.
    covers: &'static [&'static str],
    run: fn() -> Result<(), String>,
}

const LONG: &[Long] = &[
    Long {
        name: "models of concurrent code under loom",
        covers: &[
            "crates/millpond-os/src",
            "crates/millpond-account/src",
            "crates/millpond-pool/src",
        ],
        run: || {
            // A separate folder, because different flags rebuild everything.
            let models =
                "test -p millpond-account -p millpond-pool --release --lib models --target-dir target/loom";
            step_with("cargo", &words(models), &[("RUSTFLAGS", "--cfg loom")])
        },
    },
    Long {
        name: "all rounds of the longest tests",
        covers: &[
            "README.md",
            "docs",
            "crates/millpond-cli",
            "crates/millpond-replay",
            "crates/millpond-trace/src",
            "crates/millpond-cuda/src",
            "crates/millpond-cuda-emu/src",
            "crates/millpond-os/src",
            "crates/millpond-account/src",
            "crates/millpond-pool/src",
            "crates/millpond/tests",
        ],
        run: || {
            let features = features()?;
            // The tests that read MILLPOND_TEST_ALL.
            let longest = "binary(=terminal) + binary(=cuda_transfer) + binary(=cuda_hostile) + binary(=closing) + binary(=forks) + test(/^ends::/) + binary_id(=millpond-replay::hostile)";
            let tests = [
                "nextest",
                "run",
                "--workspace",
                "--filterset",
                longest,
                "--features",
                &features,
            ];
            step_with("cargo", &tests, &[("MILLPOND_TEST_ALL", "1")])
        },
    },
    Long {
        name: "other allocators in the bench",
        covers: &["Cargo.lock", "crates/millpond-bench"],
        run: || {
            if works("c++", &["--version"]) && works("make", &["--version"]) {
                // The other features are those of the short checks, so that only the bench is built again.
                let features = features()? + ",millpond-bench/peers";
                let all = [
                    "--workspace",
                    "--lib",
                    "--bin",
                    "placement",
                    "--test",
                    "host",
                    "--test",
                    "placement",
                    "--features",
                    &features,
                ];
                lint(&all)?;
                let tests = words("nextest run --filterset package(millpond-bench)");
                return step("cargo", &[&tests[..], &all].concat());
            }
            println!("skipped: the bench's other allocators, which take a C++ compiler and make");
            Ok(())
        },
    },
    Long {
        name: "the wheel of the Python package",
        covers: &["Cargo.lock", "crates/millpond-python", "pyproject.toml"],
        run: crate::python::check,
    },
    Long {
        name: "smaller sets of features",
        covers: &["Cargo.lock", "crates"],
        run: || {
            // The first has the tests without the parts that only make them faster; the next two are the smallest libraries.
            for features in [
                "--package=millpond --no-default-features --features=data,monitor --all-targets",
                "--package=millpond --no-default-features",
                "--package=millpond --no-default-features --features=cuda",
            ] {
                lint(&words(features))?;
            }
            lint(&["--workspace"])?;
            // The command with its default features, as the README's first command builds it.
            step(
                "cargo",
                &words("nextest run --package=millpond-cli --test=features --test=readme"),
            )
        },
    },
    Long {
        name: "the book and the documentation",
        covers: &["README.md", "docs", "crates"],
        run: || {
            crate::book::run()?;
            let strict = [("RUSTDOCFLAGS", "-D warnings")];
            step_with("cargo", &words("doc --workspace --no-deps --quiet"), &strict)
        },
    },
];

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}
