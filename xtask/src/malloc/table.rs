//! The page that is printed.

use super::measure::{Allocator, Outcome, Sample};
use std::fmt::Write as _;

/// Describes the tables.
pub(super) const ABOUT: &str = "\
Each figure is the median of all runs, with the lowest and the highest. The runs of the allocators alternate. A ratio compares a
median with the lowest one of the program. The CPU time is that of the program and its children, and of a server without its clients.
For PyTorch, the processes of a run are alive at the same time and make their steps in turns, because the speed of a shared machine
changes within seconds. Its time is the mean over five batches of the median time of a step, and its CPU time is that of the whole process.
The peak is that of the largest process. For PostgreSQL it is the peak of the private memory of all processes, sampled every 20 ms.
For PyTorch it is the peak when the last step is complete. A process that ends reads more of its libraries' files, whatever it has needed before.
A program passes if it succeeds and prints the same as under glibc.";

/// Returns a table that describes the machine and the allocators.
pub(super) fn machine(allocators: &[Allocator], runs: usize) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processor = read("/proc/cpuinfo");
    let processor = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let mut text = String::from("| | |\n|---|---|\n");
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "| {name} | {} |", value.trim());
    };
    row("processor", processor.map_or("", |(_, name)| name));
    row(
        "threads",
        &std::thread::available_parallelism()
            .map_or(1, Into::into)
            .to_string(),
    );
    row("kernel", &read("/proc/sys/kernel/osrelease"));
    row(
        "load before",
        &read("/proc/loadavg")
            .split(' ')
            .take(3)
            .collect::<Vec<_>>()
            .join(", "),
    );
    row("runs", &runs.to_string());
    for allocator in allocators {
        let file = allocator.library.as_ref().and_then(|path| path.file_name());
        row(
            allocator.name,
            &file.map_or_else(|| "libc.so.6".into(), |file| file.to_string_lossy()),
        );
    }
    text
}

/// Returns the head of a table. `unit` is the unit of the first time.
pub(super) fn head(unit: &str) -> String {
    format!(
        "| program | allocator | time, {unit} | ratio | CPU time, s | ratio | peak, MiB | ratio | passes |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---|\n"
    )
}

/// Returns the rows of one program.
pub(super) fn rows(name: &str, allocators: &[Allocator], outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let columns: [fn(&Sample) -> f64; 3] = [
        |sample| sample.time,
        |sample| sample.cpu,
        |sample| mib(sample.peak),
    ];
    let least = columns.map(|column| {
        let passed = outcomes.iter().filter(|outcome| outcome.failed.is_none());
        passed
            .map(|outcome| Figure::new(&outcome.samples, column).median)
            .fold(f64::INFINITY, f64::min)
    });
    for (allocator, outcome) in allocators.iter().zip(outcomes) {
        let _ = write!(text, "| {name} | {} |", allocator.name);
        for (column, least) in columns.into_iter().zip(least) {
            if outcome.samples.is_empty() {
                text += " | |";
                continue;
            }
            let Figure { median, low, high } = Figure::new(&outcome.samples, column);
            let digits = if low < 100.0 { 2 } else { 1 };
            let _ = write!(
                text,
                " {median:.digits$} ({low:.digits$} to {high:.digits$}) | {:.2} |",
                median / least
            );
        }
        let _ = writeln!(
            text,
            " {} |",
            outcome
                .failed
                .as_ref()
                .map_or("yes".into(), |why| format!("**no**: {why}"))
        );
    }
    text
}

/// Returns bytes in MiB.
pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The median and the limits of a figure over all runs.
struct Figure {
    median: f64,
    low: f64,
    high: f64,
}

impl Figure {
    fn new(samples: &[Sample], column: fn(&Sample) -> f64) -> Self {
        let mut values: Vec<f64> = samples.iter().map(column).collect();
        values.sort_by(f64::total_cmp);
        let at = |at: usize| values.get(at).copied().unwrap_or(f64::INFINITY);
        let half = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(at(half.saturating_sub(1)), at(half))
        } else {
            at(half)
        };
        Self {
            median,
            low: at(0),
            high: at(values.len().saturating_sub(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(times: &[f64]) -> Outcome {
        let sample = |&time| Sample {
            time,
            cpu: 1.0,
            peak: 1 << 20,
            output: 0,
        };
        Outcome {
            samples: times.iter().map(sample).collect(),
            failed: None,
        }
    }

    #[test]
    fn rows_have_medians_and_ratios_to_the_lowest() {
        let allocators = [
            Allocator {
                name: "one",
                library: None,
            },
            Allocator {
                name: "two",
                library: None,
            },
        ];
        let rows = rows(
            "program",
            &allocators,
            &[outcome(&[3.0, 1.0, 2.0]), outcome(&[2.0, 4.0])],
        );
        let same = "1.00 (1.00 to 1.00) | 1.00 | 1.00 (1.00 to 1.00) | 1.00 | yes |\n";
        let one = format!("| program | one | 2.00 (1.00 to 3.00) | 1.00 | {same}");
        let two = format!("| program | two | 3.00 (2.00 to 4.00) | 1.50 | {same}");
        assert_eq!(rows, one + &two);
    }

    #[test]
    fn failed_programs_show_the_reason() {
        let allocators = [Allocator {
            name: "one",
            library: None,
        }];
        let failed = Outcome {
            samples: Vec::new(),
            failed: Some("signal 11".into()),
        };
        assert_eq!(
            rows("program", &allocators, &[failed]),
            "| program | one | | | | | | | **no**: signal 11 |\n"
        );
    }
}
