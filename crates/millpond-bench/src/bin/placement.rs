//! Computes the placement of recorded programs under policies, and the cost of their driver calls.
//!
//! `placement FOLDER [--policy NAME]... [--conf TEXT] [--fit] [--plain] [WORD]...`: runs the recordings whose name contains one
//! of the words, or all. `--fit` searches the smallest device on which a run finishes. `--plain` uses a device without pages.

use millpond_bench::{Outcome, Program, Table, find, print, run};
use millpond_engine::{Costs, MillpondConf, Settings, Simulated, policies};
use std::error::Error;
use std::path::Path;

/// Returns the least capacity, to a page, on which the run finishes.
fn smallest(
    program: &Program,
    policy: &str,
    settings: &Settings,
    peak: u64,
) -> Result<(u64, Outcome), Box<dyn Error>> {
    let page = Simulated::PAGE;
    let (mut low, mut high) = (peak / page - 1, peak.div_ceil(page) * 3);
    let mut last = run(
        program,
        policy,
        settings,
        Simulated::new().with_capacity(Some(high * page)),
    )?;
    while high - low > 1 {
        let middle = if high > low + peak / page / 8 {
            low + (high - low) / 4
        } else {
            (low + high) / 2
        };
        let outcome = run(
            program,
            policy,
            settings,
            Simulated::new().with_capacity(Some(middle * page)),
        )?;
        if outcome.finished {
            (high, last) = (middle, outcome);
        } else {
            low = middle;
        }
    }
    Ok((high * page, last))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("give the folder of the recordings")?;
    let mut named = Vec::new();
    let mut words = Vec::new();
    let mut settings = Settings::default();
    let (mut fit, mut plain) = (false, false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--policy" => named.extend(arguments.next()),
            "--conf" => settings.millpond = MillpondConf::parse(&arguments.next().unwrap_or_default())?,
            "--fit" => fit = true,
            "--plain" => plain = true,
            _ => words.push(argument),
        }
    }
    if named.is_empty() {
        named = policies::names().map(str::to_owned).collect();
    }
    let costs = Costs::default();
    let mut head = vec![
        "trace",
        "policy",
        "overhead",
        "stalls",
        "1 in",
        "moved/peak",
        "driver ms",
        "hit rate",
        "ns/event",
    ];
    if fit {
        head = vec![
            "trace",
            "policy",
            "smallest/peak",
            "pages above",
            "stalls",
            "1 in",
            "moved/peak",
            "driver ms",
        ];
    }
    let mut table = Table::new(&head);
    let mut means = vec![(0.0, 0u32); named.len()];
    for path in find(Path::new(&folder), &words)? {
        let program = Program::read(&path)?;
        for (policy, mean) in named.iter().zip(&mut means) {
            let outcome = run(&program, policy, &settings, Simulated::new().with_paging(!plain))?;
            let peak = outcome.stats.requested.peak;
            let overhead = outcome.stats.reserved.peak as f64 / peak as f64;
            if !program.name.starts_with("cpu_") && !program.name.starts_with("rmm_") {
                *mean = (mean.0 + overhead.ln(), mean.1 + 1);
            }
            let (least, shown) = if fit {
                smallest(&program, policy, &settings, peak)?
            } else {
                (0, outcome)
            };
            let ms = costs.milliseconds(&shown.meter, shown.stats.stalls);
            let stalls = shown.stats.stalls;
            let rate = shown.stats.allocations.checked_div(stalls);
            let rate = rate.map_or_else(|| "-".to_owned(), |r| r.to_string());
            let moved = shown.meter.moved_bytes as f64 / shown.stats.reserved.peak as f64;
            let mut cells = vec![program.name.clone(), policy.clone()];
            if fit {
                cells.push(format!("{:.4}", least as f64 / peak as f64));
                cells.push(format!(
                    "{:.1}",
                    (least as f64 - peak as f64) / Simulated::PAGE as f64
                ));
                cells.extend([
                    stalls.to_string(),
                    rate,
                    format!("{moved:.2}"),
                    format!("{ms:.1}"),
                ]);
            } else {
                cells.push(format!("{overhead:.4}"));
                cells.extend([
                    stalls.to_string(),
                    rate,
                    format!("{moved:.2}"),
                    format!("{ms:.1}"),
                ]);
                cells.push(format!("{:.5}", shown.stats.hit_rate()));
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
