//! Draws the screen of one process.

use super::super::app::{App, Watched};
use super::super::stats::{BudgetStats, DeviceStats, Stats};
use super::super::warnings::warnings;
use super::bar::{bar, course};
use super::row::{Cell, heading, percent, row, size, time};
use super::{Palette, Section, pools};
use crate::text::{short, wrap};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

pub(super) fn sections(app: &App, watched: &Watched, width: usize, palette: Palette) -> Vec<Section> {
    let mut sections = vec![header(app, watched, width, palette)];
    if let Some(now) = &watched.now {
        sections.push(memory(now, width, palette));
        sections.extend(told(now, watched, width, palette));
        sections.extend(devices(now, width, palette));
        sections.push(pools::section(app, watched, width, palette));
        sections.extend(budgets(now, width, palette));
        sections.extend(tags(now, width, palette));
    }
    sections
}

fn header(app: &App, watched: &Watched, width: usize, palette: Palette) -> Section {
    let mut spans = vec![Span::styled("millpond top  ", palette.faint())];
    match &watched.now {
        Some(now) => {
            let of = &now.process;
            spans.push(Span::styled(of.name.clone(), palette.strong()));
            let rank = of
                .rank
                .as_ref()
                .map(|rank| format!("  rank {rank}"))
                .unwrap_or_default();
            let interval = now.monitor.interval_ms as f64 / 1000.0;
            let seen = time(now.monitor.elapsed_ms / 1000);
            spans.push(Span::raw(format!("  pid {}{rank}  {}", of.id, of.host)));
            spans.push(Span::styled(
                format!("  seen {seen}, every {interval} s"),
                palette.faint(),
            ));
        }
        None if watched.gone.is_none() => spans.push(Span::raw(format!("asking {} …", watched.target))),
        None => spans.push(Span::raw(watched.target.to_string())),
    }
    if app.paused {
        spans.push(Span::styled(
            "  PAUSED",
            palette.notable().patch(palette.strong()),
        ));
    }
    let mut lines = vec![Line::from(spans)];
    if let Some((since, why)) = &watched.gone {
        let old = if watched.now.is_some() {
            "; what it had last is below"
        } else {
            ""
        };
        let text = format!(
            "! for {}: {why}. Waiting for it{old}",
            time(since.elapsed().as_secs())
        );
        lines.extend(
            wrap(&text, width.max(20), 2)
                .lines()
                .map(|line| Line::styled(line.to_owned(), palette.bad())),
        );
    }
    let least = lines.len();
    Section::new(lines, least)
}

fn memory(now: &Stats, width: usize, palette: Palette) -> Section {
    let of = &now.process;
    let resident = of.resident.map_or_else(|| "?".to_owned(), size);
    let full = of.resident_peak.or(of.resident).unwrap_or(0);
    let drawn = (width / 6).min(30);
    let pressure = match of.pressure.as_str() {
        "critical" | "high" => palette.bad(),
        "medium" => palette.notable(),
        _ => palette.good(),
    };
    let mut spans = vec![
        Span::styled("memory ", palette.strong()),
        Span::raw(format!("{resident} ")),
        Span::styled(course(&of.resident_history, full, drawn), palette.course()),
        Span::styled(format!("  peak {}", size(full)), palette.faint()),
        Span::raw("  pressure "),
        Span::styled(of.pressure.clone(), pressure),
    ];
    if let Some(limit) = &of.limit {
        let share = limit.used as f64 / limit.bytes.max(1) as f64;
        let text = format!("  {} {} of {}", limit.kind, percent(share), size(limit.bytes));
        spans.push(Span::styled(text, palette.fullness(share)));
    }
    Section::new(vec![Line::from(spans)], 1)
}

/// Returns the warnings. They come before all long sections, so that they are visible on a screen of any height.
fn told(now: &Stats, watched: &Watched, width: usize, palette: Palette) -> Option<Section> {
    let told = warnings(now, watched.first());
    let mut lines: Vec<Line<'static>> = told
        .iter()
        .map(|text| Line::styled(short(&format!("! {text}"), width), palette.notable()))
        .collect();
    if lines.len() > 6 {
        let more = lines.len() - 5;
        lines.truncate(5);
        lines.push(Line::styled(format!("! and {more} more"), palette.notable()));
    }
    (!lines.is_empty()).then(|| Section::new(lines, 3))
}

fn devices(now: &Stats, width: usize, palette: Palette) -> Option<Section> {
    if now.devices.is_empty() {
        return None;
    }
    let note = format!(
        "{}: █ pools of this process, █ others and what the driver takes",
        now.devices.len()
    );
    let mut lines = vec![heading(
        "devices",
        &note,
        width,
        palette.strong(),
        palette.faint(),
    )];
    lines.extend(
        now.devices
            .iter()
            .map(|device| device_row(device, now.process.id, width, palette)),
    );
    Some(Section::new(lines, 3))
}

fn device_row(of: &DeviceStats, process: u32, width: usize, palette: Palette) -> Line<'static> {
    let share = of.used as f64 / of.total.max(1) as f64;
    let name = of.name.trim_start_matches("NVIDIA ").len().min(20) + 7;
    let name = if width >= 90 { name } else { 0 };
    let mine = of
        .processes
        .iter()
        .flatten()
        .find(|one| one.id == process)
        .and_then(|one| one.used);
    let others = of
        .processes
        .iter()
        .flatten()
        .filter(|one| one.id != process)
        .count();
    let nvml = match (&of.processes, mine) {
        (None, _) => String::new(),
        (Some(_), Some(mine)) => format!("  NVML: {} ours, {others} others", size(mine)),
        (Some(_), None) => format!("  NVML: {others} processes"),
    };
    let figures = format!(
        "{:>7} {} of {}  ours {}  unexplained {}{nvml}",
        percent(share),
        size(of.used),
        size(of.total),
        size(of.ours),
        size(of.unexplained)
    );
    let figures_width = console::measure_text_width(&figures);
    let left = width.saturating_sub(8 + name + figures_width + 2);
    let drawn = left.clamp(6, 40);
    let spans = bar(
        &[
            (of.ours.min(of.used), palette.fullness(share)),
            (of.unexplained, palette.notable()),
        ],
        of.total,
        drawn,
        palette.faint(),
    );
    let cells = vec![
        Cell::left(of.device.clone(), palette.strong()),
        Cell::left(of.name.clone(), palette.faint()),
        Cell::of(spans, false),
        Cell::left(figures, Style::new()),
    ];
    let rest = width.saturating_sub(7 + drawn + 3 + name);
    row(cells, &[7, name, drawn, rest])
}

fn budgets(now: &Stats, width: usize, palette: Palette) -> Option<Section> {
    if now.budgets.is_empty() {
        return None;
    }
    let note = now.budgets.len().to_string();
    let mut lines = vec![heading(
        "budgets",
        &note,
        width,
        palette.strong(),
        palette.faint(),
    )];
    let longest = now
        .budgets
        .iter()
        .map(|budget| console::measure_text_width(&budget.path))
        .max();
    let name = longest.unwrap_or(0).clamp(8, (width / 3).max(8));
    lines.extend(
        now.budgets
            .iter()
            .map(|budget| budget_row(budget, name, width, palette)),
    );
    Some(Section::new(lines, 3))
}

fn budget_row(of: &BudgetStats, name: usize, width: usize, palette: Palette) -> Line<'static> {
    let drawn = (width / 6).min(30);
    let (spans, figures) = match of.limit {
        Some(limit) => {
            let share = of.used as f64 / limit.max(1) as f64;
            let spans = bar(
                &[(of.used, palette.fullness(share))],
                limit,
                drawn,
                palette.faint(),
            );
            (
                spans,
                format!("{:>7} {} of {}", percent(share), size(of.used), size(limit)),
            )
        }
        None => {
            let none = vec![Span::styled(" ".repeat(drawn), palette.faint())];
            (none, format!("{:>7} {}, no limit", "", size(of.used)))
        }
    };
    let mut more = format!("{figures} {}  peak {}", of.measure, size(of.peak));
    for (count, what) in [(of.waiting, "waiting"), (of.refusals, "refused")] {
        if count > 0 {
            more.push_str(&format!("  {count} {what}"));
        }
    }
    let cells = vec![
        Cell::left(of.path.clone(), palette.strong()),
        Cell::of(spans, false),
        Cell::left(more, Style::new()),
    ];
    row(cells, &[name, drawn, width.saturating_sub(name + drawn + 2)])
}

fn tags(now: &Stats, width: usize, palette: Palette) -> Option<Section> {
    let tags = now.tags.as_ref().filter(|tags| !tags.is_empty())?;
    let whole: u64 = tags.iter().map(|tag| tag.bytes).sum();
    let note = "live blocks of pools that keep an account";
    let mut lines = vec![heading("tags", note, width, palette.strong(), palette.faint())];
    let longest = tags
        .iter()
        .map(|tag| console::measure_text_width(&tag.name))
        .max();
    let name = longest.unwrap_or(0).clamp(8, (width / 3).max(8));
    let drawn = (width / 6).min(30);
    for tag in tags {
        let shown = if tag.name.is_empty() { "(none)" } else { &tag.name };
        let blocks = if tag.blocks == 1 { "block" } else { "blocks" };
        let share = tag.bytes as f64 / whole.max(1) as f64;
        let figures = format!(
            "{:>7} {} in {} {blocks}",
            percent(share),
            size(tag.bytes),
            tag.blocks
        );
        let cells = vec![
            Cell::left(shown, palette.strong()),
            Cell::of(
                bar(&[(tag.bytes, palette.course())], whole, drawn, palette.faint()),
                false,
            ),
            Cell::left(figures, Style::new()),
        ];
        lines.push(row(cells, &[name, drawn, width.saturating_sub(name + drawn + 2)]));
    }
    Some(Section::new(lines, 0))
}
