//! Measures the host time of each call by the numbers of handles and of pages, and writes the table of costs that a replay reads.

use crate::card::Card;
use crate::driver::{AllocationProperties, Failed, call, ok};
use crate::say::{self, row};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

const TABLE: &str = "Costs of calls";
/// The numbers of handles that share the same bytes.
const HANDLES: [u64; 3] = [1, 16, 256];
/// The total numbers of pages, smallest first. The smallest is one page per handle of the largest number of handles.
const PAGES: [u64; 2] = [256, 1024];
const ROUNDS: u32 = 9;
const QUICK: u32 = 2;

/// The time of each call in seconds, by its kind, handles and pages.
#[derive(Default)]
struct Samples(BTreeMap<(&'static str, u64, u64), Vec<f64>>);

impl Samples {
    fn time<T>(&mut self, kind: &'static str, handles: u64, pages: u64, call: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let answer = call();
        let taken = begun.elapsed().as_secs_f64();
        self.0.entry((kind, handles, pages)).or_default().push(taken);
        answer
    }

    /// Returns the handles, the pages and the median in microseconds of each measurement of a kind.
    fn medians(&self, kind: &str) -> Vec<(f64, f64, f64)> {
        let of = self.0.iter().filter(|((name, ..), _)| *name == kind);
        of.map(|((_, handles, pages), times)| {
            let mut times = times.clone();
            times.sort_by(f64::total_cmp);
            (*handles as f64, *pages as f64, times[times.len() / 2] * 1e6)
        })
        .collect()
    }
}

pub(super) fn run(card: &Card) -> Result<(), Failed> {
    let mut samples = Samples::default();
    // The first round is not counted: it includes work that the driver does only once.
    round(card, &mut Samples::default())?;
    for _ in 0..card.rounds(ROUNDS, QUICK) {
        round(card, &mut samples)?;
    }
    say::table(
        TABLE,
        &["call", "handles", "pages", "microseconds of one call (median)"],
    );
    let mut kinds: Vec<&str> = samples.0.keys().map(|(kind, ..)| *kind).collect();
    kinds.dedup();
    for kind in kinds {
        for (handles, pages, median) in samples.medians(kind) {
            let median = (median * 100.0).round() / 100.0;
            row!(TABLE, kind, handles as u64, pages as u64, median);
        }
    }
    let access = samples.medians("set_access");
    let [_, per_handle, _] = plane(&access);
    say::check(
        "setting access costs more for more handles of the same bytes",
        per_handle > 0.0,
        &format!("{per_handle:.3} microseconds for each additional handle"),
    );
    say::file("costs.toml", &text(card, &samples));
    Ok(())
}

fn round(card: &Card, samples: &mut Samples) -> Result<(), Failed> {
    for pages in PAGES {
        let pages = if card.quick { pages / 4 } else { pages };
        for handles in HANDLES {
            if pages >= handles && pages * card.page <= card.total / 4 {
                handled(card, samples, handles, pages)?;
            }
        }
    }
    for pages in [1, 16, 256] {
        plain(card, samples, pages)?;
    }
    streams(card, samples)
}

/// Measures a range of pages that is divided into handles. One call sets access to the range. The first pass unmaps it by one call,
/// the second pass by one call per handle.
fn handled(card: &Card, samples: &mut Samples, handles: u64, pages: u64) -> Result<(), Failed> {
    let driver = &card.driver;
    let (bytes, each) = (pages * card.page, pages / handles * card.page);
    let of_each = pages / handles;
    let at = samples.time("reserve", 0, 0, || card.reserve(bytes))?;
    for by_one in [true, false] {
        let mut made = Vec::new();
        for number in 0..handles {
            let properties = AllocationProperties::on(card.device);
            let mut handle = 0;
            samples.time("create", 1, of_each, || {
                ok!(
                    driver,
                    cuMemCreate(&raw mut handle, each as usize, &raw const properties, 0)
                )
            })?;
            made.push(handle);
            let place = at + number * each;
            samples.time("map", 1, of_each, || card.map(place, each, handle))?;
        }
        let code = samples.time("set_access", handles, pages, || card.access(at, bytes));
        driver.check("cuMemSetAccess", code)?;
        if by_one {
            let code = samples.time("unmap_of_many", handles, pages, || {
                call!(driver, cuMemUnmap(at, bytes as usize))
            });
            driver.check("cuMemUnmap", code)?;
        } else {
            for number in 0..handles {
                let place = at + number * each;
                samples.time("unmap", 1, of_each, || card.unmap(place, each))?;
            }
        }
        for handle in made {
            let code = samples.time("release", 1, of_each, || call!(driver, cuMemRelease(handle)));
            driver.check("cuMemRelease", code)?;
        }
    }
    ok!(driver, cuMemAddressFree(at, bytes as usize))
}

fn plain(card: &Card, samples: &mut Samples, pages: u64) -> Result<(), Failed> {
    let bytes = (pages * card.page) as usize;
    let at = samples.time("malloc", 1, pages, || card.allocate(bytes))?;
    let code = samples.time("free", 1, pages, || call!(card.driver, cuMemFree_v2(at)));
    card.driver.check("cuMemFree", code)
}

fn streams(card: &Card, samples: &mut Samples) -> Result<(), Failed> {
    let driver = &card.driver;
    let (one, other) = (card.stream()?, card.stream()?);
    let (mut event, without_timing) = (0, 2);
    ok!(driver, cuEventCreate(&raw mut event, without_timing))?;
    for _ in 0..16 {
        let code = samples.time("event_record", 0, 0, || call!(driver, cuEventRecord(event, one)));
        driver.check("cuEventRecord", code)?;
        let code = samples.time("event_wait", 0, 0, || {
            call!(driver, cuStreamWaitEvent(other, event, 0))
        });
        driver.check("cuStreamWaitEvent", code)?;
        samples.time("stall", 0, 0, || card.synchronize(other))?;
    }
    ok!(driver, cuEventDestroy_v2(event))?;
    ok!(driver, cuStreamDestroy_v2(one))?;
    ok!(driver, cuStreamDestroy_v2(other))
}

/// Fits the cost of a call by least squares: a constant, a cost per handle and a cost per page. None of them is negative.
fn plane(samples: &[(f64, f64, f64)]) -> [f64; 3] {
    let rows: Vec<[f64; 4]> = samples
        .iter()
        .map(|(handles, pages, cost)| [1.0, *handles, *pages, *cost])
        .collect();
    // A column that does not vary cannot explain a cost.
    let varies = |column: usize| rows.iter().any(|row| row[column] != rows[0][column]);
    let mut used: Vec<usize> = (0..3).filter(|column| *column == 0 || varies(*column)).collect();
    loop {
        let found = solve(&rows, &used);
        let least = used
            .iter()
            .zip(&found)
            .filter(|(_, value)| **value < 0.0)
            .min_by(|a, b| a.1.total_cmp(b.1))
            .map(|(column, _)| *column);
        match least {
            Some(column) if used.len() > 1 => used.retain(|other| *other != column),
            _ => {
                let mut all = [0.0; 3];
                for (column, value) in used.iter().zip(found) {
                    all[*column] = f64::max(value, 0.0);
                }
                return all;
            }
        }
    }
}

/// Solves the least-squares problem for these columns by the normal equations.
fn solve(rows: &[[f64; 4]], used: &[usize]) -> Vec<f64> {
    let n = used.len();
    let mut of = vec![vec![0.0; n + 1]; n];
    for row in rows {
        for (i, a) in used.iter().enumerate() {
            for (j, b) in used.iter().enumerate() {
                of[i][j] += row[*a] * row[*b];
            }
            of[i][n] += row[*a] * row[3];
        }
    }
    for pivot in 0..n {
        let best = (pivot..n).max_by(|a, b| of[*a][pivot].abs().total_cmp(&of[*b][pivot].abs()));
        of.swap(pivot, best.unwrap_or(pivot));
        let head = of[pivot].clone();
        if head[pivot].abs() < 1e-12 {
            continue;
        }
        for (number, row) in of.iter_mut().enumerate() {
            if number != pivot {
                let factor = row[pivot] / head[pivot];
                for (cell, above) in row.iter_mut().zip(&head) {
                    *cell -= factor * above;
                }
            }
        }
    }
    (0..n)
        .map(|at| {
            if of[at][at].abs() < 1e-12 {
                0.0
            } else {
                of[at][n] / of[at][at]
            }
        })
        .collect()
}

/// The sections of the table that a replay reads, with a comment for each.
const SECTIONS: [(&str, &str); 11] = [
    ("malloc", "plain device allocation"),
    ("free", "plain device free, with the device idle"),
    ("create", "physical handle"),
    ("map", "one handle"),
    ("set_access", "one range of handles"),
    ("unmap", "one handle"),
    ("release", "one handle"),
    ("reserve", "address range"),
    ("event_record", ""),
    ("event_wait", "makes a stream wait on the device"),
    (
        "stall",
        "a wait for a stream while the device is idle: the lower bound of a stall",
    ),
];

fn text(card: &Card, samples: &Samples) -> String {
    let mut out = format!(
        "# Microseconds of host time in calls of the driver, measured by `cargo xtask card` on {}, driver {}, pages of {} bytes.\n",
        card.name, card.version, card.page
    );
    if card.emulated {
        out.push_str("# EMULATED: these times are not those of a card.\n");
    }
    for (kind, about) in SECTIONS {
        let medians = samples.medians(kind);
        let [per_call, per_handle, per_page] = if medians.is_empty() {
            [0.0; 3]
        } else {
            plane(&medians)
        };
        let _ = writeln!(
            out,
            "[{kind}]{}{about}",
            if about.is_empty() { "" } else { "  # " }
        );
        let _ = writeln!(out, "per_call = {per_call:.3}");
        if kind == "set_access" {
            let _ = writeln!(out, "per_handle = {per_handle:.4}");
        }
        if medians.iter().any(|(_, pages, _)| *pages > 0.0) {
            let _ = writeln!(out, "per_page = {per_page:.5}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_costs_of_exact_samples_are_found() {
        let cost = |handles: f64, pages: f64| (handles, pages, 60.0 + 2.5 * handles + 0.25 * pages);
        let samples = [
            cost(1.0, 256.0),
            cost(16.0, 256.0),
            cost(256.0, 256.0),
            cost(1.0, 1024.0),
        ];
        let found = plane(&samples);
        for (found, expected) in found.iter().zip([60.0, 2.5, 0.25]) {
            assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
        }
    }

    #[test]
    fn no_cost_is_negative() {
        let found = plane(&[(1.0, 1.0, 10.0), (1.0, 100.0, 1.0), (1.0, 1000.0, 0.5)]);
        assert!(found.iter().all(|cost| *cost >= 0.0), "{found:?}");
        assert_eq!(found[2], 0.0);
    }

    #[test]
    fn a_kind_that_never_varies_has_the_mean_as_its_cost() {
        assert_eq!(plane(&[(0.0, 0.0, 4.0), (0.0, 0.0, 6.0)]), [5.0, 0.0, 0.0]);
    }
}
