//! The program for `millpond_bench::data`.

use std::process::ExitCode;

fn main() -> ExitCode {
    millpond_bench::exit("data", millpond_bench::data::run(std::env::args().skip(1)))
}
