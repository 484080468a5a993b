//! The program for `millpond_bench::record`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let trace = std::env::args_os().nth(1).map(PathBuf::from);
    let events = std::env::args()
        .nth(2)
        .and_then(|a| a.parse().ok())
        .unwrap_or(20_000_000);
    let run = millpond_bench::record::run(trace.as_deref(), 15, events, &mut std::io::stdout());
    millpond_bench::exit("record", run)
}
