//! Copies the sources of published crates, and makes the pool their allocator in the copy.

use crate::shell::root;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The allocator of the tests in a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allocator {
    System,
    Pool,
}

/// Makes cargo fetch the crates, check them against the checksums of the lock file, and put their sources into a folder.
/// Returns that folder.
pub(crate) fn fetch(project: &Path, folder: &Path) -> Result<PathBuf, String> {
    let sources = folder.join("sources");
    println!("$ cargo vendor --locked {}", sources.display());
    let output = Command::new("cargo")
        .args(["vendor", "--locked", "--quiet"])
        .arg(&sources)
        .current_dir(project)
        .output()
        .map_err(|e| format!("cargo could not start: {e}"))?;
    if output.status.success() {
        return Ok(sources);
    }
    Err(format!(
        "the crates could not be fetched. This task needs the registry, or their sources in cargo's cache. Cargo says:\n{}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    ))
}

/// Returns the version of a crate.
pub(crate) fn version(source: &Path) -> Result<String, String> {
    let manifest = read(&source.join("Cargo.toml"))?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    Ok(line
        .ok_or("a crate without a version")?
        .trim_matches('"')
        .to_owned())
}

/// A copy of a crate.
pub(crate) struct Copy {
    pub(crate) place: PathBuf,
    /// The number of test programs that keep their own allocator.
    pub(crate) others: u64,
}

/// Makes a new copy of a crate in its own workspace.
pub(crate) fn copy(source: &Path, folder: &Path, allocator: Allocator) -> Result<Copy, String> {
    let name = source.file_name().ok_or("a crate without a name")?;
    let place = folder
        .join(if allocator == Allocator::Pool {
            "pool"
        } else {
            "system"
        })
        .join(name);
    if place.exists() {
        fs::remove_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    }
    copy_all(source, &place)?;
    append(&place.join("Cargo.toml"), "\n[workspace]\n")?;
    let others = match allocator {
        Allocator::Pool => put_pool_in(&place)?,
        Allocator::System => 0,
    };
    Ok(Copy { place, others })
}

/// Links the pool into the library's tests and into all other tests without their own allocator. Returns how many have their own.
fn put_pool_in(place: &Path) -> Result<u64, String> {
    let proof = root().join("xtask/global/proof");
    let dependency = format!(
        "\n[dev-dependencies.millpond-proof]\npath = {:?}\n",
        proof.display().to_string()
    );
    append(&place.join("Cargo.toml"), &dependency)?;
    append(
        &place.join("src/lib.rs"),
        "\n#[cfg(test)]\nextern crate millpond_proof as _;\n",
    )?;
    let tests = place.join("tests");
    let mut others = 0;
    for entry in fs::read_dir(&tests)
        .map_err(|e| format!("{}: {e}", tests.display()))?
        .flatten()
    {
        let main = if entry.path().is_dir() {
            entry.path().join("main.rs")
        } else {
            entry.path()
        };
        if !main.is_file() || main.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        if read(&main)?.contains("#[global_allocator]") {
            others += 1;
        } else {
            append(&main, "\nextern crate millpond_proof as _;\n")?;
        }
    }
    Ok(others)
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
}

fn append(file: &Path, text: &str) -> Result<(), String> {
    let before = read(file)?;
    fs::write(file, before + text).map_err(|e| format!("{}: {e}", file.display()))
}

fn copy_all(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).map_err(failed)?;
        }
    }
    Ok(())
}
