//! Exit codes, and errors of one line.

use crate::terminal::say;
use millpond_engine::plan::PlanError;
use millpond_engine::{ConfError, CostsError};
use millpond_replay::analysis::AnalysisError;
use millpond_replay::{EditError, ReplayError};
use millpond_trace::ReadError;
use std::path::PathBuf;
use thiserror::Error;

/// The outcome of a command without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command did what was requested.
    Done,
    /// Some runs failed and were reported, and the others succeeded.
    Failed,
    /// Every policy ran out of memory on the named device.
    OutOfMemory,
    /// The exit code of a command that was run for the user.
    Other(u8),
}

impl Exit {
    /// Returns the exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::OutOfMemory => 3,
            Self::Other(code) => code,
        }
    }
}

/// The exit code of every error. The user has to correct the input.
pub(crate) const BAD_INPUT: u8 = 2;

/// The reason why a command failed. Each message is one line.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: ReadError },
    /// A file or folder does not exist or is not readable.
    #[error("cannot read {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    /// A folder contains no recording.
    #[error("{} contains no files; name a recording or a folder of recordings", .0.display())]
    EmptyFolder(PathBuf),
    /// A snapshot contains a state but no history.
    #[error(
        "{} holds the allocator's state and no history, so {nothing}: {instead}, \
         and call torch.cuda.memory._record_memory_history() before the next dump", path.display()
    )]
    NoHistory {
        path: PathBuf,
        nothing: &'static str,
        instead: &'static str,
    },
    /// A policy does not exist.
    #[error("unknown policy '{name}':{hint} choose one of {known}")]
    UnknownPolicy {
        name: String,
        hint: String,
        known: String,
    },
    /// A replay was refused.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// An edit of the recorded program was refused.
    #[error("--edit: {0}")]
    Edit(#[from] EditError),
    /// A setting was refused.
    #[error("{option}: {source}")]
    Conf { option: &'static str, source: ConfError },
    /// The table of costs was refused.
    #[error("{}: {source}", path.display())]
    Costs { path: PathBuf, source: CostsError },
    /// A saved plan was refused.
    #[error("{}: {source}", path.display())]
    Plan { path: PathBuf, source: PlanError },
    /// A recording could not be read as rows, or could not be written in another format.
    #[error("{}: {source}", path.display())]
    Export {
        path: PathBuf,
        source: millpond_trace::export::ExportError,
    },
    /// A recording could not be analysed.
    #[error("{}: {source}", path.display())]
    Analysis { path: PathBuf, source: AnalysisError },
    /// A recording must be read several times, but the file can be read only once.
    #[error("{} is not a regular file: a recording is read several times, so write it to a file first, or pipe it to this command with - as the file", .0.display())]
    NotAFile(PathBuf),
    /// A page cannot be served.
    #[error(
        "cannot serve the page on 127.0.0.1: {source}; name another port with --port, or write a file with --html"
    )]
    Serve { source: std::io::Error },
    /// A Cargo feature that the request needs was off when this program was built.
    #[error(
        "this build of millpond does not contain {what}; to get it, run `cargo install --path crates/millpond-cli --features {feature}` \
         in a clone of the repository"
    )]
    #[cfg(not(all(feature = "bench", feature = "parquet", feature = "top")))]
    NotBuilt { what: String, feature: &'static str },
    /// A result could not be written.
    #[error("cannot write {what}: {source}")]
    Write { what: String, source: std::io::Error },
}

impl CliError {
    /// Returns the error for a request that needs a Cargo feature which is off in this build.
    #[cfg(not(all(feature = "bench", feature = "parquet", feature = "top")))]
    pub(crate) fn not_built(what: impl Into<String>, feature: &'static str) -> Self {
        Self::NotBuilt {
            what: what.into(),
            feature,
        }
    }

    /// Returns whether the reader has closed the output. The command then ends without a message.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

/// Prints an error as one line.
pub(crate) fn complain(error: &dyn std::fmt::Display) {
    say(&error.to_string().split_whitespace().collect::<Vec<_>>().join(" "));
}

/// Returns the argument that the command does not have.
fn unknown(error: &clap::Error) -> Option<&str> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) if error.kind() == ErrorKind::UnknownArgument => Some(argument),
        _ => None,
    }
}

/// Returns the unknown argument if it is a negative number.
fn negative_number(error: &clap::Error) -> Option<&str> {
    let argument = unknown(error)?;
    let digits = argument.strip_prefix('-')?;
    digits
        .starts_with(|c: char| c.is_ascii_digit())
        .then_some(argument)
}

/// Returns an option that the command does not have, and the commands that have it.
fn of_another_command<'a>(error: &'a clap::Error, all: &clap::Command) -> Option<(&'a str, String)> {
    let argument = unknown(error)?;
    let name = argument.strip_prefix("--")?;
    let has = |command: &&clap::Command| {
        let mut options = command.get_arguments().filter(|option| !option.is_hide_set());
        options.any(|option| option.get_long() == Some(name))
    };
    let owners = all.get_subcommands().filter(has);
    let owners: Vec<String> = owners
        .map(|command| format!("`millpond {}`", command.get_name()))
        .collect();
    (!owners.is_empty()).then(|| (argument, owners.join(" or ")))
}

/// Prints help as clap formats it, and any other problem with the command line as one line. `all` has all commands. Returns the exit
/// code.
pub(crate) fn usage(error: &clap::Error, all: &clap::Command) -> u8 {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(
        error.kind(),
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let _ = error.print();
        return if error.exit_code() == 0 {
            Exit::Done.code()
        } else {
            BAD_INPUT
        };
    }
    if let Some(number) = negative_number(error) {
        complain(&format!(
            "{number} is a negative number, and no option here takes one; see --help"
        ));
        return BAD_INPUT;
    }
    if let Some((argument, owners)) = of_another_command(error, all) {
        complain(&format!(
            "this command has no {argument}, but {owners} has; see --help"
        ));
        return BAD_INPUT;
    }
    complain(&format!("{}; see --help", line(error)));
    BAD_INPUT
}

/// Returns the problem with the command line as one line.
pub(crate) fn line(error: &clap::Error) -> String {
    let text = error
        .render()
        .to_string()
        .replace("invalid digit found in string", "write a whole number");
    let lines = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:"));
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    // clap prints a tip on a line of its own. It becomes a parenthesis after the message.
    let lines = lines.map(|line| match line.strip_prefix("tip: ") {
        Some(tip) => format!("({tip})"),
        None => line.to_owned(),
    });
    let joined = lines.collect::<Vec<_>>().join(" ");
    joined.strip_prefix("error: ").unwrap_or(&joined).to_owned()
}
