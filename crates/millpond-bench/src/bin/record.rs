//! The program for `millpond_bench::record`.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures the cost of recording.
#[derive(Parser)]
struct Arguments {
    /// Recording of a program; its calls are repeated and recorded again
    trace: Option<PathBuf>,

    /// Repeat the program until it has made at least this many events
    #[arg(default_value_t = 20_000_000)]
    events: u64,
}

fn main() -> ExitCode {
    let Arguments { trace, events } = Arguments::parse();
    let run = millpond_bench::record::run(trace.as_deref(), 15, events, &mut std::io::stdout());
    millpond_bench::exit("record", run)
}
