//! The report as a page: one file for each recording and device.

use crate::exit::CliError;
use crate::output;
use crate::side_by_side::{self, Shown};
use millpond_replay::page::{self, Page};
use millpond_replay::{Placement, Report, usual_policy};
use millpond_trace::Trace;
use std::path::{Path, PathBuf};

/// Where a report's page goes: the file named, or beside it with the recording's name in it where there
/// are several.
pub(crate) fn place(named: &Path, label: &str, several: bool) -> PathBuf {
    if !several {
        return named.to_owned();
    }
    let safe: String = label
        .chars()
        .map(|c| {
            if c.is_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '-'
            }
        })
        .collect();
    let safe = safe.trim_matches('-').replace("--", "-");
    let stem = named.file_stem().unwrap_or_default().to_string_lossy();
    let ending = named
        .extension()
        .map_or_else(|| "html".into(), |ending| ending.to_string_lossy());
    named.with_file_name(format!("{stem}-{safe}.{ending}"))
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
        // On the page a name is a key, and the indent that leaves room for the mark would break it.
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

/// The policy the program ran under, as far as the recording or habit tells.
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
        let place = |label, several| place(Path::new("out/report.html"), label, several);
        assert_eq!(place("rank0", false), Path::new("out/report.html"));
        assert_eq!(
            place("rank0 (device 1)", true),
            Path::new("out/report-rank0-device-1.html")
        );
        assert_eq!(place("../../etc", true), Path::new("out/report-..-..-etc.html"));
    }
}
