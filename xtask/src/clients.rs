//! Runs the unchanged tests of programs and libraries that use CUDA on the emulated driver. These clients do not know the emulator.
//!
//! A test that fails needs an entry in the list of known failures, with the cause. An entry without a failure is an error too.

mod crates;
mod known;
mod python;
mod results;

use crate::shell::{Result, emulated_driver, files, root, shell, target};
use known::Judged;
use results::Results;
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// The tests of a client.
#[derive(Clone, Copy)]
enum Tests {
    Crate(&'static crates::Crate),
    Python(&'static python::Package),
}

const CLIENTS: [Tests; 7] = [
    Tests::Crate(&crates::CUDARC),
    Tests::Crate(&crates::CUDA_CORE),
    Tests::Python(&python::CUDA_PYTHON),
    Tests::Python(&python::CUDA_CORE),
    Tests::Python(&python::NUMBA_CUDA),
    Tests::Python(&python::CUPY),
    Tests::Python(&python::RMM),
];

/// The clients whose libraries can take their memory from pools.
const PLUGINS: [&str; 3] = ["cuda.core", "numba-cuda", "cupy"];

/// The places that all clients share.
struct Places {
    /// Sources, environments and builds.
    folder: PathBuf,
    /// The folder in which a loader finds the emulated driver.
    driver: PathBuf,
}

impl Tests {
    fn name(self) -> &'static str {
        match self {
            Self::Crate(client) => client.name,
            Self::Python(client) => client.name,
        }
    }

    /// Returns whether the client's library can take its memory from pools.
    fn has_plugin(self) -> bool {
        PLUGINS.contains(&self.name())
    }

    /// Returns the version and the results, or the reason why the tests cannot be run.
    fn run(self, sh: &Shell, places: &Places) -> Result<(String, Results)> {
        match self {
            Self::Crate(client) => client.run(sh, places),
            Self::Python(client) => client.run(sh, places, None),
        }
    }

    /// Returns the results in pools of the tests that pass without pools, and the version.
    fn run_in_pools(self, sh: &Shell, places: &Places) -> Result<(String, Results)> {
        let Self::Python(client) = self else {
            return Err("only packages of Python have plug-ins".into());
        };
        let (version, without) = client.run(sh, places, None)?;
        let (_, results) = client.run(sh, places, Some(&package(sh, &places.folder)?))?;
        Ok((version, results::in_pools(&without, &results)))
    }
}

/// Builds the Python package, and returns the folder in which Python finds it.
fn package(sh: &Shell, folder: &Path) -> Result<PathBuf> {
    cmd!(sh, "cargo build --release --package millpond-python").run()?;
    let place = folder.join("package");
    let inside = place.join("millpond");
    sh.remove_path(&place)?;
    sh.create_dir(&inside)?;
    for file in files(sh, &root().join("crates/millpond-python/python/millpond"), "py")? {
        sh.copy_file(&file, &inside)?;
    }
    sh.copy_file(
        target().join("release/lib_millpond.so"),
        inside.join("_millpond.abi3.so"),
    )?;
    Ok(place)
}

/// The client, its version, and the judgement of its results. Without results, the reason.
type Row = (&'static str, Result<(String, Judged)>);

pub(crate) fn run(arguments: &[String]) -> Result {
    let (options, names): (Vec<_>, Vec<_>) = arguments
        .iter()
        .cloned()
        .partition(|argument| argument == "--pools");
    let (in_pools, names) = (!options.is_empty(), names.as_slice());
    let clients = chosen(names, in_pools)?;
    let sh = &shell()?;
    let places = Places {
        folder: target().join("clients"),
        driver: emulated_driver(sh)?,
    };
    sh.create_dir(&places.folder)?;
    let mut rows: Vec<Row> = Vec::new();
    for client in clients {
        let name = client.name();
        println!("{name}");
        let known_as = |name| {
            if in_pools {
                format!("{name} in pools")
            } else {
                String::from(name)
            }
        };
        let results = if in_pools {
            client.run_in_pools(sh, &places)
        } else {
            client.run(sh, &places)
        };
        rows.push((
            name,
            results.map(|(version, results)| (version, known::judge(&known_as(name), &results))),
        ));
    }
    report(&rows, names)
}

fn chosen(names: &[String], in_pools: bool) -> Result<Vec<Tests>> {
    let possible = CLIENTS
        .into_iter()
        .filter(|client| !in_pools || client.has_plugin());
    let mut possible: Vec<_> = possible.collect();
    let known: Vec<_> = possible.iter().map(|client| client.name()).collect();
    if let Some(other) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!(
            "there is no client '{other}'. The clients are {}",
            known.join(", ")
        )
        .into());
    }
    possible.retain(|client| names.is_empty() || names.iter().any(|name| name == client.name()));
    Ok(possible)
}

fn report(rows: &[Row], names: &[String]) -> Result {
    println!(
        "\n{:<12} {:<12} {:>6} {:>6} {:>7} {:>7} {:>9} {:>11}",
        "client", "version", "tests", "passed", "skipped", "kernels", "explained", "unexplained"
    );
    for (name, row) in rows {
        match row {
            Ok((version, judged)) => println!("{name:<12} {version:<12} {judged}"),
            Err(why) => println!("{name:<12} not run: {}", why.to_string().trim_end()),
        }
    }
    let mut wrong = Vec::new();
    for (name, row) in rows {
        match row {
            Ok((_, judged)) => {
                judged.causes(name);
                wrong.extend(judged.wrong().map(|what| format!("{name}: {what}")));
            }
            // A client that cannot be fetched is an error only if it was named.
            Err(_) if names.is_empty() => {}
            Err(why) => wrong.push(format!("{name}: {why}")),
        }
    }
    match wrong.as_slice() {
        [] => Ok(()),
        wrong => Err(wrong.join("\n  ").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_that_exist_are_chosen() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let chosen = |list: &[&str], in_pools| chosen(&names(list), in_pools).map(|clients| clients.len());
        assert_eq!(chosen(&[], false).expect("all are chosen"), CLIENTS.len());
        assert_eq!(chosen(&["cupy", "cudarc"], false).expect("both exist"), 2);
        assert!(chosen(&["cupi"], false).is_err());
        assert_eq!(chosen(&[], true).expect("all are chosen"), PLUGINS.len());
        assert!(chosen(&["cupy", "cudarc"], true).is_err());
    }
}
