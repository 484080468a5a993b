//! Runs the unchanged tests of popular crates with a pool as their allocator.

pub(crate) mod copy;
mod suite;

use crate::shell::{Result, root, shell, target};
use copy::{Allocator, copy, fetch};
use std::path::Path;
use suite::{Outcome, Served};
use xshell::Shell;

/// The crates. Their versions are in `global/fetch/Cargo.toml`.
const CRATES: [&str; 2] = ["crossbeam-channel", "rayon"];

pub(crate) fn run() -> Result {
    let sh = &shell()?;
    let folder = target().join("global");
    let sources = fetch(sh, &root().join("xtask/global/fetch"), &folder)?;
    let mut rows = Vec::new();
    for name in CRATES {
        let version = copy::version(sh, &sources.join(name))?;
        let system = tests(sh, &sources, &folder, name, Allocator::System)?;
        let pool = tests(sh, &sources, &folder, name, Allocator::Pool)?;
        rows.push((format!("{name} {version}"), system, pool));
    }
    println!(
        "\n{:<26} {:>22}   {:>22}   served by the pool",
        "", "system allocator", "GlobalPool"
    );
    for (name, (system, _), (pool, served)) in &rows {
        println!("{name:<26} {system:>22}   {pool:>22}   {served}");
    }
    rows.iter()
        .try_for_each(|(name, (system, _), (pool, served))| judge(name, system, pool, served))
}

/// Runs a crate's tests in a new copy of the crate.
fn tests(
    sh: &Shell,
    sources: &Path,
    folder: &Path,
    name: &str,
    allocator: Allocator,
) -> Result<(Outcome, Served)> {
    let copy = copy(sh, &sources.join(name), folder, allocator)?;
    let (outcome, mut served) = suite::run(sh, &copy.place, &folder.join("build"))?;
    served.others = copy.others;
    Ok((outcome, served))
}

fn judge(name: &str, system: &Outcome, pool: &Outcome, served: &Served) -> Result {
    if system.failed > 0 || system.passed == 0 {
        return Err(format!(
            "{name} does not pass its own tests on this machine, so they show nothing about the pool"
        )
        .into());
    }
    if pool != system {
        return Err(format!("{name}: {system} with the system's allocator, {pool} with the pool").into());
    }
    if served.programs + served.others < pool.programs || served.allocations < pool.passed {
        return Err(format!("{name}: the pool was not the allocator: {served}").into());
    }
    Ok(())
}
