//! Runs the tests of CUDA devices on emulated drivers, with the work ordered by many seeds, and on drivers that lack features.

use crate::shell::{Result, shell};
use std::time::Instant;
use xshell::{Shell, cmd};

/// The default number of seeds.
const SEEDS: u32 = 100;
/// The maximum number of seeds for drivers that lack features.
const FEWER: u32 = 5;
/// The prefix of the emulated driver's messages about misuse.
const FINDING: &str = "millpond-cuda-emu: ";

pub(crate) fn run(args: &[String]) -> Result {
    let seeds = match args {
        [] => SEEDS,
        [name, seeds] if name == "--seeds" => seeds
            .parse()
            .ok()
            .filter(|seeds| *seeds > 0)
            .ok_or_else(|| format!("'{seeds}' is not a number of seeds of at least 1"))?,
        _ => return Err("usage: cargo xtask cuda-seeds [--seeds N]".into()),
    };
    let sh = &shell()?;
    let tests: &[&str] = &crate::test::CUDA.split(' ').collect::<Vec<_>>();
    cmd!(sh, "cargo {tests...} --no-run").run()?;
    for (lack, seeds) in [
        ("", seeds),
        ("without:vmm,", seeds.min(FEWER)),
        ("without:vmm,without:pools,", seeds.min(FEWER)),
    ] {
        let begun = Instant::now();
        let mut passed = 0;
        for seed in 0..seeds {
            passed += one(sh, tests, &format!("{lack}streams:seeded,seed:{seed},strict:on"))?;
        }
        println!(
            "{lack}strict:on, {seeds} seeds: {passed} tests passed, none failed, no misuse found ({:.0} s)",
            begun.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Runs all tests with a driver that has these options, and returns the number that passed.
fn one(sh: &Shell, tests: &[&str], options: &str) -> Result<u32> {
    let output = cmd!(sh, "cargo {tests...} --no-fail-fast")
        .env("MILLPOND_CUDA_EMU", options)
        .env("MILLPOND_TEST_CUDA", "given")
        .quiet()
        .ignore_status()
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    let findings: Vec<_> = complaints
        .lines()
        .chain(said.lines())
        .filter(|line| line.contains(FINDING))
        .collect();
    if !output.status.success() || !findings.is_empty() {
        return Err(format!(
            "MILLPOND_CUDA_EMU={options} MILLPOND_TEST_CUDA=given cargo {}\n{said}\n{complaints}",
            tests.join(" ")
        )
        .into());
    }
    match passed(&said) {
        0 => Err(format!("{options}: no test ran").into()),
        passed => Ok(passed),
    }
}

/// Adds up the passed tests of lines such as `test result: ok. 34 passed; 0 failed; …`.
fn passed(text: &str) -> u32 {
    let count = |line: &str| {
        let (before, _) = line.strip_prefix("test result: ok. ")?.split_once(" passed")?;
        before.parse::<u32>().ok()
    };
    text.lines().filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_added_up() {
        let text = "running 2 tests\ntest result: ok. 34 passed; 0 failed; 0 ignored\n\
            test result: FAILED. 1 passed; 1 failed\ntest result: ok. 8 passed; 0 failed\n";
        assert_eq!(passed(text), 42);
    }

    #[test]
    fn bad_flags_are_refused() {
        for args in [&["--seeds"][..], &["--seeds", "0"], &["--seeds", "x"], &["7"]] {
            let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
            assert!(run(&args).is_err(), "{args:?}");
        }
    }
}
