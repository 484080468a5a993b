//! Draws rows of aligned cells.

use crate::text::short;
use console::measure_text_width;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// One cell.
pub(super) struct Cell {
    spans: Vec<Span<'static>>,
    right: bool,
}

impl Cell {
    pub(super) fn left(text: impl Into<String>, style: Style) -> Self {
        Self::of(vec![Span::styled(text.into(), style)], false)
    }

    pub(super) fn right(text: impl Into<String>, style: Style) -> Self {
        Self::of(vec![Span::styled(text.into(), style)], true)
    }

    /// Returns a cell with several spans, which together are at most as wide as the column.
    pub(super) fn of(spans: Vec<Span<'static>>, right: bool) -> Self {
        Self { spans, right }
    }

    fn width(&self) -> usize {
        self.spans
            .iter()
            .map(|span| measure_text_width(&span.content))
            .sum()
    }
}

/// Draws cells in columns of these widths, separated by a blank.
pub(super) fn row(cells: Vec<Cell>, widths: &[usize]) -> Line<'static> {
    let mut spans: Vec<Span<'static>> = Vec::new();
    for (place, (mut cell, width)) in cells.into_iter().zip(widths).enumerate() {
        if *width == 0 {
            continue;
        }
        if place > 0 {
            spans.push(Span::raw(" "));
        }
        if let [span] = &mut cell.spans[..] {
            span.content = short(&span.content, *width).into();
        }
        let blanks = Span::raw(" ".repeat(width.saturating_sub(cell.width())));
        if cell.right {
            spans.push(blanks);
            spans.extend(cell.spans);
        } else {
            spans.extend(cell.spans);
            spans.push(blanks);
        }
    }
    Line::from(spans)
}

/// Draws a heading, with a rule to the end of the line.
pub(super) fn heading(title: &str, note: &str, width: usize, strong: Style, faint: Style) -> Line<'static> {
    let note = if note.is_empty() {
        String::new()
    } else {
        format!(" {note}")
    };
    let used = measure_text_width(title) + measure_text_width(&note) + 1;
    Line::from(vec![
        Span::styled(title.to_owned(), strong),
        Span::styled(note, faint),
        Span::styled(format!(" {}", "─".repeat(width.saturating_sub(used))), faint),
    ])
}

/// Formats a size in a short form: `1.25 GiB`.
pub(super) fn size(bytes: u64) -> String {
    millpond_engine::display_size(bytes).to_string()
}

/// Formats a share in per cent with one decimal. It is rounded down, so that a share below 100 never shows as 100.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", (share * 1000.0).floor() / 10.0)
}

/// Formats a count of any size in at most six columns.
pub(super) fn count(of: u64) -> String {
    let scaled = |unit: u64, name: char| {
        let value = of as f64 / unit as f64;
        if value < 10.0 {
            format!("{value:.2}{name}")
        } else {
            format!("{value:.1}{name}")
        }
    };
    match of {
        0..10_000 => of.to_string(),
        10_000..1_000_000 => scaled(1000, 'k'),
        1_000_000..1_000_000_000 => scaled(1_000_000, 'M'),
        _ => scaled(1_000_000_000, 'G'),
    }
}

/// Formats a time in at most two units.
pub(super) fn time(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let counts = [0, 9999, 10_000, 123_456, 1_234_567, 45_678_901, 12_345_678_901].map(count);
        assert_eq!(
            counts,
            ["0", "9999", "10.0k", "123.5k", "1.23M", "45.7M", "12.3G"]
        );
        assert_eq!(
            [5, 65, 3700, 90_000].map(time),
            ["5 s", "1 min 05 s", "1 h 01 min", "1 d 01 h"]
        );
        assert_eq!([0.99999, 1.0, 0.0].map(percent), ["99.9 %", "100.0 %", "0.0 %"]);
    }

    #[test]
    fn cells_are_aligned_and_truncated() {
        let line = |name: &str| {
            let cells = vec![
                Cell::left(name, Style::new()),
                Cell::left("gone", Style::new()),
                Cell::right("7", Style::new()),
            ];
            row(cells, &[6, 0, 3]).to_string()
        };
        assert_eq!(line("ab"), "ab       7");
        assert_eq!(line("abcdefgh"), "abcde…   7");
        assert_eq!(line("日本語日本"), "日本…    7");
    }
}
