//! Formats a report section by section.

use super::{Told, Whole};
use crate::failure;
use crate::plot;
use crate::stack;
use crate::state::State;
use crate::table::{Align, Grid, Row};
use crate::terminal::{bold, dim, green, width, yellow};
use crate::text::{self, Unit, counted, duration_us, item, number, percent, short, size, wrap};
use crate::verdict;
use millpond_replay::analysis::{
    By, Finding, Group, Held, NO_STACK, RecordedSteps, StepSource, Sum, Summary, Window, top,
};
use std::collections::BTreeSet;

/// The column at which values begin.
const VALUES: usize = 16;
/// The report mentions main memory that did not come from the recorded pools if it has at least this many bytes.
const NOTICED: u64 = 64 << 20;
/// The most findings that are shown.
const FINDINGS: usize = 6;
/// Terminals narrower than this show no bars.
const BARS_FROM: usize = 72;
/// The width of a bar that shows a share.
const BAR: usize = 10;

/// Returns the number of columns of the plot in the terminal.
pub(super) fn plot_columns() -> usize {
    plot::columns(width())
}

/// Returns the whole report.
pub(super) fn text(told: &Told<'_>) -> String {
    let mut out = head(told);
    let device = |device: i32, words: &str| match told.has_several_devices {
        true => format!("\n{}", bold(&format!("Device {device}{words}"))),
        false => String::new(),
    };
    for oom in &told.out_of_memory {
        out.push_str(&device(oom.device, ""));
        out.push_str(&format!("\n{}", failure::text(oom, &[], width())));
    }
    if let Some(verdict) = &told.verdict {
        out.push_str(&device(told.verdict_device, ", which holds the most"));
        out.push_str(&format!("\n{}", verdict::text(verdict)));
    }
    let is_cautious = !told.at.summary.loss.sentences.is_empty() || !told.nameless.is_empty();
    if is_cautious && (told.verdict.is_some() || !told.out_of_memory.is_empty()) {
        out.push('\n');
    }
    for missing in told.at.summary.loss.sentences.iter().chain(&told.nameless) {
        out.push_str(&format!("{}\n", item(&yellow("!"), missing, width())));
    }
    match &told.whole {
        Some(whole) => window_text(&mut out, told, whole),
        None => moment_text(&mut out, told),
    }
    states(&mut out, &told.states);
    out
}

fn head(told: &Told<'_>) -> String {
    let history = told.history;
    let summary = &told.at.summary;
    let mut facts = match history.state_only {
        true => "what the allocator held when the snapshot was written".to_owned(),
        false => format!(
            "{} over {}",
            counted(history.len, "row"),
            nanoseconds(history.duration)
        ),
    };
    let part = match summary.window {
        Window::Times {
            from: 0,
            to: u64::MAX,
        } => None,
        Window::Times { .. } | Window::Rows { .. } => Some((summary.from, summary.to)),
    };
    if let Some((from, to)) = part {
        facts.push_str(&format!(
            "; this is {} to {} of it",
            nanoseconds(from),
            nanoseconds(to)
        ));
    }
    format!("{}\n{}\n", bold(&told.name), wrap(&facts, width(), 0))
}

fn moment_text(out: &mut String, told: &Told<'_>) {
    let held = told.at.held();
    out.push('\n');
    fact(out, "held", &held_sentence(held));
    sources(out, held);
    if let [state] = told.states.as_slice() {
        for (name, value) in state.facts() {
            fact(out, name, &value);
        }
    }
    out.push_str(&held_by(told, held, "Held then"));
    out.push_str(&largest(held, told.by, !told.history.state_only));
}

/// Adds the segments of each device without a history.
fn states(out: &mut String, states: &[State]) {
    for state in states {
        if states.len() > 1 {
            out.push_str(&format!("\n{}\n", bold(&state.device_name())));
            for (name, value) in state.facts() {
                fact(out, name, &value);
            }
        }
        out.push_str(&state.tables());
    }
}

/// Returns how many devices a sum is about, if there are several.
fn together(summary: &Summary) -> String {
    let devices: BTreeSet<i32> = summary.pools.iter().map(|pool| pool.device).collect();
    match devices.iter().filter(|device| **device >= 0).count() {
        0 | 1 => String::new(),
        several => format!(", {several} devices together"),
    }
}

fn window_text(out: &mut String, told: &Told<'_>, whole: &Whole) {
    let summary = &told.at.summary;
    let by = told.by;
    out.push_str(&format!("\n{}\n", plot::text(&whole.timeline, width())));
    fact(
        out,
        "peak",
        &format!(
            "{}, {} in{}",
            held_sentence(&summary.peak),
            nanoseconds(summary.peak.time),
            together(summary)
        ),
    );
    sources(out, &summary.peak);
    if let Some(peak) = summary.peak_reserved {
        let (bytes, time) = (size(peak.bytes), nanoseconds(peak.time));
        fact(
            out,
            "peak reserved",
            &format!("{bytes}, {time} in{}", together(summary)),
        );
    }
    if summary.pools.iter().all(|pool| pool.device < 0) {
        resident(out, summary);
    }
    totals(out, summary);
    if let Some(steps) = &whole.steps {
        fact(out, "steps", &steps_sentence(steps));
    }
    if summary.pools.len() > 1 {
        out.push_str(&pools(summary));
    }
    out.push_str(&held_by(told, &summary.peak, "Held at the peak"));
    out.push_str(&largest(&summary.peak, by, true));
    out.push_str(&kept(told, summary));
    out.push_str(&findings(&whole.findings));
}

/// Adds the memory of a process that has only pools of host memory, and the part of it that is not recorded.
fn resident(out: &mut String, summary: &Summary) {
    let Some(resident) = summary.peak_resident else {
        return;
    };
    let taken = summary.peak_reserved.map_or(0, |peak| peak.bytes);
    let other = resident.bytes.saturating_sub(taken);
    let rest = match other >= resident.bytes / 2 && other >= NOTICED {
        true => format!(
            "; {} of it did not come from the recorded pools, such as mapped files, stacks, and memory that an interpreter takes from \
             the system itself (Python: set PYTHONMALLOC=malloc)",
            size(other)
        ),
        false => String::new(),
    };
    fact(
        out,
        "resident",
        &format!("{} of main memory at most{rest}", size(resident.bytes)),
    );
}

fn fact(out: &mut String, name: &str, value: &str) {
    out.push_str(&text::fact(name, value, VALUES, width()));
}

fn held_sentence(held: &Held) -> String {
    let requested = held.sum.shown_requested();
    let asked = if held.sum.requested == held.sum.bytes {
        String::new()
    } else {
        format!(", {} of it requested", size(requested))
    };
    format!(
        "{} in {}{asked}",
        bold(&size(held.sum.shown())),
        counted(held.sum.blocks, "block")
    )
}

/// Adds the memory that pools had in addition to the held blocks.
fn sources(out: &mut String, held: &Held) {
    if held.parked_bytes > 0 {
        fact(
            out,
            "waiting",
            &format!("{} freed and waiting for streams", size(held.parked_bytes)),
        );
    }
    if held.unlisted_bytes >= NOTICED.min(held.sum.shown() / 16).max(1) {
        fact(
            out,
            "unlisted",
            &format!(
                "{} in blocks from before the recording; a child of a fork inherits such blocks",
                size(held.unlisted_bytes)
            ),
        );
    }
    if let (Some(reserved), Some(share)) = (held.reserved_bytes, held.fragmentation()) {
        let line = format!(
            "{} then, {} of it held by no block",
            size(reserved),
            percent(share)
        );
        fact(out, "reserved", &line);
    }
}

fn totals(out: &mut String, summary: &Summary) {
    let temporary = match summary.temporary.blocks {
        0 => String::new(),
        some => format!(
            ", {} of them freed immediately",
            percent(some as f64 / summary.allocated.blocks.max(1) as f64)
        ),
    };
    let allocated = format!(
        "{} of {} in total{temporary}; {}",
        counted(summary.allocated.blocks, "allocation"),
        size(summary.allocated.shown()),
        counted(summary.frees, "free")
    );
    fact(out, "traffic", &allocated);
    let lives = &summary.lifetimes;
    if lives.blocks > 0 && lives.longest > 0 {
        let line = format!(
            "of freed blocks: median {}, 90th percentile {}, longest {}",
            nanoseconds(lives.median),
            nanoseconds(lives.p90),
            nanoseconds(lives.longest)
        );
        fact(out, "lifetimes", &line);
    }
    if let Some(hits) = summary.hits.filter(|hits| hits.allocations > 0) {
        let share = hits.hits as f64 / hits.allocations as f64;
        fact(
            out,
            "hit rate",
            &format!(
                "{} of {} served without the source",
                percent(share),
                counted(hits.allocations, "allocation")
            ),
        );
    }
    if summary.refused > 0 {
        fact(out, "refused", &counted(summary.refused, "request"));
    }
    let begun = match summary.begin.blocks {
        0 => String::new(),
        some => format!(
            "; it began with {} in {}",
            size(summary.begin.shown()),
            counted(some, "block")
        ),
    };
    let end = &summary.end.sum;
    fact(
        out,
        "end",
        &format!("{} in {}{begun}", size(end.shown()), counted(end.blocks, "block")),
    );
}

fn steps_sentence(known: &RecordedSteps) -> String {
    let how = match &known.source {
        StepSource::Recorded => "as the recording names them".to_owned(),
        StepSource::Marks(text) => format!("between marks '{text}'"),
        StepSource::Pattern(allocations) => {
            format!("found by {} that repeat", counted(*allocations, "allocation"))
        }
    };
    let steps = &known.steps;
    let mut times: Vec<u64> = steps
        .iter()
        .map(|step| step.to.saturating_sub(step.from))
        .collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or(0);
    let largest = steps.iter().max_by_key(|step| step.peak.bytes);
    let peak = largest.map_or_else(String::new, |step| {
        format!("; step {} holds most, {}", step.number, size(step.peak.bytes))
    });
    format!(
        "{}, {how}, half of them within {}{peak}",
        number(steps.len() as u64 + known.more),
        nanoseconds(median)
    )
}

/// Returns a table of groups with a heading.
fn held_by(told: &Told<'_>, held: &Held, heading: &str) -> String {
    let title = format!("{heading}, by {}", told.by.name());
    let mut out = table(told, &title, held.by(told.by), held.sum, None);
    if let Some(bytes) = told.by.bytes_per_sample(told.history) {
        out.push_str(&format!("{}\n", stack::sampling(bytes)));
    }
    out
}

fn kept(told: &Told<'_>, summary: &Summary) -> String {
    let kept = &summary.kept;
    if kept.sum.blocks == 0 {
        return String::new();
    }
    let title = format!(
        "Allocated here and still held at the end: {} in {}, by {}",
        size(kept.sum.shown()),
        counted(kept.sum.blocks, "block"),
        told.by.name()
    );
    table(told, &title, kept.by(told.by), kept.sum, Some(summary.to))
}

/// Returns rows of groups with their shares of the total. The remaining groups are one row. `end` is the time from which ages
/// are counted back. Stacks are below their rows.
fn table(told: &Told<'_>, title: &str, groups: &[Group], all: Sum, end: Option<u64>) -> String {
    let top = top(groups, told.args.top);
    let mut out = format!("\n{}\n", bold(&wrap(title, width(), 0)));
    if all.blocks == 0 {
        out.push_str("  nothing\n");
        return out;
    }
    let mut rows: Vec<Group> = top.rows.clone();
    if top.rest_groups > 0 {
        rows.push(Group {
            name: format!("({})", counted(top.rest_groups, "other")),
            sum: top.rest,
            oldest: None,
        });
    }
    let unit = Unit::for_largest(rows.iter().map(|row| row.sum.shown()).max().unwrap_or(0));
    let share = |sum: &Sum| sum.bytes as f64 / all.bytes.max(1) as f64;
    let mut grid = Grid::new();
    let column = |of: &dyn Fn(&Group) -> String| rows.iter().map(of).collect::<Vec<_>>();
    grid.column(
        "     held",
        Align::Right,
        column(&|row| format!("  {}", unit.show(row.sum.shown()))),
    );
    grid.column("share", Align::Right, column(&|row| percent(share(&row.sum))));
    if width() >= BARS_FROM {
        grid.column("", Align::Left, column(&|row| plot::bar(share(&row.sum), BAR)));
    }
    let counts = match told.by.bytes_per_sample(told.history) {
        Some(_) => "samples",
        None => "blocks",
    };
    let count = |row: &Group| match row.name == NO_STACK && counts == "samples" {
        true => String::new(),
        false => number(row.sum.blocks),
    };
    grid.column(counts, Align::Right, column(&count));
    if let Some(end) = end {
        let age = |row: &Group| {
            let since = row.oldest.map(|since| end.saturating_sub(since));
            since.map_or_else(String::new, nanoseconds)
        };
        grid.column("oldest", Align::Right, column(&age));
    }
    let used = grid.width() + 2;
    let room = width().saturating_sub(used).max(20);
    grid.column(
        "who",
        Align::Left,
        column(&|row| short(&plain(&stack::head(&row.name)), room)),
    );
    let mut looks = vec![Row::Plain; top.rows.len()];
    looks.push(Row::Bound);
    let drawn = grid.render(&looks);
    let stacks = top.rows.iter().filter(|_| told.by == By::Stack);
    let names = stacks.map(|group| group.name.as_str());
    out.push_str(&stack::below_rows(&drawn, rows.len(), names));
    out
}

/// Returns a name on one line.
fn plain(name: &str) -> String {
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Lists the largest blocks, and how long each was held if times are known.
fn largest(held: &Held, by: By, timed: bool) -> String {
    if held.largest.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", bold("The largest blocks"));
    for block in &held.largest {
        let since = match timed {
            true => format!("held {:>8}  ", nanoseconds(held.time.saturating_sub(block.since))),
            false => String::new(),
        };
        let line = format!(
            "  {:>9}  {since}{}",
            size(block.bytes),
            plain(if matches!(by, By::Site | By::Stack) {
                &block.site
            } else {
                &block.tag
            })
        );
        out.push_str(&format!("{}\n", short(&line, width())));
    }
    out
}

fn pools(summary: &Summary) -> String {
    let pools = &summary.pools;
    let largest = pools.iter().map(|pool| pool.peak.bytes).max().unwrap_or(0);
    let unit = Unit::for_largest(largest);
    let mut grid = Grid::new();
    grid.column(
        "  pool",
        Align::Left,
        pools
            .iter()
            .map(|pool| format!("  {}", short(&plain(&pool.name), 40)))
            .collect(),
    );
    grid.column(
        "peak",
        Align::Right,
        pools.iter().map(|pool| unit.show(pool.peak.bytes)).collect(),
    );
    if pools
        .iter()
        .any(|pool| pool.peak_requested.bytes != pool.peak.bytes)
    {
        let requested = pools.iter().map(|pool| unit.show(pool.peak_requested.bytes));
        grid.column("requested", Align::Right, requested.collect());
    }
    if pools.iter().any(|pool| pool.peak_reserved.is_some()) {
        let reserved = pools.iter().map(|pool| {
            let peak = pool.peak_reserved.map(|peak| unit.show(peak.bytes));
            peak.unwrap_or_else(|| "-".to_owned())
        });
        grid.column("reserved", Align::Right, reserved.collect());
    }
    grid.column(
        "at the end",
        Align::Right,
        pools.iter().map(|pool| unit.show(pool.end_bytes)).collect(),
    );
    grid.column(
        "allocations",
        Align::Right,
        pools.iter().map(|pool| number(pool.allocations)).collect(),
    );
    if pools.iter().any(|pool| pool.hits.is_some()) {
        let rate = pools.iter().map(|pool| {
            let hits = pool.hits.filter(|hits| hits.allocations > 0);
            hits.map_or_else(
                || "-".to_owned(),
                |hits| percent(hits.hits as f64 / hits.allocations as f64),
            )
        });
        grid.column("hit rate", Align::Right, rate.collect());
    }
    format!("\n{}\n{}\n", bold("Pools"), grid.render(&[]))
}

fn findings(found: &[Finding]) -> String {
    if found.is_empty() {
        return format!("\n{}\n", dim("There are no findings."));
    }
    let mut out = format!("\n{}\n", bold("Worth changing"));
    let room = width().saturating_sub(2);
    let put = |out: &mut String, text: &str| {
        out.push_str(&format!("  {}\n", text.replace('\n', "\n  ")));
    };
    for finding in found.iter().take(FINDINGS) {
        let when = match finding.when {
            None => String::new(),
            Some((from, to)) if from == to => format!(", {} in", nanoseconds(from)),
            Some((from, to)) => format!(", {} to {}", nanoseconds(from), nanoseconds(to)),
        };
        put(
            &mut out,
            &item(
                &yellow("▪"),
                &format!("{}{when}: {}", finding.name, finding.evidence),
                room,
            ),
        );
        for who in &finding.who {
            let blocks = match who.blocks {
                0 => String::new(),
                some => format!("  {:>15}", counted(some, "block")),
            };
            let line = format!("    {:>9}{blocks}  {}", size(who.bytes), plain(&who.name));
            out.push_str(&format!("{}\n", short(&line, width())));
        }
        put(
            &mut out,
            &format!(
                "  {}",
                item(&green("→"), finding.remedy, room.saturating_sub(2)).replace('\n', "\n  ")
            ),
        );
    }
    if found.len() > FINDINGS {
        let more = counted((found.len() - FINDINGS) as u64, "smaller finding");
        out.push_str(&format!("  {}\n", dim(&format!("and {more}; --json has all"))));
    }
    out
}

fn nanoseconds(time: u64) -> String {
    duration_us(time as f64 / 1e3)
}
