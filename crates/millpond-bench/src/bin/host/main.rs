//! Host memory beside its peers: what a pair of calls costs, and what memory is held, in one run.
//!
//! `host [w1 w2 ...] [--peer NAME]... [--rounds N]`: each allocator runs each workload in a process of its own,
//! pinned, once a round; the order turns from round to round. Shown are the median round, the least and the
//! most, the ratio to glibc and to mimalloc, and the minor faults. `(loop)` is what the loop itself costs.
//!
//! Where one thread works, its processor time counts; where two do, the wall's. Linux with glibc only.

mod allocator;
mod args;
mod child;
mod contender;
mod control;
mod dice;
mod figures;
mod gauge;
mod global;
mod matrix;
mod millpond;
mod report;
mod rounds;
mod spec;
#[cfg(test)]
mod tests;
mod text;
mod work;

use args::Task;
use std::process::ExitCode;

fn main() -> ExitCode {
    let task = match args::parse(std::env::args().skip(1)) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("error: {error}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match task {
        Task::Help => {
            println!("{}", args::USAGE);
            ExitCode::SUCCESS
        }
        Task::Cell(spec, contender) => child::run(spec, contender),
        Task::Once(_, contender) if contender.lacks().is_some() => {
            let lacks = contender.lacks().unwrap_or_default();
            eprintln!(
                "error: {} is tuned from outside; start with {lacks}",
                contender.name()
            );
            ExitCode::from(2)
        }
        Task::Once(spec, contender) => match contender.run(spec, work::Effort::Once) {
            Ok(figures) => {
                print!("{figures}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: {spec} under {}: {error}", contender.name());
                ExitCode::FAILURE
            }
        },
        Task::Measure {
            groups,
            peers,
            rounds,
        } => measure(&groups, &peers, rounds),
    }
}

/// Prints the tables of each group as soon as it is measured. A run that fails leaves a gap, and is told at the end.
fn measure(groups: &[(String, Vec<spec::Spec>)], peers: &[contender::Contender], rounds: usize) -> ExitCode {
    println!("{rounds} rounds, a process for each run; medians.\n");
    let mut failed = Vec::new();
    for (name, specs) in groups {
        let results = rounds::measure(specs, peers, rounds, &mut failed);
        if name == "w1" {
            print!("{}", matrix::hot(&results, peers));
        } else {
            print!("{}", report::long(&results));
        }
    }
    for failure in &failed {
        eprintln!("failed: {failure}");
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
