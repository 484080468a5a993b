//! The failures that are known, with their causes.

use super::results::{Outcome, Results};
use std::collections::BTreeMap;
use std::fmt;

/// Tests that fail for a known cause.
struct Known {
    client: &'static str,
    /// The end of the test's name. With a `*` at its end, the name contains it.
    test: &'static str,
    why: &'static str,
    /// Whether such a test fails in every run. The entry of one that may pass does not become stale.
    always: bool,
}

mod causes;
use causes::KNOWN;

impl Known {
    fn is_of(&self, name: &str) -> bool {
        match self.test.strip_suffix('*') {
            Some(part) => name.contains(part),
            None => name.ends_with(self.test),
        }
    }
}

/// The results of a client, with known and other failures counted separately.
pub(super) struct Judged {
    passed: usize,
    skipped: usize,
    kernels: usize,
    /// The number of failures by cause.
    explained: BTreeMap<&'static str, usize>,
    /// Tests that failed for no known cause, with the reasons that they gave.
    unexplained: Vec<(String, String)>,
    /// Entries that must match a failed test but match none.
    stale: Vec<&'static str>,
}

pub(super) fn judge(client: &str, results: &Results) -> Judged {
    judge_by(KNOWN, client, results)
}

fn judge_by(known: &[Known], client: &str, results: &Results) -> Judged {
    let known: Vec<_> = known.iter().filter(|entry| entry.client == client).collect();
    let mut used = vec![false; known.len()];
    let mut judged = Judged {
        passed: 0,
        skipped: 0,
        kernels: 0,
        explained: BTreeMap::new(),
        unexplained: Vec::new(),
        stale: Vec::new(),
    };
    for (name, outcome) in results {
        match outcome {
            Outcome::Passed => judged.passed += 1,
            Outcome::Skipped => judged.skipped += 1,
            Outcome::Kernel => judged.kernels += 1,
            Outcome::Failed(why) => match known.iter().position(|entry| entry.is_of(name)) {
                Some(index) => {
                    used[index] = true;
                    *judged.explained.entry(known[index].why).or_default() += 1;
                }
                None => judged.unexplained.push((name.clone(), why.clone())),
            },
        }
    }
    let unused = known
        .iter()
        .zip(used)
        .filter(|(entry, used)| entry.always && !used);
    judged.stale = unused.map(|(entry, _)| entry.test).collect();
    judged
}

impl Judged {
    /// Prints the causes of failures with their numbers.
    pub(super) fn causes(&self, client: &str) {
        if self.kernels > 0 {
            println!(
                "{client}: {} tests: the driver does not run the kernel",
                self.kernels
            );
        }
        for (why, count) in &self.explained {
            println!("{client}: {count} tests: {why}");
        }
    }

    /// Returns a text for each error in the results.
    pub(super) fn wrong(&self) -> impl Iterator<Item = String> {
        let none = (self.passed == 0).then(|| "no test passed: the emulated driver was not found".to_owned());
        let unexplained = self.unexplained.iter();
        let unexplained = unexplained.map(|(name, why)| format!("{name} failed: {why}"));
        let stale = self.stale.iter();
        let stale = stale.map(|test| format!("'{test}' is a known failure, but no such test has failed"));
        none.into_iter().chain(unexplained).chain(stale)
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let explained = self.explained.values().sum::<usize>();
        let failed = explained + self.unexplained.len() + self.kernels;
        write!(
            f,
            "{:>6} {:>6} {:>7} {:>7} {:>9} {:>11}",
            self.passed + self.skipped + failed,
            self.passed,
            self.skipped,
            self.kernels,
            explained,
            self.unexplained.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Outcome {
        Outcome::Failed("it broke".to_owned())
    }

    #[test]
    fn failures_need_a_cause_and_causes_need_a_failure() {
        let known = |test| Known {
            client: "c",
            test,
            why: "no arrays",
            always: true,
        };
        let results = Results::from([
            ("f.py::a[1]".to_owned(), failed()),
            ("f.py::a[2]".to_owned(), failed()),
            ("f.py::b".to_owned(), Outcome::Passed),
            ("f.py::k".to_owned(), Outcome::Kernel),
            ("f.py::s".to_owned(), Outcome::Skipped),
        ]);
        let judged = judge_by(&[known("::a[*")], "c", &results);
        assert_eq!(judged.wrong().count(), 0);
        assert_eq!(
            judged.to_string().split_whitespace().collect::<Vec<_>>(),
            ["5", "1", "1", "1", "2", "0"]
        );
        // An entry must be of this client, and explain all failures.
        assert_eq!(judge_by(&[known("::a[*")], "d", &results).wrong().count(), 2);
        assert_eq!(judge_by(&[known("::a[1]")], "c", &results).wrong().count(), 1);
        // A test that passes makes its entry stale.
        let stale = judge_by(&[known("::a[*"), known("::b")], "c", &results);
        assert_eq!(stale.wrong().count(), 1);
        let sometimes = Known {
            always: false,
            ..known("::b")
        };
        let judged = judge_by(&[known("::a[*"), sometimes], "c", &results);
        assert_eq!(judged.wrong().count(), 0);
        assert_eq!(judge_by(&[], "c", &Results::new()).wrong().count(), 1);
    }
}
