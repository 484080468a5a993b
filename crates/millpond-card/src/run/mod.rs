//! The runner. Each program of a step has its own time limit, a failed step does not stop the others, and the result is written after
//! each step.

mod child;
mod programs;
mod report;
mod steps;
mod tests;
mod training;

use crate::options;
use report::{Outcome, Report, Step};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The settings that all steps share.
pub(crate) struct Session {
    /// The folder of this program and of the programs it runs.
    folder: PathBuf,
    out: PathBuf,
    /// The working folder, with the programs' output and the driver's compile cache. The output is packed at the end.
    work: PathBuf,
    driver: String,
    rehearse: bool,
    quick: bool,
    ends: Instant,
    /// The version of CUDA that the driver supports, such as 12080.
    cuda: u64,
}

/// The default time limit of the whole run, in minutes: a little less than a borrowed machine allows for one command.
const MINUTES: f64 = 9.5;

impl Session {
    /// Returns a limit of this many seconds, or the time left if that is less.
    fn limit(&self, seconds: u64) -> Duration {
        let left = self.ends.saturating_duration_since(Instant::now());
        Duration::from_secs(seconds).min(left)
    }

    /// Returns the folder in which the loader finds the driver for programs that load it by name, or `None` for the machine's own driver.
    fn driver_folder(&self) -> Option<&Path> {
        let path = Path::new(&self.driver);
        path.parent().filter(|folder| !folder.as_os_str().is_empty())
    }
}

/// Lists the steps and their time limits, one step per line.
pub(crate) fn list() -> String {
    let line = |step: &steps::Plan| {
        format!(
            "{:>3}  {} (at most {} s)\n",
            step.number,
            step.name,
            step.seconds()
        )
    };
    steps::ALL.iter().map(line).collect()
}

/// Runs the steps that the arguments select. Returns whether every step succeeded.
pub(crate) fn run(arguments: &[String]) -> Result<bool, String> {
    let (options, others) = options(arguments)?;
    let mut chosen: Vec<u32> = steps::ALL.iter().map(|step| step.number).collect();
    let (mut out, mut minutes) = (None, MINUTES);
    let mut others = others.into_iter();
    while let Some(flag) = others.next() {
        let value = others.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag {
            "--steps" => chosen = numbers(value)?,
            "--out" => out = Some(PathBuf::from(value)),
            "--minutes" => {
                let given: Option<f64> = value.parse().ok();
                minutes = given
                    .filter(|minutes| *minutes > 0.0 && minutes.is_finite())
                    .ok_or_else(|| format!("--minutes {value}: write a number above 0"))?;
            }
            _ => return Err(format!("unknown option {flag}")),
        }
    }
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = here.parent().unwrap_or(Path::new(".")).to_path_buf();
    let out = out.unwrap_or_else(|| folder.join("out"));
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let work = std::env::temp_dir().join(format!("millpond-card-{}", std::process::id()));
    std::fs::create_dir_all(work.join("logs")).map_err(|error| format!("{}: {error}", work.display()))?;
    let mut session = Session {
        folder,
        work,
        out: out
            .canonicalize()
            .map_err(|error| format!("{}: {error}", out.display()))?,
        driver: options.driver,
        rehearse: options.rehearse,
        quick: options.quick,
        ends: Instant::now() + Duration::from_secs_f64(minutes * 60.0),
        cuda: 0,
    };
    let mut report = Report::begin(&session)?;
    session.cuda = report.cuda();
    for plan in steps::ALL.iter().filter(|plan| chosen.contains(&plan.number)) {
        let begun = Instant::now();
        let mut step = Step::new(plan.number, plan.name);
        if session.limit(1).is_zero() {
            step.note("no time was left for this step");
            step.outcome = Outcome::NoTime;
        } else {
            for part in plan.parts {
                part.run(&session, &mut step);
            }
        }
        step.seconds = begun.elapsed().as_secs_f64();
        println!(
            "step {:>2}: {} ({:.1} s): {}",
            step.number,
            step.name,
            step.seconds,
            step.outcome.name()
        );
        for check in step.failed_checks() {
            println!("         not as assumed: {check}");
        }
        report.add(step);
        // The results so far are kept even if the next step ends the runner.
        report.write(&session)?;
    }
    child::pack(&session);
    println!("{}", session.out.join("card.md").display());
    Ok(report.is_complete())
}

/// Parses numbers of steps, such as `1,3,6`.
fn numbers(text: &str) -> Result<Vec<u32>, String> {
    let one = |text: &str| {
        let number: Option<u32> = text.trim().parse().ok();
        number
            .filter(|number| steps::ALL.iter().any(|step| step.number == *number))
            .ok_or_else(|| {
                format!(
                    "there is no step '{text}': the steps are 1 to {}",
                    steps::ALL.len()
                )
            })
    };
    text.split(',').map(one).collect()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn steps_are_chosen_by_number() {
        assert_eq!(numbers("1,3, 12"), Ok(vec![1, 3, 12]));
        for bad in ["", "0", "13", "one", "1,,2"] {
            assert!(numbers(bad).is_err(), "{bad}");
        }
    }
}
