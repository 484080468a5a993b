//! A C program on NVIDIA's own runtime library, shared and linked statically, over the emulated driver.
//!
//! The libraries and their headers come from NVIDIA's Python packages. The test skips without pip, a network or a C compiler.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A version of the runtime.
struct Runtime {
    package: &'static str,
    /// The folder with the package's libraries and headers.
    folder: &'static str,
    library: &'static str,
    /// The options of a driver that this version accepts.
    driver: &'static str,
}

const RUNTIMES: [Runtime; 2] = [
    Runtime {
        package: "nvidia-cuda-runtime-cu12==12.9.79",
        folder: "nvidia/cuda_runtime",
        library: "libcudart.so.12",
        driver: "devices:2",
    },
    Runtime {
        package: "nvidia-cuda-runtime==13.5.37",
        folder: "nvidia/cu13",
        library: "libcudart.so.13",
        driver: "devices:2,version:13050",
    },
];

/// The package with headers that those of both versions include, and where it has them.
const COMMON: &str = "nvidia-cuda-crt==13.5.37";
const COMMON_HEADERS: &str = "nvidia/cu13/include";

/// The prefix of the driver's reports of misuse.
const FINDING: &str = "millpond-cuda-emu: ";

fn tmp(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Installs packages in a folder, unless they are there. Returns the reason if they cannot be installed.
fn install(folder: &Path, packages: &[&str]) -> Result<(), String> {
    if folder.exists() {
        return Ok(());
    }
    let part = folder.with_extension(format!("{}", std::process::id()));
    let output = Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--retries",
            "1",
            "--timeout",
            "20",
        ])
        .arg("--target")
        .arg(&part)
        .args(packages)
        .output()
        .map_err(|error| format!("python3: {error}"))?;
    if !output.status.success() {
        let _ = fs::remove_dir_all(&part);
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    // Another process may have installed them meanwhile.
    fs::rename(&part, folder).or_else(|error| {
        if folder.exists() {
            Ok(())
        } else {
            Err(error.to_string())
        }
    })
}

/// Returns the name of a C compiler, if there is one.
fn compiler() -> Option<String> {
    let name = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let works = Command::new(&name).arg("--version").output();
    works.is_ok_and(|output| output.status.success()).then_some(name)
}

/// Compiles the program and returns its path.
fn compile(compiler: &str, runtime: &Runtime, packages: &Path, is_static: bool) -> PathBuf {
    let place = packages.join(runtime.folder);
    let libraries = place.join("lib");
    let kind = if is_static { "static" } else { "shared" };
    let program = tmp(&format!("{}-{kind}", runtime.library));
    let mut command = Command::new(compiler);
    command
        .args(["-std=gnu11", "-Wall", "-Werror", "-I"])
        .arg(place.join("include"))
        .arg("-I")
        .arg(packages.join(COMMON_HEADERS))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runtime/program.c"))
        .arg("-o")
        .arg(&program);
    if is_static {
        command
            .arg(libraries.join("libcudart_static.a"))
            .args(["-ldl", "-lpthread", "-lrt"]);
    } else {
        command
            .arg(libraries.join(runtime.library))
            .arg(format!("-Wl,-rpath,{}", libraries.display()));
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    program
}

/// Runs a program so that it finds the emulated driver.
fn run(program: &Path, options: &str, argument: &[&str]) -> Output {
    let folder = tmp("runtime-driver");
    fs::create_dir_all(&folder).unwrap();
    let link = folder.join("libcuda.so.1");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(common::library(), &link).unwrap();
    Command::new(program)
        .args(argument)
        .env("LD_LIBRARY_PATH", &folder)
        .env("MILLPOND_CUDA_EMU", options)
        .output()
        .unwrap()
}

#[test]
fn nvidias_runtime_copies_the_right_bytes() {
    let Some(compiler) = compiler() else {
        eprintln!("skipped: there is no C compiler");
        return;
    };
    for runtime in &RUNTIMES {
        let packages = tmp(&format!("{}-packages", runtime.library));
        if let Err(why) = install(&packages, &[runtime.package, COMMON]) {
            eprintln!("skipped: {}: {why}", runtime.package);
            continue;
        }
        for is_static in [false, true] {
            let program = compile(&compiler, runtime, &packages, is_static);
            for streams in [
                "in-place",
                "threads",
                "seeded,seed:1,strict:on",
                "seeded,seed:2,strict:on",
            ] {
                let options = format!("{},streams:{streams}", runtime.driver);
                let output = run(&program, &options, &[]);
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let findings = String::from_utf8_lossy(&output.stderr);
                let case = format!(
                    "{}, {options}, static: {is_static}:\n{text}{findings}",
                    runtime.package
                );
                assert!(
                    output.status.success() && text.contains("all bytes are right"),
                    "{case}"
                );
                assert!(!findings.contains(FINDING), "{case}");
            }
            let output = run(&program, runtime.driver, &["plant"]);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(text.contains("byte 12345 is"), "{text}");
        }
    }
}
