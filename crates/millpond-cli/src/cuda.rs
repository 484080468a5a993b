//! `millpond replay --source cuda:N`: replays a recording on a CUDA device's memory and compares it with the simulation.

mod facts;
mod report;
mod run;

use crate::args::ReplayArgs;
use crate::exit::CliError;
use crate::host;

pub(crate) use run::command;

/// Refuses options that apply only to other memory.
///
/// # Errors
/// Returns an error if one of them was given.
fn refuse_with(args: &ReplayArgs) -> Result<(), CliError> {
    let simulated = [
        ("--fit", args.fit),
        ("--verify", args.verify),
        ("--threads", args.output.threads.is_some()),
        ("--html", args.html.is_some()),
    ];
    host::refuse(
        &simulated,
        "is for a simulated device: omit it or --source cuda:N",
    )?;
    host::refuse_without_host(args)
}
