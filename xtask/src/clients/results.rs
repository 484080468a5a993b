//! The results of tests, read from the lines that pytest's plugin and Rust's test programs write.

use crate::shell::Result;
use serde_json::Value;
use std::collections::BTreeMap;

/// The result of each test, by its name.
pub(super) type Results = BTreeMap<String, Outcome>;

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    /// The client does not run the test here.
    Skipped,
    /// The driver refused a kernel.
    Kernel,
    /// The test failed for this reason.
    Failed(String),
}

/// The messages of an error that a driver returns for device code that it cannot run.
const REFUSED: [&str; 9] = [
    "CURAND_STATUS_LAUNCH_FAILURE",
    "NO_BINARY_FOR_GPU",
    "InvalidDeviceFunction",
    "NoKernelImageForDevice",
    "no kernel image is available",
    "INVALID_PTX",
    "INVALID_IMAGE",
    "a PTX JIT compilation failed",
    "UNSUPPORTED_PTX_VERSION",
];

impl Outcome {
    /// Returns the outcome of a failed test from its reason and from all that it printed.
    pub(super) fn failed(why: &str, text: &str) -> Self {
        let refused = REFUSED
            .iter()
            .any(|message| why.contains(message) || text.contains(message));
        if refused {
            return Self::Kernel;
        }
        Self::Failed(why.trim().lines().next().unwrap_or("no reason given").to_owned())
    }
}

/// The lines of pytest's plugin.
pub(super) struct Lines {
    pub(super) results: Results,
    /// The test that began and did not end.
    pub(super) open: Option<String>,
    /// The number of blocks that pools have allocated for the tests.
    pub(super) allocations: u64,
}

/// Reads the lines of pytest's plugin. A test has failed if one of its phases has.
pub(super) fn pytest(text: &str) -> Result<Lines> {
    let mut results = Results::new();
    let mut open = None;
    let mut allocations = 0;
    for line in text.lines() {
        let line: Value = serde_json::from_str(line)?;
        let word = |key| line.get(key).and_then(Value::as_str).unwrap_or_default();
        let name = word("test").to_owned();
        let outcome = match word("event") {
            "begin" => {
                open = Some(name);
                continue;
            }
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped,
            "failed" => Outcome::failed(word("why"), word("text")),
            "pools" => {
                allocations += line
                    .get("allocations")
                    .and_then(Value::as_u64)
                    .unwrap_or_default();
                continue;
            }
            _ => {
                open = None;
                continue;
            }
        };
        let is_failure = matches!(outcome, Outcome::Kernel | Outcome::Failed(_));
        if is_failure || !results.contains_key(&name) {
            results.insert(name, outcome);
        }
    }
    Ok(Lines {
        results,
        open,
        allocations,
    })
}

/// Returns the results in pools of the tests that passed without pools.
pub(super) fn in_pools(without: &Results, results: &Results) -> Results {
    let passed = without.iter().filter(|(_, outcome)| **outcome == Outcome::Passed);
    let again = |name| match results.get(name) {
        Some(outcome) if *outcome != Outcome::Skipped => outcome.clone(),
        _ => Outcome::Failed("it was not run in pools".to_owned()),
    };
    passed.map(|(name, _)| (name.clone(), again(name))).collect()
}

/// Reads lines such as `test driver::safe::tests::name ... ok`, and the output of failed tests after `---- name stdout ----`.
pub(super) fn libtest(text: &str) -> Results {
    let mut results = Results::new();
    for line in text.lines() {
        let Some((name, end)) = line
            .strip_prefix("test ")
            .and_then(|line| line.split_once(" ... "))
        else {
            continue;
        };
        let name = name.strip_suffix(" - should panic").unwrap_or(name);
        let outcome = match end {
            "ok" => Outcome::Passed,
            "FAILED" => {
                let printed = output(text, name);
                Outcome::failed(message(&printed), &printed)
            }
            end if end.starts_with("ignored") => Outcome::Skipped,
            _ => Outcome::Failed("its process ended during the test".to_owned()),
        };
        results.insert(name.to_owned(), outcome);
    }
    results
}

/// Returns the output of a failed test.
fn output(text: &str, name: &str) -> String {
    let head = format!("---- {name} stdout ----");
    let after = text.split_once(&head).map_or("", |(_, after)| after);
    let lines = after
        .lines()
        .take_while(|line| !line.starts_with("---- ") && *line != "failures:");
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the message of a panic, which follows the line with its place.
fn message(printed: &str) -> &str {
    let after = printed
        .split_once("panicked at ")
        .and_then(|(_, after)| after.split_once('\n'));
    after.map_or(printed, |(_, message)| message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_rust_are_read() {
        let text = "running 4 tests\ntest a::b ... ok\ntest c - should panic ... ok\ntest nvrtc::d ... FAILED\n\
            test e ... ignored, must be alone\ntest k ... FAILED\ntest z ... \nfailures:\n\n---- nvrtc::d stdout ----\n\
            thread 'd' panicked at src/d.rs:1:1:\nno such library\n---- k stdout ----\nthread 'k' panicked at k.rs:2:2:\n\
            DriverError(CUDA_ERROR_NO_BINARY_FOR_GPU)\n\nfailures:\n    nvrtc::d\ntest result: FAILED. 2 passed; 1 failed\n";
        let found = libtest(text);
        let expected = [
            ("a::b", Outcome::Passed),
            ("c", Outcome::Passed),
            ("e", Outcome::Skipped),
            ("k", Outcome::Kernel),
            ("nvrtc::d", Outcome::Failed("no such library".to_owned())),
            (
                "z",
                Outcome::Failed("its process ended during the test".to_owned()),
            ),
        ];
        let expected = expected.map(|(name, outcome)| (name.to_owned(), outcome));
        assert_eq!(found, Results::from(expected));
    }

    #[test]
    fn results_of_pytest_are_read() {
        let text = r#"{"event": "begin", "test": "a"}
{"event": "passed", "test": "a", "why": "", "text": ""}
{"event": "failed", "test": "a", "why": "it leaks\nmuch", "text": ""}
{"event": "end", "test": "a"}
{"event": "begin", "test": "b"}
{"event": "failed", "test": "b", "why": "assert False", "text": "no kernel image is available"}
{"event": "end", "test": "b"}
{"event": "begin", "test": "c"}
{"event": "skipped", "test": "c", "why": "no MPS", "text": ""}
{"event": "end", "test": "c"}
{"event": "pools", "allocations": 3}
{"event": "begin", "test": "d"}
{"event": "pools", "allocations": 4}
"#;
        let lines = pytest(text).expect("it is JSON");
        let expected = [
            ("a", Outcome::Failed("it leaks".to_owned())),
            ("b", Outcome::Kernel),
            ("c", Outcome::Skipped),
        ];
        let expected = expected.map(|(name, outcome)| (name.to_owned(), outcome));
        assert_eq!(lines.results, Results::from(expected));
        assert_eq!(lines.open.as_deref(), Some("d"));
        assert_eq!(lines.allocations, 7);
        assert!(pytest("no JSON").is_err());
    }

    #[test]
    fn a_test_that_passes_without_pools_must_run_and_pass_in_pools() {
        let of = |results: &[(&str, Outcome)]| -> Results {
            let results = results.iter().cloned();
            results
                .map(|(name, outcome)| (name.to_owned(), outcome))
                .collect()
        };
        let broken = || Outcome::Failed("it broke".to_owned());
        let without = of(&[
            ("a", Outcome::Passed),
            ("b", Outcome::Passed),
            ("c", Outcome::Passed),
            ("d", Outcome::Passed),
            ("e", broken()),
        ]);
        let found = of(&[
            ("a", Outcome::Passed),
            ("b", broken()),
            ("c", Outcome::Skipped),
            ("e", broken()),
        ]);
        let missing = || Outcome::Failed("it was not run in pools".to_owned());
        let expected = of(&[
            ("a", Outcome::Passed),
            ("b", broken()),
            ("c", missing()),
            ("d", missing()),
        ]);
        assert_eq!(in_pools(&without, &found), expected);
    }
}
