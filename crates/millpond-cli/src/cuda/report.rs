//! Formats a replay on a device.

use super::facts::{CheckFacts, Facts, RunFacts, SourceFacts};
use crate::side_by_side::{self, Shown};
use crate::table::{Align, Grid};
use crate::terminal::{bold, dim, green, width, yellow};
use crate::text::{Unit, counted, duration_us, item, number, size, wrap};

/// Returns the table of one recording, with the calls to the driver.
pub(super) fn text(facts: &Facts) -> String {
    let source = &facts.source;
    let columns = width();
    let mut out = side_by_side::text(&shown(facts));
    let head = format!(
        "{} ({}): {} free of {} at the start, {} in use by others (unexplained); {}",
        source.device,
        source.name,
        size(source.free_bytes),
        size(source.total_bytes),
        size(source.unexplained_bytes),
        match source.memory {
            "virtual" => "pages by virtual memory management",
            "pooled" => "segments from the driver's pool",
            _ => "whole segments, a call of the driver each",
        }
    );
    out.push_str(&format!("\n{}\n\n", bold(&wrap(&head, columns, 0))));
    if !source.runs.is_empty() {
        out.push_str(&format!("{}\n\n", against(source).render(&[])));
        out.push_str(&format!("{}\n\n", functions(source).render(&[])));
    }
    for sentence in found(source) {
        out.push_str(&format!("{}\n", item(&green("→"), &sentence, columns)));
    }
    for sentence in notes(source) {
        out.push_str(&format!("{}\n", item(&yellow("!"), &sentence, columns)));
    }
    out
}

fn shown(facts: &Facts) -> Shown<'_> {
    Shown {
        report: &facts.report,
        label: &facts.label,
        device: about(&facts.source),
        device_bytes: facts.source.limit_bytes,
        detailed: true,
        calls: true,
    }
}

/// Returns the explanation of the tables, once for all recordings.
pub(super) fn legend(all: &[Facts]) -> String {
    let text = "the device gave: the peak of bytes held from the driver, counted at its calls; unexplained: the decrease of the \
                driver's free memory since the start of the run, minus reserved bytes, at the simulation's peak and at the end; moved: \
                pages mapped at another address; ns: including driver calls; driver time: measured, the total of all calls; modelled: \
                by the table of costs, for the same calls and stalls";
    let shown: Vec<Shown<'_>> = all.iter().map(shown).collect();
    format!(
        "{}\n{}",
        side_by_side::legend(&shown),
        dim(&wrap(text, width(), 0))
    )
}

fn about(source: &SourceFacts) -> String {
    let limit = match source.limit_bytes {
        None => "no limit".to_owned(),
        Some(bytes) => format!("{} for the program", size(bytes)),
    };
    format!("device: {}, {limit}", source.device)
}

fn against(source: &SourceFacts) -> Grid {
    let runs = &source.runs;
    let largest = |of: &dyn Fn(&RunFacts) -> u64| Unit::for_largest(runs.iter().map(of).max().unwrap_or(0));
    let unit = largest(&|run| run.peak_reserved_bytes.max(run.simulated_peak_reserved_bytes));
    let mut grid = Grid::new();
    let column = |of: &dyn Fn(&RunFacts) -> String| runs.iter().map(of).collect::<Vec<_>>();
    let right = |grid: &mut Grid, head: &str, of: &dyn Fn(&RunFacts) -> String| {
        grid.column(head, Align::Right, column(of));
    };
    grid.column("policy", Align::Left, column(&|run| run.policy.clone()));
    grid.start_group();
    right(&mut grid, "the device\ngave", &|run| {
        unit.show(run.peak_reserved_bytes)
    });
    right(&mut grid, "the\nsimulation", &|run| {
        unit.show(run.simulated_peak_reserved_bytes)
    });
    right(&mut grid, "\ndifference", &|run| match run.difference_bytes {
        0 => "none".to_owned(),
        bytes => signed(bytes),
    });
    right(&mut grid, "unexplained\nat the peak", &|run| {
        run.unexplained_at_peak_bytes
            .map_or_else(|| "-".to_owned(), signed)
    });
    right(&mut grid, "at the\nend", &|run| {
        signed(run.unexplained_at_end_bytes)
    });
    grid.start_group();
    right(&mut grid, "\nmoved", &|run| size(run.moved_bytes));
    right(&mut grid, "\nstreams", &|run| number(run.streams as u64));
    right(&mut grid, "driver\ntime", &|run| duration_us(run.driver_ms * 1e3));
    right(&mut grid, "\nmodelled", &|run| {
        duration_us(run.modelled_driver_ms * 1e3)
    });
    grid
}

/// Returns the calls to the driver, with a row for each function and two columns for each policy.
fn functions(source: &SourceFacts) -> Grid {
    let mut names: Vec<(&str, f64)> = Vec::new();
    for call in source.runs.iter().flat_map(|run| &run.driver_calls) {
        match names.iter_mut().find(|(name, _)| *name == call.function) {
            Some((_, ms)) => *ms += call.ms,
            None => names.push((call.function, call.ms)),
        }
    }
    names.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut grid = Grid::new();
    let column = |of: &dyn Fn(&str) -> String| names.iter().map(|(name, _)| of(name)).collect();
    grid.column("calls of the driver", Align::Left, column(&str::to_owned));
    for run in &source.runs {
        let call = |name: &str| run.driver_calls.iter().find(|call| call.function == name);
        let none = || "-".to_owned();
        grid.start_group();
        grid.column(
            &format!("{}\ncalls", run.policy),
            Align::Right,
            column(&|name| call(name).map_or_else(none, |call| number(call.calls))),
        );
        grid.column(
            "\ntime",
            Align::Right,
            column(&|name| call(name).map_or_else(none, |call| duration_us(call.ms * 1e3))),
        );
    }
    grid
}

/// Returns sentences that compare the device with the simulation.
fn found(source: &SourceFacts) -> Vec<String> {
    let mut found = Vec::new();
    let (equal, other): (Vec<&RunFacts>, Vec<&RunFacts>) = source.runs.iter().partition(|run| run.is_equal());
    if !equal.is_empty() {
        let names: Vec<&str> = equal.iter().map(|run| run.policy.as_str()).collect();
        let mut sentence = format!(
            "{}: {} gave exactly what the simulation reserves",
            names.join(", "),
            source.device
        );
        let same = equal.iter().filter(|run| run.same_calls).count();
        if same == equal.len() {
            sentence.push_str(", with the same calls");
        }
        found.push(format!("{sentence}."));
    }
    let checked: Vec<_> = source.runs.iter().filter_map(|run| run.check.as_ref()).collect();
    if !checked.is_empty() && checked.iter().all(|check| check.wrong == 0) {
        let sum = |of: fn(&CheckFacts) -> u64| checked.iter().map(|check| of(check)).sum::<u64>();
        found.push(format!(
            "The contents of {} were checked when they were freed or the replay ended, {} in total: all are as written.",
            counted(sum(|check| check.blocks), "block"),
            counted(sum(|check| check.words), "word")
        ));
    }
    for run in other {
        found.push(format!(
            "{}: {} gave {} where the simulation reserves {}, {} bytes {}.",
            run.policy,
            source.device,
            size(run.peak_reserved_bytes),
            size(run.simulated_peak_reserved_bytes),
            number(run.difference_bytes.unsigned_abs()),
            if run.difference_bytes > 0 { "more" } else { "less" }
        ));
    }
    found
}

fn notes(source: &SourceFacts) -> Vec<String> {
    let mut notes = Vec::new();
    if source.emulated {
        notes.push("The driver is emulated: its times do not apply to a card.".to_owned());
    }
    if source.limit_is_what_was_free {
        notes.push(format!(
            "Some policy would reserve more than the {} that were free, so this is the limit of all policies, also in the \
             simulation.",
            size(source.free_bytes)
        ));
    } else if let Some(limit) = source.limit_bytes.filter(|limit| *limit > source.free_bytes) {
        notes.push(format!(
            "--device leaves {} for the program, but only {} were free.",
            size(limit),
            size(source.free_bytes)
        ));
    }
    let differ = source.runs.iter().filter(|run| run.is_equal() && !run.same_calls);
    let differ: Vec<&str> = differ.map(|run| run.policy.as_str()).collect();
    if !differ.is_empty() && differ.len() < source.runs.len() {
        notes.push(format!(
            "The calls of {} are not the simulation's: among free blocks of one size the one at the lowest address is taken, and \
             the driver has its own addresses.",
            differ.join(" and ")
        ));
    }
    if !source.failed.is_empty() {
        notes.push(format!(
            "There is no result of {}, because the driver failed.",
            counted(source.failed.len() as u64, "policy")
        ));
    }
    notes
}

/// Formats a difference of sizes with its sign.
fn signed(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}
