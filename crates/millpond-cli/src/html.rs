//! Writes a report as an HTML page, one file for each recording and device.

use crate::exit::CliError;
use crate::output;
use crate::side_by_side::{self, Shown};
use millpond_replay::page::{self, Page};
use millpond_replay::{OomOrigin, Placement, PolicyResult, Report};
use millpond_trace::{Action, Event, Trace};
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
    /// Creates a chooser of file names at `named` or next to it.
    pub(crate) fn new(named: &'a Path) -> Self {
        Self {
            named,
            given: HashSet::new(),
        }
    }

    /// Returns the path of a report's page. This is the file named on the command line. If there are several reports, it is a file next to
    /// that one, with the report's label in its name. No two reports get the same file.
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
    // On the page, the name of a row is its key.
    let names: Vec<String> = report.results.iter().map(PolicyResult::label).collect();
    let runs: Vec<page::Run<'_>> = pairs
        .zip(&names)
        .map(|((result, placement), name)| page::Run {
            name,
            fidelity: &result.fidelity,
            needs: needs(report, result),
            placement,
        })
        .collect();
    let (grid, _) = side_by_side::grid(shown, None);
    let mut rows = grid.rows();
    for (row, name) in rows.iter_mut().skip(1).zip(&names) {
        if let Some(cell) = row.first_mut() {
            cell.clone_from(name);
        }
    }
    let page = Page {
        title: shown.label.to_owned(),
        version: format!("millpond {}", env!("CARGO_PKG_VERSION")),
        trace,
        runs: &runs,
        in_use: in_use(report),
        best: side_by_side::advised(report),
        opens_at: opens_at(report, trace, &runs),
        columns: grid.heads().iter().map(|head| head.trim().to_owned()).collect(),
        rows,
        advice: report.answer(),
        cautions: report.cautions.clone(),
        device_bytes,
        peak_requested: report.peak_requested_bytes,
    };
    output::write_file(path, |out| page::write(&page, out))
}

/// Returns the event of `trace` at which memory ran out.
fn opens_at(report: &Report, trace: &Trace, runs: &[page::Run<'_>]) -> Option<u32> {
    let oom = report.out_of_memory.as_ref()?;
    match oom.origin {
        OomOrigin::Recorded => {
            let is_refusal = |event: &Event| event.action == Action::OutOfMemory;
            trace
                .events
                .iter()
                .rposition(is_refusal)
                .and_then(|at| u32::try_from(at).ok())
        }
        OomOrigin::Replayed => {
            runs.iter()
                .find(|run| run.name == oom.policy)?
                .placement
                .stopped_at
        }
    }
}

/// Returns the smallest device on which the program finishes with the settings of a row. If the row does not have it, it comes
/// from the verdict.
fn needs(report: &Report, row: &PolicyResult) -> Option<u64> {
    let verdict = report.verdict.iter();
    let mut choices = verdict.flat_map(|verdict| std::iter::once(&verdict.own).chain(&verdict.better));
    let known = || {
        choices
            .find(|choice| choice.result.label() == row.label())?
            .needs()
    };
    row.smallest_device_bytes.or_else(known)
}

/// Returns the row of the program's own allocator.
fn in_use(report: &Report) -> Option<usize> {
    let own = report.verdict.as_ref()?.own.result.label();
    report.results.iter().position(|result| result.label() == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_reports_get_different_file_names() {
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
