//! The arguments of `millpond record`.

use super::device;
use clap::Args;
use millpond_replay::DeviceSize;
use std::ffi::OsString;
use std::path::PathBuf;

/// `millpond record`.
#[derive(Debug, Args)]
#[command(after_help = RECORD_EXAMPLES, max_term_width = 100)]
pub(crate) struct RecordArgs {
    /// The recording to write; an older recording there is replaced. Recordings of other processes have the process ID in the name, as in
    /// run.4711.mpr
    #[arg(long, short, value_name = "FILE", default_value = "run.mpr")]
    pub(crate) output: PathBuf,

    /// Refuse memory beyond this size of each device: 20GiB, 24G (= GiB), 80GB, or a card (see `millpond cards`)
    #[arg(long, value_name = "SIZE", value_parser = device)]
    pub(crate) limit: Option<DeviceSize>,

    /// Record at most N return addresses of each call; without them no owners are known
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u16).range(0..=i64::from(millpond_intercept::MOST_FRAMES)))]
    pub(crate) stacks: u16,

    /// Run no program; convert the logs that an earlier run left in this folder
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["limit", "stacks", "command"])]
    pub(crate) from: Option<PathBuf>,

    /// Print only errors on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// The program and its arguments
    #[arg(required_unless_present = "from", last = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

const RECORD_EXAMPLES: &str = "\
Examples:
  millpond record -- python train.py
  millpond record -o train.mpr -- torchrun --nproc-per-node 4 train.py
  millpond record --limit 20GiB -- ./program   a large card as a small one
  millpond report run.mpr                      who held what

The program is not changed. Every call to the driver's memory functions is recorded, whichever library
makes it, in all processes that the program starts.

Exit status: that of the program; 2 if the program could not be started, or if --from could not write a
recording.";
