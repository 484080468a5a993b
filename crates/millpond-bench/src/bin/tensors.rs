//! The program for `millpond_bench::tensors`.

use std::process::ExitCode;

fn main() -> ExitCode {
    millpond_bench::exit("tensors", millpond_bench::tensors::run(std::env::args().skip(1)))
}
