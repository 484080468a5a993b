//! Copies the sources of published crates, and makes the pool their allocator in the copy.

use crate::shell::{Result, root};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// The allocator of the tests in a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allocator {
    System,
    Pool,
}

/// Makes cargo fetch the crates, check them against the checksums of the lock file, and put their sources into a folder.
/// Returns that folder.
pub(crate) fn fetch(sh: &Shell, project: &Path, folder: &Path) -> Result<PathBuf> {
    let sources = folder.join("sources");
    let _in_project = sh.push_dir(project);
    match cmd!(sh, "cargo vendor --locked --quiet {sources}").ignore_stdout().run() {
        Ok(()) => Ok(sources),
        Err(why) => Err(format!(
            "the crates could not be fetched ({why}). This task needs the registry, or their sources in cargo's cache"
        )
        .into()),
    }
}

/// Returns the version of a crate.
pub(crate) fn version(sh: &Shell, source: &Path) -> Result<String> {
    let manifest = sh.read_file(source.join("Cargo.toml"))?;
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
pub(crate) fn copy(sh: &Shell, source: &Path, folder: &Path, allocator: Allocator) -> Result<Copy> {
    let name = source.file_name().ok_or("a crate without a name")?;
    let kind = match allocator {
        Allocator::Pool => "pool",
        Allocator::System => "system",
    };
    let place = folder.join(kind).join(name);
    sh.remove_path(&place)?;
    copy_all(sh, source, &place)?;
    append(sh, &place.join("Cargo.toml"), "\n[workspace]\n")?;
    let others = match allocator {
        Allocator::Pool => put_pool_in(sh, &place)?,
        Allocator::System => 0,
    };
    Ok(Copy { place, others })
}

/// Links the pool into the library's tests and into all other tests without their own allocator. Returns how many have their own.
fn put_pool_in(sh: &Shell, place: &Path) -> Result<u64> {
    let proof = root().join("xtask/global/proof");
    let dependency = format!(
        "\n[dev-dependencies.millpond-proof]\npath = {:?}\n",
        proof.display().to_string()
    );
    append(sh, &place.join("Cargo.toml"), &dependency)?;
    let linked = "\nextern crate millpond_proof as _;\n";
    append(sh, &place.join("src/lib.rs"), &format!("\n#[cfg(test)]{linked}"))?;
    let mut others = 0;
    for entry in sh.read_dir(place.join("tests"))? {
        let main = if entry.is_dir() {
            entry.join("main.rs")
        } else {
            entry
        };
        if !main.is_file() || main.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        if sh.read_file(&main)?.contains("#[global_allocator]") {
            others += 1;
        } else {
            append(sh, &main, linked)?;
        }
    }
    Ok(others)
}

fn append(sh: &Shell, file: &Path, text: &str) -> Result {
    Ok(sh.write_file(file, sh.read_file(file)? + text)?)
}

fn copy_all(sh: &Shell, from: &Path, to: &Path) -> Result {
    sh.create_dir(to)?;
    for entry in sh.read_dir(from)? {
        let target = to.join(entry.file_name().unwrap_or_default());
        if entry.is_dir() {
            copy_all(sh, &entry, &target)?;
        } else {
            sh.copy_file(&entry, &target)?;
        }
    }
    Ok(())
}
