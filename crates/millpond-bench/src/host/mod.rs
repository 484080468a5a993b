//! Host memory beside its peers: what a pair of calls costs, and what memory is held, in one run.
//!
//! Each allocator runs each workload in a process of its own, pinned, once a round; the order turns from round to
//! round. Shown are the median round, the least and the most, the ratio to glibc and to mimalloc, and the minor
//! faults. `(loop)` is what the loop itself costs. The peers but glibc are there with the feature `peers`.
//!
//! Where one thread works, its processor time counts; where two do, the wall's. Linux with glibc only.

mod allocator;
mod args;
mod child;
mod contender;
mod control;
mod dice;
mod figures;
mod gauge;
mod global;
mod headlines;
mod matrix;
mod millpond;
pub mod recording;
mod report;
mod rounds;
mod spec;
mod tape;
#[cfg(test)]
mod tests;
pub(crate) mod text;
mod unpooled;
mod work;

pub use args::USAGE;
pub use child::Again;
pub use headlines::seeds;

use args::Task;
use contender::Contender;
use std::io::{self, Write};
use thiserror::Error;

/// Why a command ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for is nothing that there is.
    #[error("{0}")]
    Usage(String),
    /// The one run that was asked for failed.
    #[error("{0}")]
    Failed(String),
    /// The result could not be written.
    #[error("cannot write the result: {0}")]
    Write(#[from] io::Error),
}

/// Does what the arguments after the program's name say, and answers which runs failed, a line for each.
///
/// # Errors
/// When the arguments mean nothing, when the result cannot be written, and when a single run fails.
pub fn run(
    arguments: impl IntoIterator<Item = String>,
    again: &Again,
    out: &mut dyn Write,
) -> Result<Vec<String>, Error> {
    match args::parse(arguments).map_err(Error::Usage)? {
        Task::Help => writeln!(out, "{USAGE}")?,
        Task::Cell(spec, contender, effort) => {
            let figures = child::run(spec, contender, effort).map_err(Error::Failed)?;
            write!(out, "{figures}")?;
        }
        Task::Tape(part) => write!(out, "{}", part.run().map_err(Error::Failed)?)?,
        Task::Once(spec, contender) => {
            if let Some(lacks) = contender.lacks() {
                let name = contender.name();
                return Err(Error::Usage(format!(
                    "{name} is tuned from outside; start with {lacks}"
                )));
            }
            let failed = |error| Error::Failed(format!("{spec} under {}: {error}", contender.name()));
            let figures = contender.run(spec, work::Effort::Once).map_err(failed)?;
            write!(out, "{figures}")?;
        }
        Task::Measure {
            groups,
            peers,
            rounds,
        } => return measure(&groups, &peers, rounds, again, out),
    }
    Ok(Vec::new())
}

/// Prints the tables of each group as soon as it is measured. A run that fails leaves a gap, and is told at the end.
fn measure(
    groups: &[(String, Vec<spec::Spec>)],
    peers: &[Contender],
    rounds: usize,
    again: &Again,
    out: &mut dyn Write,
) -> Result<Vec<String>, Error> {
    writeln!(out, "{rounds} rounds, a process for each run; medians.")?;
    if let Some(missing) = contender::missing() {
        writeln!(out, "{missing}")?;
    }
    if let Some(line) = child::kept_from_children() {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    let mut failed = Vec::new();
    for (name, specs) in groups {
        let results = rounds::measure(specs, peers, rounds, again, work::Effort::Full, &mut failed);
        if name == "w1" {
            write!(out, "{}", matrix::hot(&results, peers))?;
        } else {
            write!(out, "{}", report::long(&results))?;
        }
        out.flush()?;
    }
    Ok(failed)
}
