//! Runs and counts the tests of one crate.

use crate::shell::Result;
use std::fmt;
use std::path::Path;
use xshell::{Shell, cmd};

/// The results of a crate's tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) passed: u64,
    pub(super) failed: u64,
    ignored: u64,
    /// The number of test programs that ran to their end.
    pub(super) programs: u64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} passed, {} failed", self.passed, self.failed))
    }
}

/// The pool's own figures, added up over programs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    pub(super) programs: u64,
    /// The number of programs that have their own allocator.
    pub(super) others: u64,
    pub(super) allocations: u64,
    frees: u64,
    peak: u64,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, others, .. } = self;
        write!(
            f,
            "{} allocations, {} frees, {} KiB at most, in {programs} programs",
            self.allocations,
            self.frees,
            self.peak >> 10
        )?;
        if *others > 0 {
            write!(f, " ({others} with an allocator of their own)")?;
        }
        Ok(())
    }
}

/// Runs all tests of a crate except its documentation tests.
pub(super) fn run(sh: &Shell, place: &Path, build: &Path) -> Result<(Outcome, Served)> {
    let proof = place.join("served.txt");
    let _in_crate = sh.push_dir(place);
    println!("\nin {}:", place.display());
    let output = cmd!(
        sh,
        "cargo test --quiet --lib --tests --no-fail-fast --target-dir {build}"
    )
    .env("MILLPOND_PROOF", &proof)
    .env_remove("MILLPOND_CONF")
    .ignore_status()
    .output()?;
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let outcome = count(&text);
    println!("{outcome}");
    if !output.status.success() {
        // No line reports that a program was killed, so this prints the whole output.
        println!("{text}");
        if outcome.failed == 0 {
            return Err(format!("the tests in {} could not run to their end", place.display()).into());
        }
    }
    Ok((outcome, served(&sh.read_file(&proof).unwrap_or_default())))
}

/// Adds up the results in lines such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn count(text: &str) -> Outcome {
    let mut sum = Outcome::default();
    for line in text.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        let words: Vec<&str> = line.split([' ', ';', '.']).collect();
        let number = |what: &str| {
            let at = words.iter().position(|word| *word == what);
            at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok())
                .unwrap_or(0)
        };
        sum.passed += number("passed");
        sum.failed += number("failed");
        sum.ignored += number("ignored");
        sum.programs += 1;
    }
    sum
}

/// Adds up the lines that `global/proof` has written.
fn served(text: &str) -> Served {
    let mut sum = Served::default();
    for line in text.lines() {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        if let [allocations, frees, peak] = numbers[..] {
            sum.programs += 1;
            sum.allocations += allocations;
            sum.frees += frees;
            sum.peak = sum.peak.max(peak);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up() {
        let text = "running 2 tests\n..\ntest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
            test result: FAILED. 10 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n";
        let sum = count(text);
        assert_eq!((sum.passed, sum.failed, sum.ignored, sum.programs), (12, 3, 1, 2));
        let sum = served("5 4 1024\n7 7 2048\ncut 1\n");
        assert_eq!(
            (sum.programs, sum.allocations, sum.frees, sum.peak),
            (2, 12, 11, 2048)
        );
    }
}
