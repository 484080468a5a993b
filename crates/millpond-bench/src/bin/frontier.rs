//! Computes the cost of less memory: the frontier of overhead against modelled driver time.
//!
//! For each recording, the `millpond` policy runs under a grid of settings that trade memory for
//! time. The output contains the settings that no other one of the grid beats in both, and the defaults, marked `*`. If the
//! defaults lie between two lines of the frontier, the grid contains better settings.

use clap::Parser;
use millpond_bench::{Program, Table, find, one_in, print, run};
use millpond_engine::{Costs, MillpondConf, Settings, Simulated};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// One setting and its result.
struct Point {
    name: String,
    overhead: f64,
    milliseconds: f64,
    stalls: u64,
    allocations: u64,
    moved: f64,
}

/// Returns the grid as texts of settings. The empty text is the default.
fn grid() -> Vec<String> {
    let mut texts = vec![String::new()];
    for handle in ["4M", "8M", "16M", "32M", "64M", "128M"] {
        for least in ["2M", "8M", "128M"] {
            for each in ["4M", "16M"] {
                for moves in ["moved:100", "moved:0"] {
                    texts.push(format!(
                        "handle:{handle},handle-least:{least},handle-each:{each},{moves}"
                    ));
                }
            }
        }
    }
    texts
}

fn measure(program: &Program, policy: &str, text: &str, costs: &Costs) -> Result<Point, Box<dyn Error>> {
    let settings = Settings {
        millpond: MillpondConf::parse(text)?,
        ..Settings::default()
    };
    let outcome = run(program, policy, &settings, Simulated::new())?;
    let stats = &outcome.stats;
    Ok(Point {
        name: text.to_owned(),
        overhead: stats.reserved.peak as f64 / stats.requested.peak as f64,
        milliseconds: costs.milliseconds(&outcome.meter, stats.stalls),
        stalls: stats.stalls,
        allocations: stats.allocations,
        moved: outcome.meter.moved_bytes as f64 / stats.reserved.peak as f64,
    })
}

/// Returns the points that no other one beats in both, the most memory first.
fn frontier(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| {
        let by_time = a.milliseconds.total_cmp(&b.milliseconds);
        by_time.then(a.overhead.total_cmp(&b.overhead))
    });
    let mut least = f64::INFINITY;
    points.retain(|point| {
        let beats = point.overhead < least;
        least = least.min(point.overhead);
        beats
    });
    points
}

/// Computes the cost of less memory under the `millpond` policy.
#[derive(Parser)]
struct Arguments {
    /// The folder of the recordings
    folder: PathBuf,

    /// Use only recordings whose names contain one of these words
    words: Vec<String>,
}

fn main() -> ExitCode {
    millpond_bench::exit("frontier", print_frontier(Arguments::parse()))
}

fn print_frontier(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let Arguments { folder, words } = arguments;
    let costs = Costs::default();
    let mut table = Table::new(&[
        "trace",
        "overhead",
        "driver ms",
        "of torch-expandable",
        "1 stall in",
        "moved/peak",
        "settings",
    ]);
    for path in find(&folder, &words)? {
        let program = Program::read(&path)?;
        let expandable = measure(&program, "torch-expandable", "", &costs)?;
        let points: Result<Vec<Point>, _> = grid()
            .iter()
            .map(|text| measure(&program, "millpond", text, &costs))
            .collect();
        let mut shown = frontier(points?);
        if !shown.iter().any(|point| point.name.is_empty()) {
            shown.push(measure(&program, "millpond", "", &costs)?);
            shown.sort_by(|a, b| a.milliseconds.total_cmp(&b.milliseconds));
        }
        for point in shown {
            let settings = match point.name.is_empty() {
                true => "* the defaults".to_owned(),
                false => point.name,
            };
            table.row([
                program.name.clone(),
                format!("{:.4}", point.overhead),
                format!("{:.1}", point.milliseconds),
                format!("{:.2}", point.milliseconds / expandable.milliseconds),
                one_in(point.stalls, point.allocations),
                format!("{:.2}", point.moved),
                settings,
            ]);
        }
    }
    print(&table)?;
    Ok(())
}
