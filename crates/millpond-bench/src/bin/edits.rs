//! Compares the predicted peaks of edited recordings with recordings of the changed programs.

use clap::Parser;
use millpond_bench::{Table, print};
use millpond_replay::{Edit, Program, Selection, apply_edits};
use millpond_trace::{ReadOptions, Trace, read};
use serde::Deserialize;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compares the predicted peaks of edited recordings with recordings of the changed programs.
#[derive(Parser)]
struct Arguments {
    /// TOML file with the list of pairs
    #[arg(default_value = "traces/pairs/pairs.toml")]
    pairs: PathBuf,
}

/// The list of pairs.
#[derive(Deserialize)]
struct List {
    pair: Vec<Pair>,
}

/// A program recorded without and with a change. Paths are relative to the list.
#[derive(Deserialize)]
struct Pair {
    name: Option<String>,
    base: PathBuf,
    changed: PathBuf,
    edit: Option<String>,
    #[serde(default)]
    edits: Vec<String>,
}

fn main() -> ExitCode {
    millpond_bench::exit("edits", compare(Arguments::parse()))
}

fn compare(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let folder = arguments.pairs.parent().unwrap_or(Path::new("."));
    let list: List = toml::from_str(&std::fs::read_to_string(&arguments.pairs)?)?;
    let mut table = Table::new(&["pair", "edit", "base", "predicted", "recorded", "error"]);
    for pair in list.pair {
        let edits: Vec<String> = pair.edit.into_iter().chain(pair.edits).collect();
        let parsed = edits
            .iter()
            .map(|edit| edit.parse())
            .collect::<Result<Vec<Edit>, _>>()?;
        let base = trace(&folder.join(&pair.base))?;
        let changed = peak(&trace(&folder.join(&pair.changed))?)?;
        let name = pair.name.unwrap_or_else(|| pair.changed.display().to_string());
        let predicted = match apply_edits(&base, &parsed) {
            Ok(edited) => peak(&edited.trace)?,
            Err(error) => return Err(format!("{name}: {error}").into()),
        };
        table.row([
            name,
            edits.join(" "),
            mebibytes(peak(&base)?),
            mebibytes(predicted),
            mebibytes(changed),
            format!(
                "{:+.1} %",
                100.0 * (predicted as f64 / changed.max(1) as f64 - 1.0)
            ),
        ]);
    }
    print(table)?;
    Ok(())
}

fn trace(path: &Path) -> Result<Trace, Box<dyn Error>> {
    let recording =
        read(path, &ReadOptions::default()).map_err(|error| format!("{}: {error}", path.display()))?;
    let first = recording.traces.into_iter().next();
    Ok(first.ok_or_else(|| format!("{} has no events", path.display()))?)
}

/// Returns the most bytes that the program requests and holds at once.
fn peak(trace: &Trace) -> Result<u64, Box<dyn Error>> {
    Ok(Program::new(trace, Selection::default())?.peak_requested)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
