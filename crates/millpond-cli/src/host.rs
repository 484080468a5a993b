//! `millpond replay --source host`: replays a recording on this machine's memory, with our pools and other allocators. Without the
//! feature `bench`, only the check of its options.

#[cfg(all(feature = "bench", target_os = "linux", target_env = "gnu"))]
mod facts;
#[cfg(all(feature = "bench", target_os = "linux", target_env = "gnu"))]
mod report;
#[cfg(all(feature = "bench", target_os = "linux", target_env = "gnu"))]
mod run;

use crate::args::ReplayArgs;
use crate::exit::CliError;

#[cfg(all(feature = "bench", target_os = "linux", target_env = "gnu"))]
pub(crate) use run::command;

/// Runs the command.
#[cfg(all(feature = "bench", not(all(target_os = "linux", target_env = "gnu"))))]
pub(crate) fn command(_: &ReplayArgs) -> Result<crate::exit::Exit, CliError> {
    Err(CliError::Usage(crate::bench::ELSEWHERE.to_owned()))
}

/// Refuses options that apply only to real memory if the memory is simulated.
///
/// # Errors
/// Returns an error if one of them was given.
pub(crate) fn refuse_without(args: &ReplayArgs) -> Result<(), CliError> {
    let check = [("--check", args.host.check)];
    refuse(&check, "is for real memory: add --source host or --source cuda:N")?;
    refuse_without_host(args)
}

/// Refuses the options that only apply to the host's memory.
///
/// # Errors
/// Returns an error if one of them was given.
pub(crate) fn refuse_without_host(args: &ReplayArgs) -> Result<(), CliError> {
    let host = &args.host;
    let given = [
        ("--touch", host.touch.is_some()),
        ("--scale", host.scale.is_some()),
        ("--rounds", host.rounds.is_some()),
    ];
    refuse(&given, "is for real memory: add --source host")
}

/// Refuses the first of these options that was given.
///
/// # Errors
/// Returns an error if one of them was given.
pub(crate) fn refuse(given: &[(&str, bool)], why: &str) -> Result<(), CliError> {
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(CliError::Usage(format!("{name} {why}"))),
        None => Ok(()),
    }
}
