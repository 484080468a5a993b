//! The command `millpond`, for programs that contain it, such as the Python package.
//!
//! ```text
//!   args, values      the command line
//!   replay tune info plan policies doctor      one file for each command
//!   host, bench       commands that use this machine's memory
//!   convert, symbols  recordings in other tools' formats, with names for addresses
//!   cuda              a replay on a CUDA device's memory
//!   top               live statistics of running programs
//!   cuda_emu          a command with the emulated CUDA driver
//!   record            a recording of what a program takes from the CUDA driver
//!   run               a program with a pool as its malloc; program starts programs for these commands
//!   report diff       the contents of a recording; plot draws them, state formats segments and holes
//!   view              the same as a timeline in the browser
//!   side_by_side ranks failure table     text output, also text and terminal
//!   edits             changes of the recorded program
//!   recording answer  the commands as functions of a recording in memory
//!   files, spool, output, progress, exit  input and output
//! ```
//!
//! Results go to stdout in one piece. Everything else goes to stderr, where every error is one line.
#![forbid(unsafe_code)]

mod answer;
mod args;
#[cfg(feature = "bench")]
mod bench;
mod convert;
#[cfg(feature = "bench")]
mod cuda;
mod cuda_emu;
mod device;
mod diff;
mod doctor;
mod edits;
mod exit;
mod facts;
mod failure;
mod files;
mod host;
mod html;
mod info;
mod output;
mod plan;
mod plot;
mod policies;
mod program;
mod progress;
mod ranks;
mod record;
mod recording;
mod replay;
mod report;
mod run;
mod settings;
mod side_by_side;
mod spool;
mod stack;
mod state;
mod symbols;
mod table;
mod terminal;
mod text;
#[cfg(feature = "top")]
mod top;
mod tune;
mod values;
mod verdict;
mod view;

pub use answer::Answer;
use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use exit::{BAD_INPUT, CliError, Exit};
pub use progress::{Stage, Work};
#[cfg(feature = "parquet")]
pub use recording::Events;
pub use recording::{Error, Recording};
use std::ffi::OsString;

/// Runs the command with these arguments. The first one is the name of the program. Returns the exit code.
///
/// Results go to standard output, and messages to standard error.
///
/// ```
/// assert_eq!(millpond_cli::run(["millpond", "cards"].map(Into::into)), 0);
/// assert_eq!(millpond_cli::run(["millpond", "no-such-command"].map(Into::into)), 2);
/// ```
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error, &Cli::command()),
    };
    match run_command(&cli.command) {
        Ok(exit) => exit.code(),
        Err(error) if error.is_broken_pipe() => Exit::Done.code(),
        Err(error) => {
            exit::complain(&error);
            BAD_INPUT
        }
    }
}

fn run_command(command: &Command) -> Result<Exit, CliError> {
    match command {
        Command::Replay(args) => replay::command(args),
        Command::Record(args) => record::command(args),
        Command::Run(args) => run::command(args),
        Command::Tune(args) => tune::command(args),
        Command::Info(args) => info::command(args),
        Command::Convert(args) => convert::command(args),
        Command::Report(args) => report::command(args),
        Command::Diff(args) => diff::command(args),
        Command::View(args) => view::command(args),
        Command::Plan(args) => plan::command(args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::command(args),
        #[cfg(not(feature = "bench"))]
        Command::Bench(_) => Err(CliError::not_built("millpond bench", "bench")),
        Command::Policies(args) => policies::command(args),
        Command::CudaEmu(args) => cuda_emu::command(args),
        Command::Cards => device::cards_command(),
        #[cfg(feature = "top")]
        Command::Top(args) => top::command(args),
        #[cfg(not(feature = "top"))]
        Command::Top(_) => Err(CliError::not_built("millpond top", "top")),
        Command::Doctor(args) => doctor::command(args),
    }
}
