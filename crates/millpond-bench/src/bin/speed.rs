//! Measures the engine's time per call, and compares it with other allocators in the same run.
//!
//! For each recording, every allocator runs the whole program once a round, in turn, and the thread's processor time is divided by
//! the number of calls. The output contains the median round, the spread, and the ratio to the offset-allocator crate.

use clap::Parser;
use millpond_bench::measure::{Samples, all_in_turn};
use millpond_bench::{OffsetAllocator, Policy, Program, Ranges, Table, Trees, at_least_one, find, print};
use millpond_engine::{Engine, Settings, Simulated, policies};
use std::error::Error;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

/// Returns the nanoseconds for each call of the program.
fn time(mut ranges: impl Ranges, program: &Program) -> f64 {
    ranges.run(&program.ops).0 / program.ops.len() as f64
}

fn policy(name: &str, slots: usize) -> Result<Policy, Box<dyn Error>> {
    let mut engine = Engine::new(policies::build(name, &Settings::default())?, Simulated::new());
    // Creates as many records as the offset-allocator has. Otherwise they would be created during the measurement.
    engine.expect_blocks(OffsetAllocator::blocks(slots));
    Ok(Policy::new(engine, slots))
}

/// Measures the engine's time per call and compares it with other allocators.
#[derive(Parser)]
struct Arguments {
    /// Folder with the recordings
    #[arg(required_unless_present = "live")]
    folder: Option<PathBuf>,

    /// Use only recordings whose names contain one of these words [default: a selection]
    words: Vec<String>,

    /// Measure this many rounds and print medians
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = at_least_one)]
    rounds: usize,

    /// Use only this policy; repeat for several [default: all]
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,

    /// Also measure a program that holds this many random blocks
    #[arg(long, value_name = "N")]
    live: Vec<NonZeroU32>,
}

fn main() -> ExitCode {
    millpond_bench::exit("speed", measure(Arguments::parse()))
}

fn measure(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    if arguments.words.is_empty() {
        arguments.words = ["serve_contbatch", "gpt2m", "varlen", "rmm_1MiB", "rmm_64MiB"]
            .map(str::to_owned)
            .to_vec();
    }
    let paths = match &arguments.folder {
        Some(folder) => find(folder, &arguments.words)?,
        None => Vec::new(),
    };
    if arguments.policies.is_empty() {
        arguments.policies = policies::names().map(str::to_owned).collect();
    }
    let head = [
        "trace",
        "allocator",
        "ns/call",
        "min",
        "max",
        "of offset-allocator",
    ];
    let mut table = Table::new(&head);
    let recorded = paths.iter().map(|path| Program::read(path));
    let random = arguments.live.into_iter().map(|live| Ok(Program::random(live)));
    for program in recorded.chain(random) {
        let program = program?;
        let mut names = vec!["offset-allocator", "best fit, two trees"];
        names.extend(arguments.policies.iter().map(String::as_str));
        let times = all_in_turn(names.len(), arguments.rounds, |allocator| match allocator {
            0 => Ok(time(OffsetAllocator::new(program.slots), &program)),
            1 => Ok(time(Trees::new(program.slots), &program)),
            _ => policy(names[allocator], program.slots).map(|policy| time(policy, &program)),
        })?;
        let first = times[0].median();
        for (name, spread) in names.into_iter().zip(times.iter().map(Samples::spread)) {
            let [median, least, most] =
                [spread.median, spread.least, spread.most].map(|ns| format!("{ns:.1}"));
            let ratio = format!("{:.2}", spread.median / first);
            table.row([program.name.clone(), name.to_owned(), median, least, most, ratio]);
        }
    }
    print(&table)?;
    Ok(())
}
