//! Measures host memory and compares allocators in one run: the cost of a pair of calls, and the memory that is held.
//!
//! Each allocator runs each workload in its own pinned process, once a round. The order rotates from round to round. The output
//! contains the median round, the minimum and the maximum, the ratio to glibc and to mimalloc, and the minor faults. `(loop)`
//! is the cost of the loop itself. All peers except glibc require the feature `peers`.
//!
//! Workloads with one thread measure processor time, and workloads with two threads measure wall-clock time. Requires Linux
//! with glibc.

mod allocator;
mod args;
mod child;
mod contender;
mod control;
mod figures;
mod gauge;
mod global;
mod headlines;
mod matrix;
mod millpond;
mod random;
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

/// The reason why a command ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The arguments are invalid.
    #[error("{0}")]
    Usage(String),
    /// The only requested run failed.
    #[error("{0}")]
    Failed(String),
    /// The result could not be written.
    #[error("cannot write the result: {0}")]
    Write(#[from] io::Error),
}

/// Runs the task that the arguments describe. Returns one line for each run that failed.
///
/// # Errors
/// Returns an error if the arguments are invalid, if the result cannot be written, or if a single run fails.
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
                    "{name} reads its settings when the process starts: set {lacks} before"
                )));
            }
            let failed = |error| Error::Failed(format!("{spec} with {}: {error}", contender.name()));
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

/// Prints the tables of each group as soon as it is measured. A run that fails leaves a gap and is reported at the end.
fn measure(
    groups: &[(String, Vec<spec::Spec>)],
    peers: &[Contender],
    rounds: usize,
    again: &Again,
    out: &mut dyn Write,
) -> Result<Vec<String>, Error> {
    writeln!(out, "Medians of {rounds} rounds, with a process for each run.")?;
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
