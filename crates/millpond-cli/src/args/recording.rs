//! Commands that analyse recordings.

use crate::values::{Moments, parse_moment, parse_moments, parse_window};
use clap::{Args, ValueEnum};
use millpond_replay::DeviceSize;
use millpond_replay::analysis::{By, Gate, Moment};
use std::path::PathBuf;

/// `millpond report`.
#[derive(Debug, Args)]
#[command(after_help = REPORT_EXAMPLES, max_term_width = 100)]
pub(crate) struct ReportArgs {
    /// The recording; - is standard input
    #[arg(value_name = "FILE", value_parser = super::recording())]
    pub(crate) file: PathBuf,

    /// Group held bytes by tag, call site, whole stack, pool, stream, thread or kind of memory [default: tag; site
    /// if the recording has stacks and no tags]
    #[arg(
        long,
        value_enum,
        value_name = "tag|site|stack|pool|stream|thread|kind",
        hide_possible_values = true
    )]
    pub(crate) by: Option<GroupedBy>,

    /// Show only the blocks that are held at a moment: peak, end, a time such as 1.5s, or the peak of a step
    #[arg(long, value_name = "peak|end|TIME|step:K", value_parser = parse_moment, conflicts_with_all = ["time_window", "plot"])]
    pub(crate) at: Option<Moment>,

    /// Report only this part, counted from the start of the recording: 1.5s..3s, 200ms.., ..2s
    #[arg(long, value_name = "FROM..TO", value_parser = parse_window)]
    pub(crate) time_window: Option<(u64, u64)>,

    /// Number of groups to show; the others are one row
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    pub(crate) top: usize,

    /// The card of a snapshot without a history: print what a new segment could still hold on it
    #[arg(long, short = 'd', value_name = "SIZE|CARD", value_parser = super::device)]
    pub(crate) device: Option<DeviceSize>,

    /// Also draw bytes by group over time to this file
    #[arg(long, value_name = "SVG|PNG")]
    pub(crate) plot: Option<PathBuf>,

    /// Print the result as JSON, and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

const REPORT_EXAMPLES: &str = "\
Examples:
  millpond report run.mpr                    holders at the peak, and recommended changes
  millpond report run.pickle --by site       the same by the function that allocated
  millpond report run.pickle --by stack --top 3  the same with the whole stacks
  millpond report run.mpr --at step:12       blocks held at the peak of a step
  millpond report run.mpr --time-window 2s..4s  a part of it: its peak, its leaks
  millpond report run.mpr --plot run.svg     bytes by tag over time";

/// `millpond diff`.
#[derive(Debug, Args)]
#[command(after_help = DIFF_EXAMPLES, max_term_width = 100)]
pub(crate) struct DiffArgs {
    /// The first recording; - is standard input
    #[arg(value_name = "FIRST", value_parser = super::recording())]
    pub(crate) first: PathBuf,

    /// The second recording; without it, two moments of the first are compared
    #[arg(value_name = "SECOND", value_parser = super::recording())]
    pub(crate) second: Option<PathBuf>,

    /// Compare at this moment: peak, end, a time or the peak of a step; give two, separated by a comma, to compare two moments
    #[arg(long, value_name = "peak|end|TIME|step:K[,…]", default_value = "peak", value_parser = parse_moments)]
    pub(crate) at: Moments,

    /// Group held bytes by tag, call site, whole stack, pool, stream, thread or kind of memory [default: tag; site
    /// if the recording has stacks and no tags]
    #[arg(
        long,
        value_enum,
        value_name = "tag|site|stack|pool|stream|thread|kind",
        hide_possible_values = true
    )]
    pub(crate) by: Option<GroupedBy>,

    /// Number of groups to show; the others are one row
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    pub(crate) top: usize,

    /// Fail if this condition holds: peak>+2%, peak>24GiB, leaks>0 or allocations>+5%; may be given several times
    #[arg(long, value_name = "FIGURE>LIMIT")]
    pub(crate) fail_if: Vec<Gate>,

    /// Print the result as JSON, and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

const DIFF_EXAMPLES: &str = "\
Examples:
  millpond diff before.mpr after.mpr                      growth at the peak, by tag
  millpond diff before.mpr after.mpr --by site --at end   growth at the end, by function
  millpond diff run.mpr --at step:2,step:50               growth between two steps
  millpond diff base.mpr new.mpr --fail-if 'peak>+2%' --fail-if 'leaks>0'

Figures: peak, requested, reserved, fragmentation, end, leaks, allocations,
allocated, temporaries. A plus sign compares with the first recording, in bytes, as a
count or in per cent.

Exit status: 0 compared, 1 a --fail-if holds, 2 bad input.";

/// The grouping of held bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroupedBy {
    /// The tag
    Tag,
    /// The function that allocated
    Site,
    /// The whole stack
    Stack,
    /// The pool
    Pool,
    /// The stream
    Stream,
    /// The thread
    Thread,
    /// The kind of memory and the device
    Kind,
}

impl From<GroupedBy> for By {
    fn from(by: GroupedBy) -> Self {
        match by {
            GroupedBy::Tag => Self::Tag,
            GroupedBy::Site => Self::Site,
            GroupedBy::Stack => Self::Stack,
            GroupedBy::Pool => Self::Pool,
            GroupedBy::Stream => Self::Stream,
            GroupedBy::Thread => Self::Thread,
            GroupedBy::Kind => Self::Kind,
        }
    }
}

/// `millpond view`.
#[derive(Debug, Args)]
#[command(after_help = VIEW_EXAMPLES, max_term_width = 100)]
pub(crate) struct ViewArgs {
    /// The recordings; several are shown one below the other with the same time axis; - is standard input
    #[arg(required = true, value_name = "FILE", value_parser = super::recording())]
    pub(crate) files: Vec<PathBuf>,

    /// Write one HTML page that needs no network, instead of serving a page
    #[arg(long, value_name = "FILE", conflicts_with_all = ["port", "no_open"])]
    pub(crate) html: Option<PathBuf>,

    /// The port to serve on [default: a free port]
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,

    /// Print the address, and do not open a browser
    #[arg(long)]
    pub(crate) no_open: bool,

    /// Also draw the memory that these policies would reserve, comma-separated; the served page offers all of them
    #[arg(long, short = 'p', value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,

    /// Show at most the N largest blocks one by one, and the others as one total [default: 8,000,000; with --html
    /// 1,000,000]
    #[arg(long, value_name = "N")]
    pub(crate) blocks: Option<u64>,

    /// Print only errors on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

const VIEW_EXAMPLES: &str = "\
Examples:
  millpond view run.mpr                      in the browser, until ctrl-c
  millpond view run.pickle --html run.html   one file to keep or to send
  millpond view before.mpr after.mpr         both with the same time axis, and their differences
  millpond view host.mpr run.mpr run.pickle  recordings of one run on one clock
  millpond view run.pickle -p millpond       compared with another policy

The page is served only on 127.0.0.1, under an address that cannot be guessed.";
