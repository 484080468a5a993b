//! Writes a report as an HTML page, one file for each recording and device.

use crate::exit::CliError;
use crate::output;
use crate::side_by_side::{self, Shown};
use millpond_replay::page::{self, Page};
use millpond_replay::{Placement, Report, usual_policy};
use millpond_trace::Trace;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Chooses the file names of the pages that one run of the command writes.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    named: &'a Path,
    /// The names given so far, in lower case, because some file systems do not distinguish `a` from `A`.
    given: HashSet<String>,
}

impl<'a> Pages<'a> {
    /// Creates names at `named`, or beside it.
    pub(crate) fn new(named: &'a Path) -> Self {
        Self {
            named,
            given: HashSet::new(),
        }
    }

    /// Returns the path of a report's page. This is the file named on the command line. If there are several reports, it is a file
    /// beside that one, with the report's label in its name. No two reports get the same file.
    pub(crate) fn place(&mut self, label: &str, several: bool) -> PathBuf {
        if !several {
            return self.named.to_owned();
        }
        let plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
        let safe: String = label.chars().map(|c| if plain(c) { c } else { '-' }).collect();
        let safe = safe.trim_matches('-').replace("--", "-");
        let stem = self.named.file_stem().unwrap_or_default().to_string_lossy();
        let ending = self
            .named
            .extension()
            .map_or_else(|| "html".into(), |ending| ending.to_string_lossy());
        let numbers = (2..).map(|number: u64| format!("{stem}-{safe}-{number}.{ending}"));
        let mut names = std::iter::once(format!("{stem}-{safe}.{ending}")).chain(numbers);
        let new = names.find(|name| self.given.insert(name.to_lowercase()));
        self.named.with_file_name(new.unwrap_or_default())
    }
}

/// Writes the page of one report.
pub(crate) fn write(
    path: &Path,
    shown: &Shown<'_>,
    trace: &Trace,
    placements: &[Placement],
    device_bytes: Option<u64>,
) -> Result<(), CliError> {
    let report = shown.report;
    let pairs = report.results.iter().zip(placements);
    let runs: Vec<page::Run<'_>> = pairs
        .map(|(result, placement)| page::Run {
            name: &result.policy,
            fidelity: &result.fidelity,
            placement,
        })
        .collect();
    let (grid, _) = side_by_side::grid(shown, None);
    let mut rows = grid.rows();
    for cell in rows.iter_mut().filter_map(|row| row.first_mut()) {
        // On the page a name is a key. The indentation that leaves room for the mark would break it.
        *cell = cell.trim().to_owned();
    }
    let page = Page {
        title: shown.label.to_owned(),
        version: format!("millpond {}", env!("CARGO_PKG_VERSION")),
        trace,
        runs: &runs,
        in_use: in_use(report, trace),
        best: report.best(),
        columns: grid.heads().iter().map(|head| head.trim().to_owned()).collect(),
        rows,
        advice: report.advice.clone(),
        cautions: report.cautions.clone(),
        device_bytes,
        peak_requested: report.peak_requested_bytes,
    };
    output::write_file(path, |out| page::write(&page, out))
}

/// Returns the policy that the program ran under, by the recording or by the usual policy of its format.
fn in_use(report: &Report, trace: &Trace) -> Option<usize> {
    let usual = usual_policy(trace.origin.format);
    let named = report
        .recorded
        .as_ref()
        .map_or(usual, |recorded| recorded.policy.as_str());
    report.results.iter().position(|result| result.policy == named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_reports_get_names_of_their_own() {
        let mut pages = Pages::new(Path::new("out/report.html"));
        let mut place = |label, several| pages.place(label, several).display().to_string();
        assert_eq!(place("rank0", false), "out/report.html");
        assert_eq!(place("rank0 (device 1)", true), "out/report-rank0-device-1.html");
        assert_eq!(place("../../etc", true), "out/report-..-..-etc.html");
        let alike = ["a b", "a-b", "a?b", "A b", "a-b-2"].map(|label| place(label, true));
        assert_eq!(
            alike,
            [
                "out/report-a-b.html",
                "out/report-a-b-2.html",
                "out/report-a-b-3.html",
                "out/report-A-b-4.html",
                "out/report-a-b-2-2.html",
            ]
        );
    }
}
