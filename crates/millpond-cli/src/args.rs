//! The definition of the command line.

mod record;
mod recording;
mod run;

pub(crate) use record::RecordArgs;
pub(crate) use recording::{DiffArgs, ReportArgs, ViewArgs};
pub(crate) use run::RunArgs;

use crate::text::nearest;
#[cfg(feature = "bench")]
use crate::values::parse_cuda;
use crate::values::{
    Scale, SourceKind, parse_scale, parse_source, parse_tick, parse_time_window, parse_window,
};
use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use millpond_engine::{ParseSizeError, parse_size};
use millpond_replay::{DeviceSize, Edit, Selection, Threads, TickEvery, cards, cards_like, parse_device};
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
  millpond replay run.pickle                 what it needs, and the setting that lowers that
  millpond replay run.pickle --device 24G    would it fit, and if not, why
  millpond replay run.pickle --fit           the smallest GPU for each allocator
  millpond replay ranks/ --device h100       many ranks at once, the worst named
  millpond tune run.pickle --device 24G      settings for your environment
  millpond convert run.mpr run.perfetto-trace  for another tool's viewer
  millpond record -- python train.py         record all device memory of any program
  millpond report run.pickle                 who held what, and what to change
  millpond diff old.mpr new.mpr --fail-if 'peak>+2%'
  millpond view run.pickle                   the same as a timeline in the browser
  millpond bench host w2                     this machine's allocators side by side
  millpond bench seeds                       what others claim of pools, measured here
  millpond bench transfer --device cuda:0    copies to a GPU and back, compared with its link
  millpond top                               what running programs have, live
  millpond doctor                            what this machine offers, and what is missing
  millpond cuda-emu -- cargo test            a CUDA program's tests where there is no GPU

A recording is a PyTorch memory snapshot (torch.cuda.memory._dump_snapshot),
an RMM log, a chrome trace of torch.profiler or Millpond CSV, plain, gzip or
zstd, or Millpond's own (.mpr). Nothing in it is ever executed.

Exit status: 0 done, 1 a run or a limit failed, 2 bad input, 3 no policy fits the device.";

/// The subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replay recordings under one or more allocation policies
    Replay(ReplayArgs),
    /// Run a program, and record all memory that it takes from the CUDA driver
    Record(RecordArgs),
    /// Run a program with a pool as its malloc: limits, statistics and recordings of host memory
    Run(RunArgs),
    /// Search the settings of each allocator, and print the line to paste into the environment
    Tune(TuneArgs),
    /// Print the contents of recordings, and the data that is missing from them
    Info(InfoArgs),
    /// Write a recording in another tool's format: Perfetto, PyTorch, pprof, speedscope, heaptrack and more
    Convert(ConvertArgs),
    /// Show which code held memory in a recording and when, and recommend changes
    Report(ReportArgs),
    /// Compare two recordings, or two moments of one
    Diff(DiffArgs),
    /// Show recordings as a timeline in the browser, or as one page that needs no network
    View(ViewArgs),
    /// Find the repeating step of a recording, and compute a placement of its blocks
    Plan(PlanArgs),
    /// Measure memory on this machine: compare Millpond's pools with other allocators and with a CUDA driver
    #[cfg(feature = "bench")]
    Bench(BenchArgs),
    /// Measure memory on this machine (not in this build: install it with `--features bench`)
    #[cfg(not(feature = "bench"))]
    #[command(disable_help_flag = true)]
    Bench(AbsentArgs),
    /// List the allocation policies, and how closely each reproduces its original
    Policies(PoliciesArgs),
    /// Run a command with an emulated CUDA driver instead of the real one
    CudaEmu(CudaEmuArgs),
    /// List the cards that --device knows by name
    Cards,
    /// Show live statistics of programs that use Millpond: pools, budgets, devices, tags, warnings
    #[cfg(feature = "top")]
    Top(TopArgs),
    /// Show live statistics of programs that use Millpond (not in this build: install it with `--features top`)
    #[cfg(not(feature = "top"))]
    #[command(disable_help_flag = true)]
    Top(AbsentArgs),
    /// Check the memory features of this machine (limits, huge pages, CUDA), and explain how to enable missing ones
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
    /// The process: its id, the path of its socket, or an address such as 127.0.0.1:9464 [default: list all processes]
    #[arg(value_name = "PID|SOCKET|ADDRESS")]
    pub(crate) process: Option<String>,

    /// Print one frame as plain text and exit; this is the default if stdout is not a terminal
    #[arg(long)]
    pub(crate) once: bool,

    /// Print the statistics of the process, or the list of processes, as JSON and exit
    #[arg(long, conflicts_with = "once")]
    pub(crate) json: bool,
}

#[cfg(feature = "top")]
const TOP_EXAMPLES: &str = "\
The list contains programs that run with MILLPOND_MONITOR=1, or that start a Monitor with a
socket. This command only reads from them.

Examples:
  MILLPOND_MONITOR=1 ./train &      a program that does not start a monitor itself
  millpond top                      the list of processes, and a live view of the chosen one
  millpond top 4242                 a live view of one
  millpond top 4242 --once          one frame as plain text
  millpond top 4242 --json | jq .pools
  millpond top 127.0.0.1:9464       the process that serves MILLPOND_MONITOR=127.0.0.1:9464";

/// `millpond replay`.
#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES, max_term_width = 100)]
pub(crate) struct ReplayArgs {
    /// Recordings; a folder means all files in it, and - means standard input
    #[arg(required = true, value_name = "FILE", value_parser = recording())]
    pub(crate) files: Vec<PathBuf>,

    /// Policies to replay, comma-separated, as `millpond policies` lists them [default: the program's own allocator, its
    /// best settings, millpond and planned]
    #[arg(long, help_heading = ALLOCATORS, short = 'p', value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,

    /// Replay all policies
    #[arg(long, help_heading = ALLOCATORS, conflicts_with = "policy")]
    pub(crate) all: bool,

    /// Also show the calls to the driver, by kind
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) calls: bool,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// Find the smallest device on which each policy finishes, and the stalls of a run on it
    #[arg(long, help_heading = DEVICE)]
    pub(crate) fit: bool,

    #[command(flatten)]
    pub(crate) selection: SelectionArgs,

    /// Change the recorded program first: scale=0.5, chunk=TAG:8, recompute=TAG, offload=TAG, shard=TAG:8, free-early=TAG or
    /// without=TAG; may be repeated
    #[arg(long, value_name = "KIND=TAG", value_parser = crate::edits::parse, conflicts_with = "verify")]
    pub(crate) edit: Vec<Edit>,

    /// Settings of the torch policies, as in PYTORCH_CUDA_ALLOC_CONF
    #[arg(long, help_heading = ALLOCATORS, value_name = "KEY:VALUE,…")]
    pub(crate) torch_conf: Option<String>,

    /// Settings of millpond and planned, as in MILLPOND_CONF; `millpond policies` lists them; keys
    /// that only pools have need --source host
    #[arg(long, help_heading = ALLOCATORS, value_name = "KEY:VALUE,…")]
    pub(crate) conf: Option<String>,

    /// Advance the clock of millpond and planned at each `step`, or after every N calls [default: never]
    #[arg(long, help_heading = ALLOCATORS, value_name = "step|N", value_parser = parse_tick)]
    pub(crate) tick: Option<TickEvery>,

    /// Start the policy planned with a plan that `millpond plan --save` wrote
    #[arg(long, help_heading = ALLOCATORS, value_name = "PLAN")]
    pub(crate) plan: Option<PathBuf>,

    /// Compare the replayed addresses with the recorded ones (PyTorch snapshots with a history)
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) verify: bool,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Also write the report as one HTML page that needs no network
    #[arg(long, help_heading = OUTPUT, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) host: HostArgs,
}

const REPLAY_EXAMPLES: &str = "\
Examples:
  millpond replay run.pickle -p torch-native,torch-expandable -d 80GiB
  millpond replay run.pickle --device rtx4090 --reserve 1.5GiB --fit
  millpond replay run.pickle --torch-conf \"max_split_size_mb:128\"
  millpond replay run.pickle --conf decay:4 --tick step
  millpond replay run.pickle --edit scale=0.5 --edit 'recompute=layers.*'
  millpond replay run.pickle --source host   on this machine's memory, compared with glibc
  millpond replay run.pickle --source cuda:0 on a GPU's memory, held against the simulation
  millpond replay run.pickle --time-window 1.5s..3s --html report.html
  millpond replay ranks/ --device h100 --json > ranks.json

Exit status: 0 replayed, 1 an allocator of --source host or the driver of --source cuda:N failed,
             2 bad input, 3 every policy ran out of memory on --device or --source cuda:N.";

/// The device and the costs of its driver.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Memory of the device: 80GiB, 24G (= GiB), 80GB (powers of ten), or a card (see `millpond cards`) [default:
    /// unlimited]
    #[arg(long, help_heading = DEVICE, short = 'd', value_name = "SIZE", value_parser = device)]
    pub(crate) device: Option<DeviceSize>,

    /// Memory that other processes, libraries and communication buffers use on the device
    #[arg(long, help_heading = DEVICE, value_name = "SIZE", value_parser = size, requires = "device")]
    pub(crate) reserve: Option<u64>,

    /// Map pages on the device (virtual memory management)
    #[arg(
        long,
        help_heading = DEVICE,
        value_enum,
        value_name = "on|off",
        default_value = "on",
        hide_possible_values = true
    )]
    pub(crate) paged: Paged,

    /// Replay on a simulated device, on this machine's memory (compared with other allocators), or on a CUDA device
    #[arg(long, help_heading = DEVICE, value_name = "sim|host|cuda:N", default_value = "sim", value_parser = parse_source)]
    pub(crate) source: SourceKind,

    /// Read the costs of driver calls from this TOML file instead of assuming them
    #[arg(long, help_heading = DEVICE, value_name = "FILE")]
    pub(crate) costs: Option<PathBuf>,
}

/// Page mapping on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Paged {
    /// The device maps pages
    On,
    /// The device only provides whole allocations
    Off,
}

/// The headings under which `--help` lists options. Each option names its own, because a heading of a whole group would also apply to
/// the options after the group.
const DEVICE: &str = "Device and driver";
const PART: &str = "Part of the recording";
const ALLOCATORS: &str = "Allocators and their settings";
const OUTPUT: &str = "Output";
#[cfg(feature = "bench")]
const HOST: &str = "With --source host";
#[cfg(not(feature = "bench"))]
const HOST: &str = "With --source host (not in this build: install it with `--features bench`)";

/// How a recording is replayed on real memory.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Write nothing to each block, one byte of each 4 KiB page, or all bytes [default: page]
    #[arg(long, help_heading = HOST, value_enum, value_name = "none|page|full", hide_possible_values = true)]
    pub(crate) touch: Option<Touched>,

    /// Write marks at both ends of each block (on a CUDA device also in each 2 MiB), and compare them when it is freed
    #[arg(long, help_heading = HOST)]
    pub(crate) check: bool,

    /// Divide every size by N [default: auto, the divisor with which the peak fits a quarter of the free memory]
    #[arg(long, help_heading = HOST, value_name = "N|auto", value_parser = parse_scale)]
    pub(crate) scale: Option<Scale>,

    /// Run each allocator N times, each time in a new process [default: 3]
    #[arg(long, help_heading = HOST, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: Option<u16>,
}

/// The bytes that are written to a block.
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
    #[arg(long, help_heading = PART, value_name = "FROM..TO", value_parser = parse_time_window)]
    pub(crate) time_window: Option<(u64, u64)>,

    /// Keep streams apart, or replay everything on one
    #[arg(long, help_heading = PART, value_enum, default_value = "keep")]
    pub(crate) streams: Streams,
}

/// The treatment of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Streams {
    /// Keep each stream
    Keep,
    /// Merge all streams into one
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

/// The format of the output.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print the result as JSON, and nothing else
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,

    /// Replace file, module and function names with placeholders, so that the report can be shared
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) redact: bool,

    /// Print only errors on stderr
    #[arg(long, help_heading = OUTPUT, short)]
    pub(crate) quiet: bool,

    /// Threads to replay on [default: as many as the machine has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}

impl OutputArgs {
    /// Returns the threads to replay on.
    pub(crate) fn threads(&self) -> Threads {
        Threads::at_most(self.threads.map_or(0, usize::from))
    }
}

/// `millpond tune`.
#[derive(Debug, Args)]
#[command(max_term_width = 100)]
pub(crate) struct TuneArgs {
    /// The recording; - is standard input
    #[arg(value_name = "FILE", value_parser = recording())]
    pub(crate) file: PathBuf,

    /// Search the settings of these allocators, comma-separated: torch, millpond [default: the program's own]
    #[arg(long, help_heading = ALLOCATORS, short = 'p', value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) policy: Vec<String>,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    #[command(flatten)]
    pub(crate) selection: SelectionArgs,

    /// Change the recorded program first: scale=0.5, chunk=TAG:8, recompute=TAG, offload=TAG, shard=TAG:8, free-early=TAG or
    /// without=TAG; may be repeated
    #[arg(long, value_name = "KIND=TAG", value_parser = crate::edits::parse)]
    pub(crate) edit: Vec<Edit>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Rows to show
    #[arg(long, help_heading = OUTPUT, value_name = "N", default_value_t = 8, allow_negative_numbers = true)]
    pub(crate) top: usize,
}

/// `millpond info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// Recordings; a folder means all files in it, and - means standard input
    #[arg(required = true, value_name = "FILE", value_parser = recording())]
    pub(crate) files: Vec<PathBuf>,

    /// Print the result as JSON, and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// `millpond convert`.
#[derive(Debug, Args)]
#[command(after_help = convert_help(), max_term_width = 100)]
pub(crate) struct ConvertArgs {
    /// A recording; - is standard input
    #[arg(value_name = "IN", value_parser = recording())]
    pub(crate) input: PathBuf,

    /// The file to write; its extension selects the format
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,

    /// The format, named by its extension; it overrides the extension of OUT
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: Option<String>,

    /// Count in a profile the blocks that are live at the peak, all blocks, or the blocks that are live at the end
    #[arg(
        long,
        value_enum,
        value_name = "peak|total|end",
        default_value = "peak",
        hide_possible_values = true
    )]
    pub(crate) at: Counted,

    /// Keep the frames that frameworks put around every call, such as _call_impl, in profiles
    #[arg(long)]
    pub(crate) every_frame: bool,

    /// Write only the events of this device; -1 is the host
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) device: Option<i32>,

    /// Write only this part, counted from the first event: 1.5s..3s, 200ms.., ..2s
    #[arg(long, value_name = "FROM..TO", value_parser = parse_window)]
    pub(crate) time_window: Option<(u64, u64)>,

    /// Write at most the last N events of each device to a .pickle
    #[arg(long, value_name = "N")]
    pub(crate) last: Option<u64>,

    /// Print only errors on stderr
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// Returns the help text about formats. It marks the formats that this build does not contain.
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

/// The blocks that a profile counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Counted {
    /// The blocks that are live at the peak
    Peak,
    /// All blocks
    Total,
    /// The blocks that are live at the end
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

    /// Draw the plan as a picture of addresses over time in this file
    #[arg(long, help_heading = OUTPUT, value_name = "SVG")]
    pub(crate) svg: Option<PathBuf>,

    /// Save the plan to this file
    #[arg(long, help_heading = OUTPUT, value_name = "PLAN")]
    pub(crate) save: Option<PathBuf>,

    /// Replace the recording's name with a placeholder
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) redact: bool,

    /// Print the result as JSON, and nothing else
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,

    /// Print only errors on stderr
    #[arg(long, help_heading = OUTPUT, short)]
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

/// The benchmark to run.
#[cfg(feature = "bench")]
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Measure host allocators: hot pairs, batches, long-lived blocks, threads, zeroed memory
    #[command(disable_help_flag = true)]
    Host {
        /// Workloads and options; `--help` lists them
        #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure copies between the host and a CUDA device: pinned, staged and pageable memory, compared with the link's limit
    Transfer {
        /// The device, as `cuda:0`
        #[arg(long, value_name = "DEVICE", default_value = "cuda:0")]
        device: String,

        /// Run two sizes once, only to check that everything works
        #[arg(long)]
        quick: bool,
    },
    /// Measure the claims that five tensor libraries publish about their pools
    Seeds {
        /// Run each loop once, only to check that everything works
        #[arg(long)]
        quick: bool,

        /// Run N rounds, with a process for each allocator and loop [default: 3; quick: 1]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
        rounds: Option<u16>,
    },
    /// Measure the calls of a CUDA driver, and print the table that `replay --costs` reads
    Driver(MeasuredArgs),
    /// Compare a pool of a CUDA device with its driver: hot pairs, a loop of buffers, latencies
    Alloc(MeasuredArgs),
    /// Compare kernels that update an array of structures and a structure of arrays on a CUDA device
    Kernels(MeasuredArgs),
    /// Measure the cost of recording: time for each event, bytes of the file, dropped events
    Record {
        /// A recorded program; its calls are repeated and recorded
        #[arg(value_name = "FILE")]
        trace: Option<PathBuf>,

        /// Run N rounds of pairs, and print the medians
        #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
        rounds: u16,

        /// Repeat the program until it has at least N events
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

    /// Run N rounds, and print the medians
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
    /// Options of the driver, as in MILLPOND_CUDA_EMU; the error for an unknown option lists all of them
    #[arg(long, short = 'o', value_name = "KEY:VALUE,…")]
    pub(crate) options: Vec<String>,

    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

const CUDA_EMU_EXAMPLES: &str = "\
Examples:
  millpond cuda-emu -- cargo test
  millpond cuda-emu -o devices:2,memory:24G -- ./program
  millpond cuda-emu -o streams:seeded,seed:7,strict:on -- cargo test

The emulator supports programs that use the driver API, such as cudarc, or NVIDIA's runtime
library, such as CuPy and PyTorch. Kernels are functions that are registered by name: no device
code runs. docs/cuda-emulator.md describes what is emulated.

Exit status: the exit status of the command; 2 if the command could not be started.";

/// Parses the path of a recording; `-` is standard input.
fn recording() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| match path.as_os_str() == "-" {
        true => PathBuf::from(crate::spool::STDIN),
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
