//! Formats the report of one recording: the answer, the table, the cautions and the failures.

use crate::table::{Align, Grid, Row};
use crate::terminal::{bold, dim, width, yellow};
use crate::text::{Unit, counted, duration_us, item, number, overhead, size, wrap};
use crate::{failure, verdict};
use millpond_replay::{PolicyResult, Report};

/// A report with the other facts that its printing needs.
pub(crate) struct Shown<'a> {
    /// The report.
    pub(crate) report: &'a Report,
    /// The name of the recording, with its device if a file contains several.
    pub(crate) label: &'a str,
    /// A description of the device in one line.
    pub(crate) device: String,
    /// Bytes of the device. `None` sets no limit.
    pub(crate) device_bytes: Option<u64>,
    /// Whether the user named policies, so that the table has all their figures.
    pub(crate) detailed: bool,
    /// Whether to show the calls to the driver.
    pub(crate) calls: bool,
}

impl Shown<'_> {
    /// Returns whether the program holds more than the device has, so that no allocator can run it.
    fn is_too_large(&self) -> bool {
        let peak = self.report.peak_requested_bytes;
        self.device_bytes.is_some_and(|bytes| peak > bytes)
    }

    /// Returns the program's own policy if the table compares it with our policies, which are then explained.
    fn foreign(&self) -> Option<&str> {
        let verdict = self.report.verdict.as_ref().filter(|_| !self.detailed);
        let own = verdict.map(|verdict| verdict.own.result.policy.as_str());
        own.filter(|own| *own != "millpond")
    }
}

/// Returns the report as text.
pub(crate) fn text(shown: &Shown<'_>) -> String {
    let report = shown.report;
    let columns = width();
    let mut out = format!("{}\n", bold(shown.label));
    let facts = format!(
        "{} events, {}{}; {}",
        number(report.events),
        counted(report.allocations, "allocation"),
        match report.initial_blocks {
            0 => String::new(),
            older => format!(" ({} of them older than the first event)", number(older)),
        },
        shown.device
    );
    out.push_str(&wrap(&facts, columns, 0));
    out.push('\n');
    if let Some(recorded) = &report.recorded {
        let mut line = format!(
            "recorded under {}, which held {} at its peak",
            recorded.policy,
            size(recorded.peak_reserved_bytes)
        );
        if let Some(agreement) = recorded.address_agreement {
            let percent = percent_down(agreement);
            line.push_str(&format!(
                "; the replay gives the recorded address for {percent} of allocations"
            ));
        }
        out.push_str(&wrap(&line, columns, 0));
        out.push('\n');
    }
    for one in &report.settings {
        let line = format!(
            "settings of {}: {} (from {})",
            one.policies.join(" and "),
            one.settings,
            one.from
        );
        out.push_str(&format!("{}\n", wrap(&line, columns, 0)));
    }
    out.push('\n');
    let failure = report
        .out_of_memory
        .iter()
        .map(|oom| format!("{}\n", failure::text(oom, &report.edits, columns)));
    let verdict = report
        .verdict
        .iter()
        .map(|verdict| format!("{}\n", verdict::text(verdict)));
    // An allocator's failure matters little if the program holds more than the device has.
    if shown.is_too_large() {
        out.extend(verdict.chain(failure));
    } else {
        out.extend(failure.chain(verdict));
    }
    let (grid, rows) = grid(shown, advised(report));
    out.push_str(&grid.render(&rows));
    out.push('\n');
    if !report.cautions.is_empty() {
        out.push('\n');
    }
    for sentence in &report.cautions {
        out.push_str(&format!("{}\n", item(&yellow("!"), sentence, columns)));
    }
    if shown.detailed {
        out.push_str(&failure::others(report, columns));
    }
    out
}

/// Returns the row to recommend: the better settings of the program's own allocator, or the best of the policies that the
/// user named.
pub(crate) fn advised(report: &Report) -> Option<usize> {
    // A single row is not recommended, because there is no other row to compare it with.
    let several = report.results.len() > 1;
    let best = || report.best_fit().or_else(|| report.best()).filter(|_| several);
    let Some(verdict) = &report.verdict else {
        return best();
    };
    let is_own = |result: &PolicyResult| result.label() == verdict.own.result.label();
    if !report.results.iter().any(is_own) {
        return best();
    }
    let better = verdict.better.as_ref()?;
    if better.result.first_failure.is_some() {
        return None;
    }
    report
        .results
        .iter()
        .position(|result| result.label() == better.result.label())
}

/// Returns the explanation of the figures, once for all tables.
pub(crate) fn legend(shown: &[Shown<'_>]) -> String {
    let any = |of: &dyn Fn(&Shown<'_>) -> bool| shown.iter().any(of);
    let rows = |of: &dyn Fn(&PolicyResult) -> bool| any(&|one| one.report.results.iter().any(of));
    let mut parts: Vec<&str> = Vec::new();
    if any(&|one| one.report.verdict.is_some()) {
        parts.push(
            match any(&|one| {
                one.report
                    .verdict
                    .as_ref()
                    .is_some_and(|verdict| !verdict.own_is_known)
            }) {
                true => "yours: the usual allocator, because the recording names none",
                false => "yours: the program's own allocator",
            },
        );
    }
    if any(&|one| advised(one.report).is_some()) {
        parts.push("▸: the one to use");
    }
    let mut foreign = shown.iter().filter_map(Shown::foreign).peekable();
    if foreign.peek().is_some() {
        parts.push(match foreign.all(|own| own.starts_with("torch-")) {
            true => {
                "millpond: a pool, with millpond.torch.enable() in Python; planned: a pool for Rust programs"
            }
            false => "millpond, planned: pools for Rust programs",
        });
    }
    if rows(&|result| result.smallest_device_bytes.is_some()) {
        parts.push("needs: the smallest device that suffices");
    }
    if any(&|one| one.detailed) {
        parts.push(
            "how true: exact against the original, re-implemented from its published rules, an estimate of it, or this \
             project's own policy itself",
        );
    }
    parts.extend(["stalls: waits for the device", "driver time: modelled"]);
    if any(&|one| one.detailed) {
        parts.push("ns: host time of the policy itself, on this machine");
    }
    dim(&wrap(&parts.join("; "), width(), 0))
}

/// Formats a share in per cent, rounded down, so that 100 means all.
fn percent_down(share: f64) -> String {
    format!("{:.2} %", (share * 10_000.0).floor() / 100.0)
}

/// Returns the table, which the HTML page also uses.
pub(crate) fn grid(shown: &Shown<'_>, best: Option<usize>) -> (Grid, Vec<Row>) {
    let report = shown.report;
    let results = &report.results;
    let failed = results.iter().any(|r| r.first_failure.is_some());
    let fitted = results.iter().any(|r| r.fit.is_some());
    let largest = results.iter().map(|r| r.peak_reserved_bytes).max().unwrap_or(0);
    let unit = Unit::for_largest(largest.max(report.peak_requested_bytes));
    // The first row is a bound that no allocator can beat.
    let column = |bound: &str, of: &dyn Fn(&PolicyResult) -> String| -> Vec<String> {
        std::iter::once(bound.to_owned())
            .chain(results.iter().map(of))
            .collect()
    };
    let mut grid = Grid::new();
    let own = report.verdict.as_ref().map(|verdict| verdict.own.result.label());
    let mark = |index| if Some(index) == best { "▸ " } else { "  " };
    let names = results.iter().enumerate().map(|(index, r)| {
        let yours = if own.as_deref() == Some(&*r.label()) {
            " (yours)"
        } else {
            ""
        };
        format!("{}{}{yours}", mark(index), r.policy)
    });
    grid.column(
        "  policy",
        Align::Left,
        std::iter::once("  (requested)".to_owned()).chain(names).collect(),
    );
    grid.start_group();
    if fitted {
        let smallest = |r: &PolicyResult| {
            r.smallest_device_bytes
                .map_or_else(|| "none".to_owned(), |b| unit.show_needed(b))
        };
        grid.column(
            "\nneeds",
            Align::Right,
            column(&unit.show(report.peak_requested_bytes), &smallest),
        );
        if shown.detailed {
            grid.column(
                "stalls\nthere",
                Align::Right,
                column("", &|r| {
                    r.fit.as_ref().map_or_else(String::new, |fit| number(fit.stalls))
                }),
            );
        }
    }
    grid.column(
        "peak\nreserved",
        Align::Right,
        column(&unit.show(report.peak_requested_bytes), &|r| {
            unit.show(r.peak_reserved_bytes)
        }),
    );
    grid.column(
        "over-\nhead",
        Align::Right,
        column("1.000", &|r| match r.first_failure {
            None => overhead(r.overhead),
            // A program that stopped early has other figures, so they cannot be compared.
            Some(_) => NONE.to_owned(),
        }),
    );
    if shown.detailed {
        grid.column(
            "hit\nrate",
            Align::Right,
            column("", &|r| percent_down(r.hit_rate)),
        );
    }
    if failed || shown.device_bytes.is_some() {
        grid.column("first\nfailure", Align::Right, column("", &failure_cell));
    }
    if shown.detailed {
        grid.column(
            "how\ntrue",
            Align::Left,
            column("", &|r| how_true(&r.fidelity).to_owned()),
        );
    }
    grid.start_group();
    grid.column("\nstalls", Align::Right, column("", &|r| number(r.stalls)));
    grid.column(
        "driver\ntime",
        Align::Right,
        column("", &|r| duration_us(r.modelled_driver_ms * 1e3)),
    );
    if shown.detailed {
        grid.column(
            "ns per\nevent",
            Align::Right,
            column("", &|r| format!("{:.0}", r.ns_per_event)),
        );
    }
    if shown.calls {
        calls(&mut grid, results);
    }
    let looks = results
        .iter()
        .enumerate()
        .map(|(index, r)| match r.first_failure {
            Some(_) => Row::Failed,
            None if Some(index) == best && results.len() > 1 => Row::Best,
            None => Row::Plain,
        });
    let looks = std::iter::once(Row::Bound).chain(looks).collect();
    (grid, looks)
}

/// Returns a word for how faithfully a policy reproduces its original. The legend explains it.
fn how_true(fidelity: &str) -> &str {
    match fidelity {
        "exact against the original" => "exact",
        "published rules" => "rules",
        "the original itself" => "itself",
        other => other,
    }
}

fn failure_cell(result: &PolicyResult) -> String {
    match result.first_failure.as_ref() {
        None => "none".to_owned(),
        Some(failure) => match failure.event {
            Some(event) => format!("event {}", number(u64::from(event))),
            None => "at the start".to_owned(),
        },
    }
}

/// Replaces the figure of calls that were not made, so that the others are easier to see.
const NONE: &str = "-";

/// Adds columns of driver calls by kind. Kinds that no policy used are left out.
fn calls(grid: &mut Grid, results: &[PolicyResult]) {
    type Kind = (&'static str, fn(&PolicyResult) -> u64);
    let kinds: [Kind; 10] = [
        ("\nmalloc", |r| r.driver_calls.malloc),
        ("\nfree", |r| r.driver_calls.free),
        ("re-\nserve", |r| r.driver_calls.reserve),
        ("\ncreate", |r| r.driver_calls.create),
        ("\nmap", |r| r.driver_calls.map),
        ("set\naccess", |r| r.driver_calls.set_access),
        ("\nunmap", |r| r.driver_calls.unmap),
        ("re-\nlease", |r| r.driver_calls.release),
        ("event\nrecord", |r| r.driver_calls.event_record),
        ("event\nwait", |r| r.driver_calls.event_wait),
    ];
    grid.start_group();
    if results.iter().any(|r| r.moved_bytes > 0) {
        let moved = results.iter().map(|r| {
            if r.moved_bytes > 0 {
                size(r.moved_bytes)
            } else {
                NONE.to_owned()
            }
        });
        grid.column(
            "bytes\nmoved",
            Align::Right,
            std::iter::once(String::new()).chain(moved).collect(),
        );
    }
    for (head, of) in kinds {
        if results.iter().all(|r| of(r) == 0) {
            continue;
        }
        let calls = results
            .iter()
            .map(|r| if of(r) > 0 { number(of(r)) } else { NONE.to_owned() });
        grid.column(
            head,
            Align::Right,
            std::iter::once(String::new()).chain(calls).collect(),
        );
    }
}
