//! Draws the list of processes.

use super::super::app::App;
use super::super::find::{HOW_TO_BE_SEEN, Process};
use super::row::{Cell, heading, row, size};
use super::{Palette, Section};
use crate::text::wrap;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

const WIDTHS: [usize; 8] = [8, 5, 20, 10, 6, 10, 10, 8];

pub(super) fn sections(app: &App, width: usize, palette: Palette) -> Vec<Section> {
    let note = match app.processes.len() {
        0 if !app.looked => "looking …".to_owned(),
        count => format!("{count}"),
    };
    let mut lines = vec![
        Line::from(vec![
            Span::styled("millpond top", palette.strong()),
            Span::styled(if app.paused { "  PAUSED" } else { "" }, palette.notable()),
        ]),
        heading("processes", &note, width, palette.strong(), palette.faint()),
    ];
    if app.processes.is_empty() && app.looked {
        let text = format!("no process found: {HOW_TO_BE_SEEN}");
        lines.extend(
            wrap(&text, width.max(20), 0)
                .lines()
                .map(|line| Line::raw(line.to_owned())),
        );
    }
    if !app.processes.is_empty() {
        lines.push(head(palette));
    }
    let first = lines.len();
    lines.extend(app.processes.iter().enumerate().map(|(place, process)| {
        let line = process_row(process);
        // A plain frame has no selection.
        if place == app.chosen && app.colours {
            line.patch_style(palette.chosen())
        } else {
            line
        }
    }));
    let mut section = Section::new(lines, first + 1);
    section.window = Some((first, app.chosen));
    vec![section]
}

fn head(palette: Palette) -> Line<'static> {
    let titles = [
        "PID", "RANK", "PROGRAM", "MEMORY", "POOLS", "IN USE", "RESERVED", "WARNINGS",
    ];
    let cells = titles.iter().enumerate().map(|(place, title)| match place {
        2 => Cell::left(*title, palette.faint()),
        _ => Cell::right(*title, palette.faint()),
    });
    row(cells.collect(), &WIDTHS)
}

fn process_row(of: &Process) -> Line<'static> {
    let plain = Style::new();
    let right = |text: String| Cell::right(text, plain);
    let cells = vec![
        right(of.id.to_string()),
        right(of.rank.clone().unwrap_or_default()),
        Cell::left(of.name.clone(), plain),
        right(of.resident.map(size).unwrap_or_default()),
        right(of.pools.to_string()),
        right(size(of.allocated)),
        right(size(of.reserved)),
        right(if of.warnings > 0 {
            of.warnings.to_string()
        } else {
            String::new()
        }),
    ];
    row(cells, &WIDTHS)
}
