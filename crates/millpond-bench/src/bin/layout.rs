//! The program for `millpond_bench::layout`.

use std::process::ExitCode;

fn main() -> ExitCode {
    millpond_bench::exit("layout", millpond_bench::layout::run(std::env::args().skip(1)))
}
