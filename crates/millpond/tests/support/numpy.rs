//! A Python with NumPy, for tests that hold us against it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python that has NumPy: the system's, or one that gets it here. None with the reason said.
pub(crate) fn python() -> Option<PathBuf> {
    let has = |python: &Path| {
        let tried = Command::new(python).args(["-c", "import numpy"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let system = PathBuf::from("python3");
    if has(&system) {
        return Some(system);
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("numpy");
    let python = folder.join("bin/python");
    if has(&python) {
        return Some(python);
    }
    let made = Command::new(&system)
        .args(["-m", "venv", "--clear"])
        .arg(&folder)
        .output();
    let made = made.is_ok_and(|output| output.status.success());
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "numpy",
    ];
    let installed = made
        && Command::new(&python)
            .args(install)
            .output()
            .is_ok_and(|output| output.status.success());
    if installed && has(&python) {
        return Some(python);
    }
    eprintln!("skipped: python3 with venv and pip, or NumPy itself, is not to be had here");
    None
}
