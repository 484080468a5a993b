//! Builds and tests the crate for NVIDIA's cuda-core, which is no member of the workspace because it needs the headers of CUDA and libclang.
//! Both come from Python packages. CUDA need not be installed.

use crate::shell::{Result, emulated_driver, root, shell, target};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// The headers of the driver, those that they include, those of cuRAND, and libclang.
const PACKAGES: [&str; 4] = [
    "nvidia-cuda-runtime==13.5.37",
    "nvidia-cuda-crt==13.5.37",
    "nvidia-curand==10.4.5.25",
    "libclang==18.1.1",
];

/// The options of the emulated driver, one set for each run of the tests. cuda-core needs a driver for CUDA 13.
const DRIVERS: [&str; 3] = [
    "version:13000,devices:2",
    "version:13000,devices:2,streams:seeded,strict:on,seed:1",
    "version:13000,devices:2,streams:seeded,strict:on,seed:2",
];

pub(crate) fn run() -> Result {
    let sh = &shell()?;
    offer_headers(sh)?;
    let driver = emulated_driver(sh)?;
    sh.change_dir(root().join("crates/millpond-cuda-core"));
    sh.set_var("CARGO_TARGET_DIR", target().join("cuda-core/build"));
    cmd!(sh, "cargo fmt --check").run()?;
    cmd!(sh, "cargo clippy --all-targets --all-features -- -D warnings").run()?;
    cmd!(sh, "cargo doc --no-deps --all-features")
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(driver).chain(std::env::split_paths(&others)))?;
    sh.set_var("LD_LIBRARY_PATH", path);
    for options in DRIVERS {
        println!("MILLPOND_CUDA_EMU={options}");
        // The emulated driver counts the errors of the whole process, so one test runs at a time.
        cmd!(sh, "cargo test --all-features -- --test-threads=1")
            .env("MILLPOND_CUDA_EMU", options)
            .run()?;
    }
    Ok(())
}

/// Installs CUDA's headers and libclang unless they are there, and lets cuda-core's build find them.
pub(crate) fn offer_headers(sh: &Shell) -> Result {
    let packages = packages(sh, &target().join("cuda-core/python"))?;
    sh.set_var("CUDA_TOOLKIT_PATH", packages.join("nvidia/cu13"));
    sh.set_var("LIBCLANG_PATH", packages.join("clang/native"));
    // The package of libclang has no headers of the compiler itself.
    let headers = cmd!(sh, "cc -print-file-name=include").quiet().read()?;
    sh.set_var("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{headers}"));
    Ok(())
}

/// Installs the packages unless they are there. Returns the folder that contains them.
fn packages(sh: &Shell, place: &Path) -> Result<PathBuf> {
    let [folder, done] = ["packages", "installed"].map(|name| place.join(name));
    let wanted = PACKAGES.join("\n");
    if sh.read_file(&done).is_ok_and(|there| there == wanted) {
        return Ok(folder);
    }
    sh.remove_path(place)?;
    let environment = place.join("environment");
    cmd!(sh, "python3 -m venv {environment}").run()?;
    let pip = environment.join("bin/pip");
    cmd!(sh, "{pip} install --quiet --no-deps --target {folder}")
        .args(PACKAGES)
        .run()?;
    sh.write_file(done, wanted)?;
    Ok(folder)
}
