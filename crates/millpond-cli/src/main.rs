//! `millpond`: replays recorded allocations against any allocator, on any size of device.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    millpond_cli::run(std::env::args_os()).into()
}
