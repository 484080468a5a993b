//! Formats a replay on real memory.

use super::facts::{Facts, Result};
use crate::table::{Align, Grid, Row};
use crate::terminal::{bold, dim, width, yellow};
use crate::text::{Unit, counted, item, number, size, wrap};

/// Returns the table of one recording, with notes.
pub(super) fn text(facts: &Facts) -> String {
    let columns = width();
    let mut out = format!("{}\n", bold(&facts.trace));
    let scale = match (facts.scale, facts.scale_chosen) {
        (1, _) => "sizes as recorded".to_owned(),
        (by, true) => format!("every size divided by {by} to fit this machine"),
        (by, false) => format!("every size divided by {by}"),
    };
    let touch = match facts.touch {
        "none" => "nothing written to a block".to_owned(),
        "page" => format!(
            "one byte of each 4 KiB written, {} pages an allocation",
            digits(facts.pages_per_allocation)
        ),
        _ => "every byte written".to_owned(),
    };
    let line = format!(
        "{} events, {}; peak requested {}; {scale}; {touch}; {} of each allocator",
        number(facts.events),
        counted(facts.allocations, "allocation"),
        size(facts.peak_recorded_bytes),
        counted(facts.rounds as u64, "run"),
    );
    out.push_str(&format!("{}\n\n", wrap(&line, columns, 0)));
    if !facts.results.is_empty() {
        out.push_str(&format!("{}\n", grid(facts).render(&looks(facts))));
    }
    let notes = notes(facts);
    if !notes.is_empty() {
        out.push('\n');
    }
    for sentence in notes {
        out.push_str(&format!("{}\n", item(&yellow("!"), &sentence, columns)));
    }
    out
}

fn looks(facts: &Facts) -> Vec<Row> {
    let look = |result: &Result| match result.policy.as_deref() {
        Some("millpond") => Row::Best,
        Some(_) => Row::Plain,
        None => Row::Bound,
    };
    facts.results.iter().map(look).collect()
}

fn grid(facts: &Facts) -> Grid {
    let results = &facts.results;
    let column = |of: &dyn Fn(&Result) -> String| results.iter().map(of).collect();
    let right = |grid: &mut Grid, head: &str, of: &dyn Fn(&Result) -> String| {
        grid.column(head, Align::Right, results.iter().map(of).collect());
    };
    let mut grid = Grid::new();
    let name = |result: &Result| match &result.policy {
        Some(policy) if policy != "millpond" => format!("{} ({policy})", result.allocator),
        _ => result.allocator.to_owned(),
    };
    grid.column("allocator", Align::Left, column(&name));
    grid.start_group();
    right(&mut grid, "time\na pair", &|r| time(r.ns_per_pair));
    right(&mut grid, "\nfastest", &|r| time(r.ns_fastest_round));
    right(&mut grid, "\nslowest", &|r| time(r.ns_slowest_round));
    right(&mut grid, "of\nglibc", &|r| share(r.time_of_glibc));
    right(&mut grid, "faults\na pair", &|r| digits(r.faults_per_pair));
    grid.start_group();
    let unit = Unit::for_largest(results.iter().map(|r| r.peak_rss_bytes).max().unwrap_or(0));
    right(&mut grid, "peak\nRSS", &|r| unit.show(r.peak_rss_bytes));
    right(&mut grid, "of\npeak", &|r| share(r.peak_rss_of_peak));
    right(&mut grid, "of\nglibc", &|r| share(r.peak_rss_of_glibc));
    right(&mut grid, "all\nfreed", &|r| unit.show(r.freed_rss_bytes));
    right(&mut grid, "\ntrimmed", &|r| unit.show(r.trimmed_rss_bytes));
    grid
}

fn notes(facts: &Facts) -> Vec<String> {
    let mut notes = Vec::new();
    if facts.scale > 1 {
        notes.push(format!(
            "Recorded sizes are divided by {}, so more of them are small: this program is similar, not the same.",
            facts.scale
        ));
    }
    if facts.streams > 1 {
        notes.push(format!(
            "A host has no streams: those of the recording ({}) are ignored, and a freed block is reusable at once.",
            facts.streams
        ));
    }
    if facts.initial_blocks > 0 {
        notes.push(format!(
            "Allocated at the start, because older than the first event: {}.",
            counted(facts.initial_blocks, "block")
        ));
    }
    if facts.freed_at_the_end > 0 {
        notes.push(format!(
            "Freed at the end, because the program never frees them: {}.",
            counted(facts.freed_at_the_end, "block")
        ));
    }
    if facts.unknown_frees > 0 {
        notes.push(format!(
            "Ignored, because the program does not have the blocks: {}.",
            counted(facts.unknown_frees, "free")
        ));
    }
    if facts.checked && facts.failed.is_empty() {
        notes.push("Every block was found with its first and last byte as they were written.".to_owned());
    }
    notes.extend(facts.cautions.iter().cloned());
    notes
}

/// Returns the explanation of the figures, once for all tables.
pub(super) fn legend(all: &[Facts]) -> String {
    let mut text = "a pair: an allocation, what is written to it, and its free, in processor time of one thread; the \
        median of the runs, each in a process of its own, in turn; blocks are aligned to 64 bytes; RSS: resident memory \
        over that at the start of the run, at its peak, with all blocks freed, and after a trim; of peak: over the \
        bytes held at the peak; faults: minor page faults"
        .to_owned();
    if let Some(missing) = all.iter().find_map(|facts| facts.not_built.as_ref()) {
        text.push_str(&format!("; {missing}"));
    }
    dim(&wrap(&text, width(), 0))
}

/// Formats nanoseconds with three digits.
fn time(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        n if n < 999.5 => (n, "ns"),
        n if n < 999.5e3 => (n / 1e3, "us"),
        n if n < 999.5e6 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    format!("{} {unit}", digits(value))
}

fn share(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))
}

/// Formats a number with three digits.
fn digits(value: f64) -> String {
    let places = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.places$}")
}
