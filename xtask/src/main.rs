//! The project's task runner. `cargo xtask` lists the tasks.
#![forbid(unsafe_code)]

mod book;
mod c_library;
mod card;
mod clients;
mod covered;
mod cuda_core;
mod cuda_seeds;
mod debian;
mod dialects;
mod figures;
mod fuzz;
mod global;
mod layers;
mod malloc;
mod miri;
mod pictures;
mod ptx;
mod python;
mod shell;
mod soak;
mod test;
mod threads;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  test [--changed | --all]
                    formatting, layers, lints and the tests; --changed adds the checks that take
                    minutes and cover files that have changed since they passed, as CI does;
                    --all adds all of them
  layers            fails if a crate depends on a crate that is not below it, or if modules of a
                    crate import each other in a circle
  book              builds the book in target/book with mdBook, which it installs in target/tools, and
                    checks the links of all pages
  fuzz [SECONDS]    every reader under its fuzzer, 120 seconds each; needs nightly
  miri              the tests of unsafe code that Miri can run; the tests of memory that
                    threads share run under 20 seeds; needs nightly
  threads           the tests of memory that threads share, under the thread sanitizer; needs
                    nightly, and builds the standard library
  soak [--minutes N]
                    uses a pool for 10 minutes in threads that start and end: fails if anything
                    grows, and prints its measurements
  figures [FOLDER]  measures the tables for the claims of this project; FOLDER has more
                    recordings (default: ../shared/traces if it exists)
  global            other people's tests with a pool as their allocator; fetches two crates
  clients [--pools] [NAME]...
                    the tests of other people's CUDA programs on the emulated driver: of all clients, or
                    of these; fetches them. With --pools, those of the libraries with plug-ins, without
                    pools and with their memory in pools
  cuda-core         the crate for NVIDIA's cuda-core, built and tested on the emulated driver; fetches
                    the headers of CUDA and libclang from their Python packages
  cuda-seeds [--seeds N]
                    runs our CUDA tests on the emulated driver, strict and in the order of 100 seeds,
                    and on drivers that lack virtual memory management or pools
  card [--build | --rehearse] [--quick] [--dev] [--nvrtc] [--steps 1,3,6] [--minutes N]
                    builds target/card, with the probes, tests, benches and replays for a real
                    card, and runs it if this machine has a card; target/card needs neither Rust
                    nor a network; --build only builds, --rehearse runs it on the emulated driver,
                    --quick runs few rounds, --dev builds the dev profile, --nvrtc adds NVRTC
  python [--numpy] [--torch] [--plugins]
                    the Python package as users get it: builds and checks the wheel, installs it in a
                    new environment, and runs its tests and type checkers there with the packages of
                    others; --numpy runs NumPy's own tests without and with arrays in a pool;
                    --torch fetches PyTorch, runs programs that run out of memory on the emulated
                    driver, tries what their answers advise, and measures what recording costs;
                    --plugins runs PyTorch, CuPy, Numba and cuda.core with their memory in a pool
  c-library [--prefix FOLDER] [--release]
                    builds libmillpond.so and installs it with its headers and its files for pkg-config
                    and CMake, below FOLDER or target/c-library
  malloc [--torch] [--only NAME,...] [--runs N] [--python PATH] [--redis FOLDER]
                    real programs under the malloc library, glibc, jemalloc, tcmalloc and mimalloc:
                    whether they pass, their times and their peaks of memory, as a page; --torch adds
                    PyTorch on the CPU, in the Python that --python or $PYTHON names; --redis names
                    the folder of a Redis that is built with MALLOC=libc
  dialects          reads the output of `millpond convert` with the programs that it is for;
                    fetches the available ones
  pictures          takes the pictures of the README and of the book again, of real pages in chromium
  view-speed [ROWS] measures how soon `millpond view` shows a recording of ROWS events (default: ten
                    million), and how smoothly it pans, in chromium
  ptx [--check]     compiles the kernels to PTX with NVRTC from its Python package; --check compares
                    the result with the files in the repository";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let outcome = match args.next().as_deref() {
        Some("test") => test::run(&args.collect::<Vec<_>>()).map_err(Into::into),
        Some("fuzz") => fuzz::run(args.next().as_deref()),
        Some("miri") => miri::run(),
        Some("threads") => threads::run(),
        Some("soak") => soak::run(&args.collect::<Vec<_>>()),
        Some("figures") => figures::run(args.next().as_deref()),
        Some("layers") => layers::run().map_err(Into::into),
        Some("book") => book::run().map_err(Into::into),
        Some("global") => global::run(),
        Some("c-library") => c_library::run(&args.collect::<Vec<_>>()),
        Some("malloc") => malloc::run(&args.collect::<Vec<_>>()),
        Some("card") => card::run(&args.collect::<Vec<_>>()),
        Some("cuda-core") => cuda_core::run(),
        Some("cuda-seeds") => cuda_seeds::run(&args.collect::<Vec<_>>()),
        Some("clients") => clients::run(&args.collect::<Vec<_>>()),
        Some("dialects") => dialects::run(),
        Some("pictures") => pictures::run(),
        Some("view-speed") => pictures::speed(args.next().as_deref()),
        Some("python") => python::run(&args.collect::<Vec<_>>()),
        Some("ptx") => ptx::run(&args.collect::<Vec<_>>()),
        None | Some("help" | "--help" | "-h") => {
            println!("{HELP}");
            Ok(())
        }
        Some(other) => Err(format!("unknown command '{other}'\n{HELP}").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
