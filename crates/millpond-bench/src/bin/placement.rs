//! Computes the placement of recorded programs under policies, and the cost of their driver calls.

use clap::Parser;
use millpond_bench::{Outcome, Program, Table, at_least_one, find, one_in, print, run};
use millpond_engine::{Costs, MillpondConf, Settings, Simulated, parse_size, policies};
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// The percentage by which sizes change under `--jitter`.
const JITTER_PERCENT: f64 = 3.0;

/// The policy that every other one is compared with under `--jitter`.
const PEER: &str = "torch-expandable";

/// Computes the placement of recorded programs under policies.
#[derive(Parser)]
struct Arguments {
    /// Folder with the recordings
    folder: PathBuf,

    /// Use only recordings whose names contain one of these words
    words: Vec<String>,

    /// Use only this policy; repeat for several [default: all]
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,

    /// Settings of the millpond policy
    #[arg(long, value_name = "TEXT", default_value = "")]
    conf: String,

    /// File with the costs of driver calls, in the format of the engine's costs.toml [default: the engine's costs.toml]
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,

    /// Search for the smallest device on which a run finishes
    #[arg(long, conflicts_with_all = ["jitter", "sensitivity"])]
    fit: bool,

    /// Use a device without pages
    #[arg(long)]
    plain: bool,

    /// Run this many random variants of each recording. Sizes differ by up to 3 percent. Some steps are left out, and some are
    /// repeated
    #[arg(long, value_name = "SEEDS", conflicts_with = "sensitivity", value_parser = at_least_one)]
    jitter: Option<usize>,

    /// Print the mean overhead of the millpond policy with each setting halved and doubled
    #[arg(long)]
    sensitivity: bool,
}

/// Returns whether a program ran on a GPU. The mean includes only these programs.
fn is_gpu_scale(program: &Program) -> bool {
    !program.name.starts_with("cpu_") && !program.name.starts_with("rmm_")
}

/// A geometric mean.
#[derive(Clone, Copy, Default)]
struct Mean {
    logarithms: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.logarithms += value.ln();
        self.count += 1;
    }

    fn get(self) -> Option<f64> {
        (self.count > 0).then(|| (self.logarithms / f64::from(self.count)).exp())
    }
}

/// The columns between the name of the policy and the costs, and after the costs.
fn columns(fit: bool) -> (&'static [&'static str], &'static [&'static str]) {
    match fit {
        true => (&["smallest/peak", "pages above"], &[]),
        false => (&["overhead"], &["creation ms", "late ms", "hit rate"]),
    }
}

/// Returns the smallest capacity, in whole pages, with which the run finishes.
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

/// The arguments and the data for the tables.
struct Setup {
    arguments: Arguments,
    settings: Settings,
    costs: Costs,
    programs: Vec<Program>,
}

impl Setup {
    fn device(&self) -> Simulated {
        Simulated::new().with_paging(!self.arguments.plain)
    }

    /// Prints one row for each recording and policy.
    fn placement(&self) -> Result<(), Box<dyn Error>> {
        let policies = &self.arguments.policies;
        let (before, after) = columns(self.arguments.fit);
        let shared = &["stalls", "1 in", "moved/peak", "driver ms"];
        let mut table = Table::new(&[&["trace", "policy"], before, shared, after].concat());
        let mut means = vec![Mean::default(); policies.len()];
        for program in &self.programs {
            for (policy, mean) in policies.iter().zip(&mut means) {
                let outcome = run(program, policy, &self.settings, self.device())?;
                if is_gpu_scale(program) {
                    mean.add(outcome.overhead());
                }
                table.row(self.row(program, policy, outcome)?);
            }
        }
        print(&table)?;
        for (policy, mean) in policies.iter().zip(means) {
            if let Some(mean) = mean.get() {
                print(format_args!(
                    "geometric mean of overhead, GPU-scale recordings: {policy} {mean:.4}\n"
                ))?;
            }
        }
        Ok(())
    }

    fn row(&self, program: &Program, policy: &str, outcome: Outcome) -> Result<Vec<String>, Box<dyn Error>> {
        let mut cells = vec![program.name.clone(), policy.to_owned()];
        let shown = if self.arguments.fit {
            let peak = outcome.stats.requested.peak;
            let (least, shown) = smallest(program, policy, &self.settings, peak)?;
            let above = (least as f64 - peak as f64) / Simulated::PAGE as f64;
            cells.extend([
                format!("{:.4}", least as f64 / peak as f64),
                format!("{above:.1}"),
            ]);
            shown
        } else {
            cells.push(format!("{:.4}", outcome.overhead()));
            outcome
        };
        let stats = &shown.stats;
        let moved = shown.meter.moved_bytes as f64 / stats.reserved.peak as f64;
        cells.extend([
            stats.stalls.to_string(),
            one_in(stats.stalls, stats.allocations),
            format!("{moved:.2}"),
            format!("{:.1}", self.costs.milliseconds(&shown.meter, stats.stalls)),
        ]);
        if !self.arguments.fit {
            let (creation, late) = shown.creation_and_rest(&self.costs);
            cells.extend([
                format!("{creation:.1}"),
                format!("{late:.1}"),
                format!("{:.5}", stats.hit_rate()),
            ]);
        }
        Ok(cells)
    }

    /// Prints the overhead over random variants of each recording.
    fn jitter(&self, seeds: usize) -> Result<(), Box<dyn Error>> {
        let above = format!("most above {PEER}");
        let head = [
            "trace",
            "policy",
            "as recorded",
            "median",
            "95th percentile",
            "worst",
            "stalls",
            &above,
        ];
        let mut table = Table::new(&head);
        for program in &self.programs {
            let mut peer = Vec::new();
            let mut rows = vec![Vec::new(); self.arguments.policies.len()];
            let mut stalls = vec![0; rows.len()];
            for seed in 0..seeds as u64 {
                let changed = program.jittered(JITTER_PERCENT, seed);
                peer.push(run(&changed, PEER, &self.settings, self.device())?.overhead());
                for (at, policy) in self.arguments.policies.iter().enumerate() {
                    let outcome = run(&changed, policy, &self.settings, self.device())?;
                    rows[at].push(outcome.overhead());
                    stalls[at] += outcome.stats.stalls;
                }
            }
            for ((policy, mut overheads), stalls) in self.arguments.policies.iter().zip(rows).zip(stalls) {
                let recorded = run(program, policy, &self.settings, self.device())?.overhead();
                let above = overheads.iter().zip(&peer).map(|(own, peer)| own - peer);
                let above = above.fold(f64::NEG_INFINITY, f64::max);
                overheads.sort_by(f64::total_cmp);
                // The nearest-rank method.
                let percentile = |percent: usize| overheads[(percent * seeds).div_ceil(100).max(1) - 1];
                let shown = [recorded, percentile(50), percentile(95), percentile(100)];
                let mut cells = vec![program.name.clone(), policy.clone()];
                cells.extend(shown.map(|overhead| format!("{overhead:.4}")));
                cells.extend([stalls.to_string(), format!("{above:+.4}")]);
                table.row(cells);
            }
        }
        Ok(print(&table)?)
    }

    /// Returns the mean overhead of the millpond policy, or `None` without a recording of a GPU.
    fn mean(&self, conf: MillpondConf) -> Result<Option<f64>, Box<dyn Error>> {
        let settings = Settings {
            millpond: conf,
            ..self.settings.clone()
        };
        let mut mean = Mean::default();
        for program in self.programs.iter().filter(|program| is_gpu_scale(program)) {
            mean.add(run(program, "millpond", &settings, self.device())?.overhead());
        }
        Ok(mean.get())
    }

    /// Prints the mean overhead of the millpond policy with each setting halved and doubled.
    fn sensitivity(&self) -> Result<(), Box<dyn Error>> {
        let base = self.settings.millpond.clone();
        let Some(mean) = self.mean(base.clone())? else {
            return Err("the folder contains no GPU-scale recording".into());
        };
        let mut table = Table::new(&["setting", "geometric mean of overhead", "difference"]);
        table.row(["unchanged".to_owned(), format!("{mean:.4}"), "-".to_owned()]);
        for key in base.keys() {
            for value in neighbours(&key.value) {
                let text = format!("{}:{value}", key.key);
                // Invalid values, such as half a page, are left out.
                let Ok(conf) = MillpondConf::parse(&format!("{},{text}", self.arguments.conf)) else {
                    continue;
                };
                if let Some(changed) = self.mean(conf)? {
                    table.row([text, format!("{changed:.4}"), format!("{:+.4}", changed - mean)]);
                }
            }
        }
        Ok(print(&table)?)
    }
}

/// Returns the halved and the doubled value of a setting, or the other value of a switch. Returns nothing for zero and for values that
/// are not numbers.
fn neighbours(value: &str) -> Vec<String> {
    let both = |number: u64, shown: fn(u64) -> String| match number {
        0 => Vec::new(),
        _ => vec![shown(number / 2), shown(2 * number)],
    };
    match (value, value.parse(), parse_size(value)) {
        ("on", ..) => vec!["off".to_owned()],
        ("off", ..) => vec!["on".to_owned()],
        (_, Ok(number), _) => both(number, |number| number.to_string()),
        (_, _, Ok(bytes)) => both(bytes, |bytes| match bytes.is_multiple_of(1 << 20) {
            true => format!("{}MiB", bytes >> 20),
            false => format!("{bytes}B"),
        }),
        _ => Vec::new(),
    }
}

fn main() -> ExitCode {
    millpond_bench::exit("placement", measure(Arguments::parse()))
}

fn measure(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    if arguments.policies.is_empty() {
        arguments.policies.extend(policies::names().map(str::to_owned));
    }
    let costs = match &arguments.costs {
        Some(path) => {
            let text = fs::read_to_string(path);
            let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            Costs::from_toml(&text).map_err(|error| format!("{}: {error}", path.display()))?
        }
        None => Costs::default(),
    };
    let programs = find(&arguments.folder, &arguments.words)?;
    let programs: Result<Vec<Program>, _> = programs.iter().map(|path| Program::read(path)).collect();
    let setup = Setup {
        settings: Settings {
            millpond: MillpondConf::parse(&arguments.conf)?,
            ..Settings::default()
        },
        costs,
        programs: programs?,
        arguments,
    };
    match setup.arguments.jitter {
        Some(seeds) => setup.jitter(seeds),
        None if setup.arguments.sensitivity => setup.sensitivity(),
        None => setup.placement(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_halved_and_doubled_in_their_own_unit() {
        assert_eq!(neighbours("32MiB"), ["16MiB", "64MiB"]);
        assert_eq!(neighbours("1MiB"), ["524288B", "2MiB"]);
        assert_eq!(neighbours("7"), ["3", "14"]);
        assert_eq!(neighbours("off"), ["on"]);
        for value in ["0", "0B", "none", "10%", "0.5"] {
            assert!(neighbours(value).is_empty(), "{value}");
        }
    }
}
