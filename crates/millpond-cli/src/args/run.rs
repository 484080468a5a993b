//! The arguments of `millpond run`.

use super::size;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// `millpond run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, max_term_width = 100)]
pub(crate) struct RunArgs {
    /// Refuse memory beyond this size of each process: 2GiB, 512M (= MiB), 2GB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) limit: Option<u64>,

    /// Settings of the pool, as in MILLPOND_CONF, which they replace; the error for an unknown setting lists all of them
    #[arg(long, value_name = "KEY:VALUE,…")]
    pub(crate) conf: Option<String>,

    /// Write a recording of the program. If the name contains %p, which stands for the process ID, each process that the program starts is
    /// recorded too, as in run.%p.mpr
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// The blocks of the recording that have stacks: all, none, or one for each number of bytes, such as 512K
    #[arg(
        long,
        value_name = "all|none|BYTES",
        default_value = "512K",
        requires = "record",
        value_parser = stacks
    )]
    pub(crate) stacks: String,

    /// Memory for the events of one thread that are not written yet [default: 64M]
    #[arg(long, value_name = "SIZE", requires = "record", value_parser = size)]
    pub(crate) ring: Option<u64>,

    /// Print the statistics of each process to stderr when it ends
    #[arg(long)]
    pub(crate) stats: bool,

    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  millpond run --stats -- python train.py
  millpond run --limit 2GiB -- ./server
  millpond run --record run.%p.mpr -- make      then: millpond report run.4711.mpr

The program is not changed. A pool serves its malloc, free and operator new, and those of
all programs that it starts. A request beyond the limit is refused, and the first refusal
is explained on stderr.

Exit status: that of the program; 2 if the program could not be started.";

/// Checks which blocks of a recording have stacks.
fn stacks(text: &str) -> Result<String, String> {
    if !["all", "none"].contains(&text) {
        size(text).map_err(|error| format!("{error}; or write all or none"))?;
    }
    Ok(text.to_owned())
}
