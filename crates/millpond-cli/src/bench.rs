//! `millpond bench`: the benchmarks of `millpond-bench` as subcommands.

use crate::args::{Bench, BenchArgs, MeasuredArgs};
use crate::exit::{CliError, Exit};

/// The arguments that come before a benchmark child's own arguments.
pub(crate) const BEHIND: [&str; 2] = ["bench", "host"];

/// The error on systems for which the benchmark cannot be built.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) const ELSEWHERE: &str =
    "this compares other allocators with glibc's heap, so it needs Linux with glibc";

/// Runs the command.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn command(args: &BenchArgs) -> Result<Exit, CliError> {
    use crate::exit::complain;
    use millpond_bench::host::{self, Again, Error};

    let again = Again::behind(&BEHIND);
    let mut out = std::io::stdout().lock();
    let (done, usage) = match &args.what {
        Bench::Driver(measured) => return on_device(measured, millpond_bench::device::driver),
        Bench::Alloc(measured) => return on_device(measured, millpond_bench::device::alloc),
        Bench::Kernels(measured) => return on_device(measured, millpond_bench::device::kernels),
        Bench::Host { arguments } => (
            host::run(arguments.iter().cloned(), &again, &mut out),
            "millpond bench host --help",
        ),
        Bench::Record {
            trace,
            rounds,
            events,
        } => return record(trace.as_deref(), usize::from(*rounds), *events, &mut out),
        Bench::Transfer { device, quick } => return transfer(device, *quick, &mut out),
        Bench::Seeds { quick, rounds } => {
            let rounds = rounds.map_or(if *quick { 1 } else { 3 }, usize::from);
            let done = host::seeds(*quick, rounds, &again, &mut out);
            if done.is_ok()
                && let Err(error) = tensors(*quick)
            {
                return Ok(failed(&error));
            }
            (done, "millpond bench seeds --help")
        }
    };
    match done {
        Ok(failed) => {
            failed.iter().for_each(|line| complain(line));
            Ok(if failed.is_empty() {
                Exit::Done
            } else {
                Exit::Failed
            })
        }
        Err(Error::Write(source)) => Err(CliError::Write {
            what: "the result".to_owned(),
            source,
        }),
        Err(Error::Usage(error)) => Err(CliError::Usage(format!("{error}; see `{usage}`"))),
        Err(error) => Ok(failed(&error)),
    }
}

/// Prints the error of a measurement.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn failed(error: &dyn std::fmt::Display) -> Exit {
    crate::exit::complain(error);
    Exit::Failed
}

/// Runs a measurement on a CUDA device.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn on_device(
    args: &MeasuredArgs,
    measure: fn(u32, usize) -> Result<String, millpond_bench::device::Error>,
) -> Result<Exit, CliError> {
    use millpond::cuda::CudaError;
    use millpond_bench::device::Error;

    match measure(args.device, usize::from(args.rounds)) {
        Ok(text) => {
            crate::output::print(&text)?;
            Ok(Exit::Done)
        }
        Err(Error::Cuda(error @ (CudaError::NoDriver | CudaError::NoDevice { .. }))) => {
            Err(CliError::Usage(format!("--device cuda:{}: {error}", args.device)))
        }
        Err(error) => Ok(failed(&format!("cuda:{}: {error}", args.device))),
    }
}

/// Measures the cost of recording.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn record(
    trace: Option<&std::path::Path>,
    rounds: usize,
    events: u64,
    out: &mut dyn std::io::Write,
) -> Result<Exit, CliError> {
    let done = millpond_bench::record::run(trace, rounds, events, out);
    Ok(done.map_or_else(|error| failed(&error), |()| Exit::Done))
}

/// Measures copies to a device and back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn transfer(device: &str, quick: bool, out: &mut dyn std::io::Write) -> Result<Exit, CliError> {
    let number = device
        .strip_prefix("cuda:")
        .and_then(|number| number.parse().ok());
    let number = number.ok_or_else(|| {
        CliError::Usage(format!(
            "--device {device} is not a CUDA device: give it as cuda:0; see `millpond doctor`"
        ))
    })?;
    let (sizes, rounds): (&[usize], usize) = if quick {
        (&[64 << 10, 16 << 20], 1)
    } else {
        (&[64 << 10, 1 << 20, 16 << 20, 256 << 20], 9)
    };
    let done = millpond_bench::transfer::run(number, sizes, rounds, out);
    Ok(done.map_or_else(|error| failed(&error), |()| Exit::Done))
}

/// Runs the benchmarks of tensors, of layouts, and of data larger than memory.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn tensors(quick: bool) -> Result<(), Box<dyn std::error::Error>> {
    use millpond_bench::{data, layout, tensors};

    let arguments = |full: &'static str, quickly: &'static str| {
        let arguments = if quick { quickly } else { full };
        arguments.split_whitespace().map(str::to_owned)
    };
    println!("\nTensors: operations, views\n");
    tensors::run(arguments("", "--quick --rounds 1"))?;
    println!("\nLayout: arrays of structures and structures of arrays, rows and columns\n");
    layout::run(arguments("", "--quick --rounds 1"))?;
    println!("\nData: a pass through a file, compared with plain reads\n");
    data::run(arguments("--size 1GiB", "--size 16MiB --rounds 1"))
}

/// Runs the command.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn command(_: &BenchArgs) -> Result<Exit, CliError> {
    Err(CliError::Usage(ELSEWHERE.to_owned()))
}
