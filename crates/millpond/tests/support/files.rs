//! Folders for files, and a Python that writes files with other libraries.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that is removed on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a Python with the packages: the system's, or one that installs them here. Otherwise prints the reason.
pub(crate) fn python(packages: &[&str]) -> Option<PathBuf> {
    let import = format!("import {}", packages.join(", "));
    let has = |python: &Path| {
        let tried = Command::new(python).args(["-c", &import]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let system = PathBuf::from("python3");
    if has(&system) {
        return Some(system);
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(packages.join("-"));
    let python = folder.join("bin/python");
    // Another test may install the same packages at the same time. The lock ends with the file.
    let lock = fs::File::create(folder.with_extension("lock")).expect("room");
    lock.lock().expect("no other lock");
    if has(&python) {
        return Some(python);
    }
    let made = Command::new(&system)
        .args(["-m", "venv", "--clear"])
        .arg(&folder)
        .output();
    let made = made.is_ok_and(|output| output.status.success());
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    let installed = made
        && Command::new(&python)
            .args(install)
            .args(packages)
            .output()
            .is_ok_and(|output| output.status.success());
    if installed && has(&python) {
        return Some(python);
    }
    eprintln!("skipped: python3 with venv and pip, or one of {packages:?}, is not to be had here");
    None
}

pub(crate) fn run(python: &Path, script: &str, folder: &Path) {
    let output = Command::new(python)
        .args(["-c", script])
        .current_dir(folder)
        .output()
        .expect("a child");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
