//! Runs the tests of the Python package (`test_*.py`) with the library that this build made, and with the emulated CUDA driver.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the first Python that the package supports.
fn python() -> Option<PathBuf> {
    let given = std::env::var_os("MILLPOND_PYTHON").map(PathBuf::from);
    let known = ["python3", "python3.11", "python3.12", "python3.13", "python3.14"];
    let is_new = "import sys; sys.exit(sys.version_info < (3, 11))";
    let works = |python: &PathBuf| {
        let done = Command::new(python).args(["-c", is_new]).status();
        done.is_ok_and(|status| status.success())
    };
    given
        .into_iter()
        .chain(known.into_iter().map(PathBuf::from))
        .find(works)
}

#[test]
fn the_package_passes_its_tests() {
    let Some(python) = python() else {
        println!("skipped: there is no Python 3.11 or later");
        return;
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let package = installed.join("millpond");
    let _ = std::fs::remove_dir_all(&installed);
    std::fs::create_dir_all(&package).expect("a folder");
    for file in std::fs::read_dir(here.join("python/millpond")).expect("the package") {
        let file = file.expect("a file").path();
        if let Some(name) = file.file_name().filter(|_| file.is_file()) {
            std::fs::copy(&file, package.join(name)).expect("copied");
        }
    }
    let test = std::env::current_exe().expect("the path of this test");
    let driver = installed.join("driver");
    std::fs::create_dir_all(&driver).expect("a folder");
    for (library, name) in [
        ("lib_millpond.so", package.join("_millpond.abi3.so")),
        ("libmillpond_cuda_emu.so", driver.join("libcuda.so.1")),
    ] {
        std::os::unix::fs::symlink(test.with_file_name(library), name).expect("linked");
    }
    let path = std::env::join_paths([&installed, &here.join("tests")]).expect("paths");
    let done = Command::new(python)
        .args(["-B", "-W", "error", "-m", "unittest", "discover", "-s"])
        .arg(here.join("tests"))
        .env("PYTHONPATH", path)
        .env("LD_LIBRARY_PATH", driver)
        .output()
        .expect("Python starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
