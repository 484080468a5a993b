//! The definition of the command line.

mod recording;

pub(crate) use recording::{DiffArgs, ReportArgs, ViewArgs};

use crate::text::nearest;
#[cfg(feature = "bench")]
use crate::values::parse_cuda;
use crate::values::{
    Scale, SourceKind, parse_scale, parse_source, parse_tick, parse_time, parse_time_window, parse_window,
};
use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use millpond_engine::{ParseSizeError, parse_size};
use millpond_replay::{DeviceSize, Selection, TickEvery, cards, cards_like, parse_device};
use std::ffi::OsString;
use std::path::PathBuf;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "millpond",
    version,
    about = "Replays a program's recorded allocations against any allocator, on any size of GPU, without the GPU",
    after_help = EXAMPLES,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  millpond info run.pickle                   what a recording holds
  millpond replay run.pickle                 every allocator side by side
  millpond replay run.pickle --device 24G    would it fit, and if not, why
  millpond replay run.pickle --fit           the smallest GPU for each allocator
  millpond replay ranks/ --device h100       many ranks at once, the worst named
  millpond tune run.pickle --device 24G      settings for your environment
  millpond convert run.mpr run.perfetto-trace  for another tool's viewer
  millpond report run.pickle                 who held what, and what to change
  millpond diff old.mpr new.mpr --fail-if 'peak>+2%'
  millpond view run.pickle                   the same as a timeline in the browser
  millpond bench host w2                     this machine's allocators side by side
  millpond bench seeds                       what others claim of pools, measured here
  millpond bench transfer --device cuda:0    copies to a GPU and back, beside its link
  millpond top                               what running programs have, live
  millpond doctor                            what this machine offers, and what is missing
  millpond cuda-emu -- cargo test            a CUDA program's tests where there is no GPU

A recording is a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot),
an RMM log, a chrome trace of torch.profiler or Millpond CSV, plain, gzip or
zstd, or Millpond's own (.mpr). Nothing in it is ever executed.

Exit status: 0 done, 1 a run or a limit failed, 2 bad input, 3 no policy fits the device.";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replay recordings under one or more allocation policies
    Replay(ReplayArgs),
    /// Search the settings of each allocator, and print the line to paste into the environment
    Tune(TuneArgs),
    /// Say what recordings hold, and what is missing from them
    Info(InfoArgs),
    /// Write a recording in another tool's format: Perfetto, PyTorch, pprof, speedscope, heaptrack and more
    Convert(ConvertArgs),
    /// Say who held what in a recording, when, and what is worth changing
    Report(ReportArgs),
    /// Compare two recordings, or two moments of one
    Diff(DiffArgs),
    /// Show recordings as a timeline in the browser, or as one page that needs no network
    View(ViewArgs),
    /// Find the repeating step of a recording, and solve where its blocks go
    Plan(PlanArgs),
    /// Measure memory on this machine: Millpond's pools beside other allocators, and beside a CUDA driver
    #[cfg(feature = "bench")]
    Bench(BenchArgs),
    /// Measure memory on this machine (not in this build: install it with `--features bench`)
    #[cfg(not(feature = "bench"))]
    #[command(disable_help_flag = true)]
    Bench(AbsentArgs),
    /// List the allocation policies, and how true each is to its original
    Policies(PoliciesArgs),
    /// Run a command with an emulated CUDA driver in the place of the real one
    CudaEmu(CudaEmuArgs),
    /// List the cards that --device knows by name
    Cards,
    /// Show what programs that use Millpond have, live: pools, budgets, devices, tags, warnings
    #[cfg(feature = "top")]
    Top(TopArgs),
    /// Show what programs that use Millpond have, live (not in this build: install it with `--features top`)
    #[cfg(not(feature = "top"))]
    #[command(disable_help_flag = true)]
    Top(AbsentArgs),
    /// Say what this machine offers (memory, limits, huge pages, CUDA) and what to do about what is missing
    Doctor(DoctorArgs),
}

/// `millpond doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON instead
    #[arg(long)]
    pub(crate) json: bool,
}

/// `millpond top`.
#[cfg(feature = "top")]
#[derive(Debug, Args)]
#[command(after_help = TOP_EXAMPLES, max_term_width = 100)]
pub(crate) struct TopArgs {
    /// A process by its number, the path of a socket, or an address such as 127.0.0.1:9464 [default: a list of all]
    #[arg(value_name = "PID|SOCKET|ADDRESS")]
    pub(crate) process: Option<String>,

    /// Print one frame as plain text, and end; also where stdout is no terminal
    #[arg(long)]
    pub(crate) once: bool,

    /// Print what the process says as JSON, or the list of processes, and end
    #[arg(long, conflicts_with = "once")]
    pub(crate) json: bool,
}

#[cfg(feature = "top")]
const TOP_EXAMPLES: &str = "\
A program is seen when it is started with MILLPOND_MONITOR=1, or starts a Monitor with a socket
itself. It is only read, and does not notice who comes and goes.

Examples:
  MILLPOND_MONITOR=1 ./train &      a program that says nothing of monitors
  millpond top                      the list of processes, and a live view of the chosen one
  millpond top 4242                 a live view of one
  millpond top 4242 --once          one frame as plain text
  millpond top 4242 --json | jq .pools
  millpond top 127.0.0.1:9464       by way of a port, MILLPOND_MONITOR=127.0.0.1:9464";

/// `millpond replay`.
#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES, max_term_width = 100)]
pub(crate) struct ReplayArgs {
    /// Recordings; a folder stands for all files in it, - for standard input
    #[arg(required = true, value_name = "FILE", value_parser = recording())]
    pub(crate) files: Vec<PathBuf>,

    /// Policies to replay, comma-separated [default: all; see `millpond policies`]
    #[arg(long, short = 'p', value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    #[command(flatten)]
    pub(crate) host: HostArgs,

    /// Find the smallest device on which each policy finishes, and what running there costs
    #[arg(long)]
    pub(crate) fit: bool,

    #[command(flatten)]
    pub(crate) selection: SelectionArgs,

    /// Settings of the torch policies, as in PYTORCH_CUDA_ALLOC_CONF
    #[arg(long, value_name = "KEY:VALUE,…")]
    pub(crate) torch_conf: Option<String>,

    /// Settings of millpond and planned, as in MILLPOND_CONF; `millpond policies` lists them; keys
    /// that only pools have are for --source host
    #[arg(long, value_name = "KEY:VALUE,…")]
    pub(crate) conf: Option<String>,

    /// When time passes for millpond and planned: at each `step`, or after every N calls [default: never]
    #[arg(long, value_name = "step|N", value_parser = parse_tick)]
    pub(crate) tick: Option<TickEvery>,

    /// A plan saved by `millpond plan --save`, for the policy planned to start with
    #[arg(long, value_name = "PLAN")]
    pub(crate) plan: Option<PathBuf>,

    /// Hold the replay against the addresses the recording names (PyTorch snapshots with a history)
    #[arg(long)]
    pub(crate) verify: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Also write the report as one HTML page that needs no network
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

const REPLAY_EXAMPLES: &str = "\
Examples:
  millpond replay run.pickle -p torch-native,torch-expandable -d 80GiB
  millpond replay run.pickle --device rtx4090 --reserve 1.5GiB --fit
  millpond replay run.pickle --torch-conf \"max_split_size_mb:128\"
  millpond replay run.pickle --conf decay:4 --tick step
  millpond replay run.pickle --source host   on this machine's memory, beside glibc
  millpond replay run.pickle --source cuda:0 on a GPU's memory, held against the simulation
  millpond replay run.pickle --time-window 1.5s..3s --html report.html
  millpond replay ranks/ --device h100 --json > ranks.json

Exit status: 0 replayed, 1 an allocator of --source host or the driver of --source cuda:N failed,
             2 bad input, 3 every policy ran out of memory on --device or --source cuda:N.";

/// The device, and what is known about its driver.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Memory of the device: 80GiB, 24G (= GiB), 80GB (powers of ten), or a card (see `millpond cards`) [default:
    /// unlimited]
    #[arg(long, short = 'd', value_name = "SIZE", value_parser = device)]
    pub(crate) device: Option<DeviceSize>,

    /// What else lives on the device: other processes, libraries, communication buffers
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "device")]
    pub(crate) reserve: Option<u64>,

    /// Whether the device can map pages (virtual memory management)
    #[arg(
        long,
        value_enum,
        value_name = "on|off",
        default_value = "on",
        hide_possible_values = true
    )]
    pub(crate) paged: Paged,

    /// Memory to replay on: a simulated device, this machine's own memory beside its allocators, or a CUDA device's
    #[arg(long, value_name = "sim|host|cuda:N", default_value = "sim", value_parser = parse_source)]
    pub(crate) source: SourceKind,

    /// Costs of driver calls to use instead of the assumed ones, as TOML
    #[arg(long, value_name = "FILE")]
    pub(crate) costs: Option<PathBuf>,
}

/// Whether pages can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Paged {
    /// They can
    On,
    /// The device only gives whole allocations
    Off,
}

/// The heading under which `--help` lists these options. Each option names it, because a heading of the whole group would also apply
/// to the options after the group.
#[cfg(feature = "bench")]
const HOST: &str = "With --source host";
#[cfg(not(feature = "bench"))]
const HOST: &str = "With --source host (not in this build: install it with `--features bench`)";

/// How a recording is replayed on real memory.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// What is written to each block: nothing, one byte of each 4 KiB page, or all of it [default: page]
    #[arg(long, help_heading = HOST, value_enum, value_name = "none|page|full", hide_possible_values = true)]
    pub(crate) touch: Option<Touched>,

    /// Write marks at both ends of each block (on a CUDA device in each 2 MiB too) and compare them when it is freed
    #[arg(long, help_heading = HOST)]
    pub(crate) check: bool,

    /// Divide every size by N [default: auto, so that the peak fits a quarter of the memory that is free]
    #[arg(long, help_heading = HOST, value_name = "N|auto", value_parser = parse_scale)]
    pub(crate) scale: Option<Scale>,

    /// Runs of each allocator, in turn, a process for each [default: 3]
    #[arg(long, help_heading = HOST, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: Option<u16>,
}

/// What is written to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Touched {
    /// Nothing
    None,
    /// One byte of each page
    Page,
    /// Every byte
    Full,
}

/// Which events are replayed.
#[derive(Debug, Args)]
pub(crate) struct SelectionArgs {
    /// Replay only this part, counted from the first event: 1.5s..3s, 200ms.., ..2s
    #[arg(long, value_name = "FROM..TO", value_parser = parse_time_window)]
    pub(crate) time_window: Option<(u64, u64)>,

    /// Keep streams apart, or replay everything on one
    #[arg(long, value_enum, default_value = "keep")]
    pub(crate) streams: Streams,
}

/// What becomes of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Streams {
    /// Each stays its own
    Keep,
    /// All become one
    Merge,
}

impl From<&SelectionArgs> for Selection {
    fn from(args: &SelectionArgs) -> Self {
        Self {
            merge_streams: args.streams == Streams::Merge,
            window_us: args.time_window,
        }
    }
}

/// What is printed, and how.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print the result as JSON, and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    /// Replace file, module and function names by stand-ins, so that the report can be shared
    #[arg(long)]
    pub(crate) redact: bool,

    /// Say nothing on stderr but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Threads to replay on [default: as many as the machine has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}

/// `millpond tune`.
#[derive(Debug, Args)]
#[command(max_term_width = 100)]
pub(crate) struct TuneArgs {
    /// The recording; - is standard input
    #[arg(value_name = "FILE", value_parser = recording())]
    pub(crate) file: PathBuf,

    /// Whose settings to search, comma-separated: torch, millpond [default: both]
    #[arg(long, short = 'p', value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    #[command(flatten)]
    pub(crate) selection: SelectionArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Rows to show
    #[arg(long, value_name = "N", default_value_t = 8, allow_negative_numbers = true)]
    pub(crate) top: usize,
}

/// `millpond info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// Recordings; a folder stands for all files in it, - for standard input
    #[arg(required = true, value_name = "FILE", value_parser = recording())]
    pub(crate) files: Vec<PathBuf>,

    /// Print the result as JSON, and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    /// Say nothing on stderr but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// `millpond convert`.
#[derive(Debug, Args)]
#[command(after_help = convert_help(), max_term_width = 100)]
pub(crate) struct ConvertArgs {
    /// A recording
    #[arg(value_name = "IN", value_parser = recording())]
    pub(crate) input: PathBuf,

    /// The file to write; its ending says the format
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,

    /// The format, by its ending, where OUT's says another or none
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: Option<String>,

    /// Which blocks a profile counts: those live at the peak, all there ever were, those live at the end
    #[arg(
        long,
        value_enum,
        value_name = "peak|total|end",
        default_value = "peak",
        hide_possible_values = true
    )]
    pub(crate) at: Counted,

    /// Only what is on this device; -1 is the host
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) device: Option<i32>,

    /// Only this part, counted from the first event: 1.5s..3s, 200ms.., ..2s
    #[arg(long, value_name = "FROM..TO", value_parser = parse_window, conflicts_with_all = ["from", "to_time"])]
    pub(crate) time_window: Option<(u64, u64)>,

    /// The older spelling of `--time-window FROM..`
    #[arg(long, value_name = "TIME", value_parser = parse_time, hide = true)]
    pub(crate) from: Option<u64>,

    /// The older spelling of `--time-window ..TO`
    #[arg(long, value_name = "TIME", value_parser = parse_time, hide = true)]
    pub(crate) to_time: Option<u64>,

    /// At most so many of the last events of each device, in a .pickle
    #[arg(long, value_name = "N")]
    pub(crate) last: Option<u64>,

    /// Say nothing on stderr but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Returns the list of formats, which says what this build does not contain.
fn convert_help() -> String {
    const PARQUET: &str = "pandas, polars, DuckDB: names instead of numbers";
    match cfg!(feature = "parquet") {
        true => CONVERT_HELP.to_owned(),
        false => CONVERT_HELP.replace(
            PARQUET,
            "(not in this build: install it with `--features parquet`)",
        ),
    }
}

const CONVERT_HELP: &str = "\
Formats, by the ending of OUT (.gz and .zst behind it compress all but .mpr and .parquet):
  .perfetto-trace   ui.perfetto.dev: counters, allocations with stacks
  .pickle           docs.pytorch.org/memory_viz: a snapshot with its history
  .pb.gz            pprof: allocated and in use, by stack
  .speedscope.json  speedscope.app: one profile
  .folded           flamegraph.pl and others: a stack on each line
  .dhat.json        valgrind's dh_view.html
  .heaptrack        heaptrack_print and heaptrack_gui
  .trace.json       chrome's tracing and most viewers of traces
  .parquet          pandas, polars, DuckDB: names instead of numbers
  .mpr              a recording of Millpond's
  .csv.zst          Millpond CSV

Examples:
  millpond convert run.mpr run.perfetto-trace
  millpond convert run.mpr leaks.folded --at end
  millpond convert run.pickle part.mpr --device 0 --time-window 1.5s..3s";

/// Which blocks a profile counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Counted {
    /// Those live at the peak
    Peak,
    /// All there ever were
    Total,
    /// Those live at the end
    End,
}

/// `millpond plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// A recording; - is standard input
    #[arg(value_name = "FILE", value_parser = recording())]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) selection: SelectionArgs,

    /// Draw the plan to this file, address by time
    #[arg(long, value_name = "SVG")]
    pub(crate) svg: Option<PathBuf>,

    /// Save the plan to this file
    #[arg(long, value_name = "PLAN")]
    pub(crate) save: Option<PathBuf>,

    /// Replace the recording's name by a stand-in
    #[arg(long)]
    pub(crate) redact: bool,

    /// Print the result as JSON, and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    /// Say nothing on stderr but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// The arguments of a command that this build does not contain. They are accepted, because the command itself is the error.
#[cfg(not(all(feature = "bench", feature = "top")))]
#[derive(Debug, Args)]
pub(crate) struct AbsentArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

/// `millpond bench`.
#[cfg(feature = "bench")]
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Bench,
}

/// What is measured.
#[cfg(feature = "bench")]
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Allocators under the usual loads: hot pairs, batches, blocks that stay, threads, zeroed memory
    #[command(disable_help_flag = true)]
    Host {
        /// Workloads and options; `--help` lists them
        #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Copies between the host and a CUDA device: pinned, staged and ordinary memory, beside what the link can do
    Transfer {
        /// The device, as `cuda:0`
        #[arg(long, value_name = "DEVICE", default_value = "cuda:0")]
        device: String,

        /// Only see that all of it runs: two sizes, once
        #[arg(long)]
        quick: bool,
    },
    /// What five tensor libraries' documents claim of their pools, and the same loops here
    Seeds {
        /// Only see that all of it runs: one pass of each loop
        #[arg(long)]
        quick: bool,

        /// Rounds, a process for each allocator and loop in every one [default: 3; quick: 1]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
        rounds: Option<u16>,
    },
    /// What calls of a CUDA driver cost, as the table that `replay --costs` reads
    Driver(MeasuredArgs),
    /// A pool of a CUDA device beside its driver: hot pairs, a loop of buffers, latencies
    Alloc(MeasuredArgs),
    /// The same update of an array of structures and of a structure of arrays, by kernels on a CUDA device
    Kernels(MeasuredArgs),
    /// What a recording costs: time of an event, bytes of the file, events that had no room
    Record {
        /// A recorded program, whose calls are made again while they are recorded
        #[arg(value_name = "FILE")]
        trace: Option<PathBuf>,

        /// Rounds of the pairs, of which medians are printed
        #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
        rounds: u16,

        /// Events of the program at the least, for which its calls are made again and again
        #[arg(long, value_name = "N", default_value_t = 10_000_000)]
        events: u64,
    },
}

/// A CUDA device, and how often it is measured.
#[cfg(feature = "bench")]
#[derive(Debug, Args)]
pub(crate) struct MeasuredArgs {
    /// The device
    #[arg(long, short = 'd', value_name = "cuda:N", default_value = "cuda:0", value_parser = parse_cuda)]
    pub(crate) device: u32,

    /// Rounds, of which medians are printed
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
}

/// `millpond policies`.
#[derive(Debug, Args)]
pub(crate) struct PoliciesArgs {
    /// Print the result as JSON, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// `millpond cuda-emu`.
#[derive(Debug, Args)]
#[command(after_help = CUDA_EMU_EXAMPLES, max_term_width = 100)]
pub(crate) struct CudaEmuArgs {
    /// What the driver is to be like, as in MILLPOND_CUDA_EMU; one that is wrong lists them all
    #[arg(long, short = 'o', value_name = "KEY:VALUE,…")]
    pub(crate) options: Option<String>,

    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

const CUDA_EMU_EXAMPLES: &str = "\
Examples:
  millpond cuda-emu -- cargo test
  millpond cuda-emu -o devices:2,memory:24G -- ./program
  millpond cuda-emu -o streams:seeded,seed:7,strict:on -- cargo test

It serves clients of the driver's interface, such as cudarc; NVIDIA's runtime
and its libraries ask the driver for more than is public. Kernels are functions
registered by name: no foreign code is run.

Exit status: that of the command; 2 if it could not be started.";

/// Parses the path of a recording; `-` is standard input. Commands that read a recording several times refuse a pipe.
fn recording() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| match path.as_os_str() == "-" {
        true => PathBuf::from("/dev/stdin"),
        false => path,
    })
}

fn size(text: &str) -> Result<u64, ParseSizeError> {
    parse_size(text)
}

/// Parses a size or a card. The error names both, because the user may have meant either.
fn device(text: &str) -> Result<DeviceSize, String> {
    parse_device(text).map_err(|error| {
        let names: Vec<&str> = cards_like(text).iter().map(|card| card.name).collect();
        let names = match names.as_slice() {
            [] => nearest(text, cards().iter().map(|card| card.name)).map(str::to_owned),
            several => Some(several.join(" or ")),
        };
        match names {
            Some(names) => format!("{error}; did you mean {names}? `millpond cards` lists all cards"),
            None => format!("{error}; or name a card, see `millpond cards`"),
        }
    })
}
