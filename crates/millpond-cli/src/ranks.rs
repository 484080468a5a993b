//! Summarises many recordings: the worst result of each policy, and the recording where it occurs.

use crate::table::{Align, Grid, Row};
use crate::terminal::{bold, width};
use crate::text::{Unit, item, overhead, size};
use millpond_replay::{PolicyResult, Report};

/// One report with its name.
pub(crate) type Labelled<'a> = (&'a str, &'a Report);

/// The results of a policy over all recordings.
struct Overall<'a> {
    policy: &'a str,
    worst: (&'a str, &'a PolicyResult),
    failed: Vec<&'a str>,
    /// The number of recordings that were not replayed under it.
    missing: usize,
    smallest: Option<u64>,
}

impl Overall<'_> {
    /// Returns whether it was replayed for all recordings and finished all of them.
    fn fits_all(&self) -> bool {
        self.failed.is_empty() && self.missing == 0
    }
}

fn overall<'a>(reports: &[Labelled<'a>]) -> Vec<Overall<'a>> {
    let mut names: Vec<&str> = Vec::new();
    for result in reports.iter().flat_map(|(_, report)| &report.results) {
        if !names.contains(&result.policy.as_str()) {
            names.push(&result.policy);
        }
    }
    let mut found = Vec::new();
    for name in names {
        let mine: Vec<(&str, &PolicyResult)> = reports
            .iter()
            .filter_map(|(label, report)| Some((*label, report.results.iter().find(|r| r.policy == name)?)))
            .collect();
        // A policy that ran out of memory is worse than any that finished.
        let badness = |r: &PolicyResult| (r.first_failure.is_some(), r.peak_reserved_bytes);
        let Some(worst) = mine.iter().copied().rev().max_by_key(|(_, r)| badness(r)) else {
            continue;
        };
        let failed = mine
            .iter()
            .filter(|(_, r)| r.first_failure.is_some())
            .map(|(label, _)| *label)
            .collect();
        let smallest: Option<Vec<u64>> = mine.iter().map(|(_, r)| r.smallest_device_bytes).collect();
        let missing = reports.len() - mine.len();
        let smallest = smallest
            .filter(|_| missing == 0)
            .and_then(|all| all.into_iter().max());
        found.push(Overall {
            policy: name,
            worst,
            failed,
            missing,
            smallest,
        });
    }
    found
}

/// Returns the recordings that no policy finishes.
fn unservable<'a>(reports: &'a [Labelled<'a>]) -> impl Iterator<Item = &'a str> {
    let fails = |result: &PolicyResult| result.first_failure.is_some();
    let failed = reports
        .iter()
        .filter(move |(_, report)| !report.results.is_empty() && report.results.iter().all(fails));
    failed.map(|(label, _)| *label)
}

/// Returns whether no policy finishes all of the recordings.
pub(crate) fn none_fits(reports: &[Labelled<'_>]) -> bool {
    let overall = overall(reports);
    let all_fail = !overall.is_empty() && overall.iter().all(|policy| !policy.failed.is_empty());
    all_fail || unservable(reports).next().is_some()
}

/// Returns the summary below several reports.
pub(crate) fn text(reports: &[Labelled<'_>], limited: bool, unreadable: usize) -> String {
    let overall = overall(reports);
    let columns = width();
    let largest = overall
        .iter()
        .map(|o| o.worst.1.peak_reserved_bytes)
        .max()
        .unwrap_or(0);
    let unit = Unit::for_largest(largest);
    let mut grid = Grid::new();
    let column = |of: &dyn Fn(&Overall<'_>) -> String| overall.iter().map(of).collect::<Vec<_>>();
    grid.column("policy", Align::Left, column(&|o| o.policy.to_owned()));
    if limited {
        let fits = |o: &Overall<'_>| {
            let replayed = reports.len() - o.missing;
            format!("{} of {replayed}", replayed - o.failed.len())
        };
        grid.column("fits", Align::Right, column(&fits));
    }
    grid.column(
        "worst\npeak",
        Align::Right,
        column(&|o| unit.show(o.worst.1.peak_reserved_bytes)),
    );
    grid.column(
        "over-\nhead",
        Align::Right,
        column(&|o| match o.worst.1.first_failure {
            None => overhead(o.worst.1.overhead),
            Some(_) => "-".to_owned(),
        }),
    );
    if overall.iter().any(|o| o.smallest.is_some()) {
        let smallest = |o: &Overall<'_>| match o.smallest {
            Some(bytes) => unit.show(bytes),
            None if o.missing > 0 => "-".to_owned(),
            None => "none".to_owned(),
        };
        grid.column("smallest\ndevice", Align::Right, column(&smallest));
    }
    grid.column("worst recording", Align::Left, column(&|o| o.worst.0.to_owned()));
    let rows: Vec<Row> = overall
        .iter()
        .map(|o| if o.fits_all() { Row::Plain } else { Row::Failed })
        .collect();
    let mut out = format!(
        "{}\n\n{}\n\n",
        bold(&format!("All {} recordings", reports.len())),
        grid.render(&rows)
    );
    for sentence in sentences(&overall, reports, limited, unreadable) {
        out.push_str(&format!("{}\n", item("→", &sentence, columns)));
    }
    out
}

fn sentences(
    overall: &[Overall<'_>],
    reports: &[Labelled<'_>],
    limited: bool,
    unreadable: usize,
) -> Vec<String> {
    let mut found = Vec::new();
    if let Some((label, report)) = reports
        .iter()
        .rev()
        .max_by_key(|(_, report)| report.peak_requested_bytes)
    {
        let least = reports
            .iter()
            .map(|(_, report)| report.peak_requested_bytes)
            .min()
            .unwrap_or(0);
        found.push(format!(
            "{label} holds the most: {} at its peak. The smallest peak is {}.",
            size(report.peak_requested_bytes),
            size(least)
        ));
    }
    if limited {
        let fit: Vec<&str> = overall
            .iter()
            .filter(|o| o.fits_all())
            .map(|o| o.policy)
            .collect();
        found.push(match fit.as_slice() {
            [] => match (unservable(reports).next(), overall.iter().find(|o| o.failed.is_empty())) {
                (Some(label), _) => format!("No policy fits all recordings on this device: none fits {label}."),
                (None, None) => "No policy fits all recordings on this device.".to_owned(),
                (None, Some(o)) => format!(
                    "No policy that was replayed for all recordings fits all of them on this device. {} fits those for which it was \
                     replayed: `-p {}` replays all.",
                    o.policy, o.policy
                ),
            },
            [one] => format!("Only {one} fits all recordings on this device."),
            some if some.len() == overall.len() => {
                "Every policy fits all recordings on this device.".to_owned()
            }
            some => format!("Only {} fit all recordings on this device.", some.join(", ")),
        });
    } else if let Some(least) = overall
        .iter()
        .filter(|o| o.missing == 0)
        .min_by_key(|o| o.worst.1.peak_reserved_bytes)
    {
        found.push(format!(
            "{} has the lowest worst-case peak: {}, for {}.",
            least.policy,
            size(least.worst.1.peak_reserved_bytes),
            least.worst.0
        ));
    }
    if unreadable > 0 {
        found.push(format!(
            "{unreadable} more could not be replayed; the lines above say why."
        ));
    }
    found
}
