//! Runs the unchanged tests of programs and libraries that use CUDA on the emulated driver. These clients do not know the emulator.
//!
//! A test that fails needs an entry in the list of known failures, with the cause. An entry without a failure is an error too.

mod crates;
mod known;
mod python;
mod results;

use crate::shell::{Result, emulated_driver, shell, target};
use known::Judged;
use results::Results;
use std::path::PathBuf;
use xshell::Shell;

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

    /// Returns the version and the results, or the reason why the tests cannot be had.
    fn run(self, sh: &Shell, places: &Places) -> Result<(String, Results)> {
        match self {
            Self::Crate(client) => client.run(sh, places),
            Self::Python(client) => client.run(sh, places),
        }
    }
}

/// The client, its version, and the judgement of its results. Without results, the reason.
type Row = (&'static str, Result<(String, Judged)>);

pub(crate) fn run(names: &[String]) -> Result {
    let clients = chosen(names)?;
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
        let results = client.run(sh, &places);
        rows.push((
            name,
            results.map(|(version, results)| (version, known::judge(name, &results))),
        ));
    }
    report(&rows, names)
}

fn chosen(names: &[String]) -> Result<Vec<Tests>> {
    let all = || CLIENTS.map(Tests::name).join(", ");
    if let Some(other) = names
        .iter()
        .find(|name| CLIENTS.iter().all(|client| client.name() != **name))
    {
        return Err(format!("no client is called '{other}': the clients are {}", all()).into());
    }
    let is_chosen = |client: &Tests| names.is_empty() || names.iter().any(|name| name == client.name());
    Ok(CLIENTS.into_iter().filter(is_chosen).collect())
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
            // A client that cannot be fetched is an error only where it was named.
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
        let chosen = |list: &[&str]| chosen(&names(list)).map(|clients| clients.len());
        assert_eq!(chosen(&[]).expect("all are chosen"), CLIENTS.len());
        assert_eq!(chosen(&["cupy", "cudarc"]).expect("both exist"), 2);
        assert!(chosen(&["cupi"]).is_err());
    }
}
