//! Computes the placement of recorded programs under policies, and the cost of their driver calls.

use clap::Parser;
use millpond_bench::{Outcome, Program, Table, find, one_in, print, run};
use millpond_engine::{Costs, MillpondConf, Settings, Simulated, policies};
use std::error::Error;
use std::path::PathBuf;

/// Computes the placement of recorded programs under policies.
#[derive(Parser)]
struct Arguments {
    /// The folder of the recordings
    folder: PathBuf,

    /// Use only recordings whose names contain one of these words
    words: Vec<String>,

    /// A policy, instead of all
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,

    /// Settings of the millpond policy
    #[arg(long, value_name = "TEXT", default_value = "")]
    conf: String,

    /// Search the smallest device on which a run finishes
    #[arg(long)]
    fit: bool,

    /// Use a device without pages
    #[arg(long)]
    plain: bool,
}

/// The columns between the name of the policy and the costs, and after the costs.
fn columns(fit: bool) -> (&'static [&'static str], &'static [&'static str]) {
    match fit {
        true => (&["smallest/peak", "pages above"], &[]),
        false => (&["overhead"], &["hit rate", "ns/event"]),
    }
}

/// Returns the least capacity, to a page, on which the run finishes.
fn smallest(
    program: &Program,
    policy: &str,
    settings: &Settings,
    peak: u64,
) -> Result<(u64, Outcome), Box<dyn Error>> {
    let page = Simulated::PAGE;
    let with = |pages: u64| {
        let device = Simulated::new().with_capacity(Some(pages * page));
        run(program, policy, settings, device)
    };
    let (mut low, mut high) = (peak / page - 1, peak.div_ceil(page) * 3);
    let mut last = with(high)?;
    while high - low > 1 {
        let middle = if high > low + peak / page / 8 {
            low + (high - low) / 4
        } else {
            (low + high) / 2
        };
        let outcome = with(middle)?;
        if outcome.finished {
            (high, last) = (middle, outcome);
        } else {
            low = middle;
        }
    }
    Ok((high * page, last))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = Arguments::parse();
    let settings = Settings {
        millpond: MillpondConf::parse(&arguments.conf)?,
        ..Settings::default()
    };
    let named = &mut arguments.policies;
    if named.is_empty() {
        named.extend(policies::names().map(str::to_owned));
    }
    let costs = Costs::default();
    let (before, after) = columns(arguments.fit);
    let shared = &["stalls", "1 in", "moved/peak", "driver ms"];
    let mut table = Table::new(&[&["trace", "policy"], before, shared, after].concat());
    let mut means = vec![(0.0, 0u32); named.len()];
    for path in find(&arguments.folder, &arguments.words)? {
        let program = Program::read(&path)?;
        for (policy, mean) in named.iter().zip(&mut means) {
            let device = Simulated::new().with_paging(!arguments.plain);
            let outcome = run(&program, policy, &settings, device)?;
            let peak = outcome.stats.requested.peak;
            let overhead = outcome.stats.reserved.peak as f64 / peak as f64;
            if !program.name.starts_with("cpu_") && !program.name.starts_with("rmm_") {
                *mean = (mean.0 + overhead.ln(), mean.1 + 1);
            }
            let mut cells = vec![program.name.clone(), policy.clone()];
            let shown = if arguments.fit {
                let (least, shown) = smallest(&program, policy, &settings, peak)?;
                let above = (least as f64 - peak as f64) / Simulated::PAGE as f64;
                cells.extend([
                    format!("{:.4}", least as f64 / peak as f64),
                    format!("{above:.1}"),
                ]);
                shown
            } else {
                cells.push(format!("{overhead:.4}"));
                outcome
            };
            let stats = &shown.stats;
            let moved = shown.meter.moved_bytes as f64 / stats.reserved.peak as f64;
            cells.extend([
                stats.stalls.to_string(),
                one_in(stats.stalls, stats.allocations),
                format!("{moved:.2}"),
                format!("{:.1}", costs.milliseconds(&shown.meter, stats.stalls)),
            ]);
            if !arguments.fit {
                cells.push(format!("{:.5}", stats.hit_rate()));
                cells.push(format!("{:.1}", shown.nanoseconds / program.ops.len() as f64));
            }
            table.row(cells);
        }
    }
    print(&table)?;
    for (policy, (sum, count)) in named.iter().zip(&means) {
        if *count > 0 {
            print(format_args!(
                "geometric mean of overhead, GPU-scale recordings: {policy} {:.4}\n",
                (sum / f64::from(*count)).exp()
            ))?;
        }
    }
    Ok(())
}
