//! Compares good and bad practices with memory. Both run in the same process, and the results are medians of 15 rounds
//! in which they alternate. Prints the table in `docs/practice.md`.
//!
//! ```text
//! cargo run --release -p millpond --example practice
//! ```
//!
//! `--names` prints only the names, and `--quick` runs one round.

#[cfg(target_os = "linux")]
mod space;
#[cfg(target_os = "linux")]
mod tensors;
#[cfg(target_os = "linux")]
mod time;

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::fmt::Write as _;

    /// The results of one round of both practices.
    pub(crate) struct Round {
        pub(crate) good: f64,
        pub(crate) bad: f64,
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Unit {
        Nanoseconds,
        Bytes,
    }

    pub(crate) struct Practice {
        /// The good practice and its purpose.
        pub(crate) name: &'static str,
        /// The bad practice.
        pub(crate) instead: &'static str,
        pub(crate) unit: Unit,
        pub(crate) run: fn() -> Result<Round, Box<dyn Error>>,
    }

    const ROUNDS: usize = 15;

    fn shown(value: f64, unit: Unit) -> String {
        let steps = match unit {
            Unit::Nanoseconds => [(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")],
            Unit::Bytes => [
                (1073741824.0, "GiB"),
                (1048576.0, "MiB"),
                (1024.0, "KiB"),
                (1.0, "B"),
            ],
        };
        let (divisor, word) = steps
            .into_iter()
            .find(|(least, _)| value >= *least)
            .unwrap_or(steps[3]);
        let value = value / divisor;
        let digits = if value < 10.0 {
            2
        } else {
            usize::from(value < 100.0)
        };
        format!("{value:.digits$} {word}")
    }

    fn ratio(value: f64) -> String {
        if value < 9.95 {
            format!("{value:.1}x")
        } else {
            format!("{value:.0}x")
        }
    }

    /// Returns the median, and the first and the third quartile.
    fn middle(mut values: Vec<f64>) -> (f64, f64, f64) {
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| values[(values.len() - 1) * quarter / 4];
        (at(2), at(1), at(3))
    }

    fn row(practice: &Practice, rounds: usize) -> Result<String, Box<dyn Error>> {
        // The first run is a warm-up.
        if rounds > 1 {
            (practice.run)()?;
        }
        let runs = (0..rounds)
            .map(|_| (practice.run)())
            .collect::<Result<Vec<_>, _>>()?;
        let of = |what: fn(&Round) -> f64| middle(runs.iter().map(what).collect());
        let (good, ..) = of(|round| round.good);
        let (bad, ..) = of(|round| round.bad);
        let (times, least, most) = of(|round| round.bad / round.good.max(1e-9));
        let mut line = String::new();
        write!(
            line,
            "{:<34} {:>9}   {:<34} {:>9} {:>7}   {} to {}",
            practice.name,
            shown(good, practice.unit),
            practice.instead,
            shown(bad, practice.unit),
            ratio(times),
            ratio(least),
            ratio(most)
        )?;
        Ok(line)
    }

    pub(crate) fn main() -> Result<(), Box<dyn Error>> {
        use crate::{space, tensors, time};
        let groups: [(&str, &[Practice]); 4] = [
            ("time", &time::PRACTICES),
            ("time, with tensors", &tensors::PRACTICES),
            ("memory, or a figure of it", &space::PRACTICES),
            ("often said to cost time", &time::MYTHS),
        ];
        let argument = std::env::args().nth(1);
        if argument.as_deref() == Some("--names") {
            let all = groups.iter().flat_map(|(_, practices)| *practices);
            all.for_each(|practice| println!("{}", practice.name));
            return Ok(());
        }
        let rounds = if argument.as_deref() == Some("--quick") {
            1
        } else {
            ROUNDS
        };
        println!(
            "{:<34} {:>9}   {:<34} {:>9} {:>7}   quartiles",
            "do", "costs", "instead of", "costs", "ratio"
        );
        for (group, practices) in groups {
            println!("\n{group}");
            for practice in practices {
                println!("{}", row(practice, rounds)?);
            }
        }
        Ok(())
    }
}
