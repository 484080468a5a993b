//! The C++ resource meets the concepts of `cuda::mr`. The headers of CCCL and of CUDA's runtime are needed.

mod support;

use std::path::PathBuf;
use std::process::Command;
use support::{command, folder, install, is_installed, package, run};

/// Returns the folders with the headers: those of `MILLPOND_CUDA_INCLUDE`, which are separated by colons, or those of the Python packages in
/// `target/cccl`.
fn headers() -> Option<Vec<PathBuf>> {
    if let Some(given) = std::env::var_os("MILLPOND_CUDA_INCLUDE") {
        return Some(std::env::split_paths(&given).collect());
    }
    let target = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
    let include = target.join("cccl/nvidia/cu13/include");
    include
        .join("cccl/cuda/memory_resource")
        .exists()
        .then(|| vec![include.join("cccl"), include])
}

#[test]
fn the_device_resource_meets_the_concepts_of_cuda_mr() {
    if !is_installed("c++", "--version") {
        return;
    }
    let Some(headers) = headers() else {
        println!(
            "skipped: there are no headers of CUDA; install them with pip install --target target/cccl nvidia-cuda-cccl nvidia-cuda-runtime nvidia-cuda-crt"
        );
        return;
    };
    let prefix = folder("resource");
    install(&prefix);
    for standard in ["-std=c++17", "-std=c++20"] {
        let program = prefix.join("resource");
        let mut compile = Command::new("c++");
        compile.args([
            standard,
            "-Wall",
            "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE",
        ]);
        for folder in &headers {
            compile.arg("-isystem").arg(folder);
        }
        run(compile
            .arg("-I")
            .arg(prefix.join("include"))
            .arg(package().join("tests/programs/resource.cpp"))
            .arg("-L")
            .arg(prefix.join("lib"))
            .arg("-lmillpond")
            .arg("-o")
            .arg(&program));
        let printed = run(&mut command(&program, &prefix));
        assert_eq!(printed, "held 1, refused 1, left 0\n");
        println!("{standard}: {printed}");
    }
}
