//! Draws the history of the selected pool in the space below everything else.

use super::super::app::App;
use super::super::stats::PoolStats;
use super::row::{heading, size};
use super::{Palette, Section};
use ratatui::text::{Line, Span};

/// The most and the fewest lines of the chart, including its heading.
const MOST: usize = 16;
const LEAST: usize = 6;

/// The width of the scale.
const SCALE: usize = 9;

const RISING: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

pub(super) fn section(app: &App, width: usize, room: usize, palette: Palette) -> Option<Section> {
    // One blank line separates the chart from the part above.
    let lines = room.checked_sub(1)?.min(MOST);
    if lines < LEAST || width < 30 {
        return None;
    }
    let pools = app.pools();
    let pool = pools.get(app.pool)?;
    let full = pool
        .reserved_history
        .iter()
        .chain(&pool.allocated_history)
        .max()
        .copied()?;
    let note = "█ in use  ─ reserved";
    let mut all = vec![
        Line::default(),
        heading(&pool.name, note, width, palette.strong(), palette.faint()),
    ];
    let height = lines - 1;
    all.extend(
        (0..height)
            .rev()
            .map(|level| line(pool, full, level, height, width, palette)),
    );
    Some(Section::new(all, 0))
}

/// Returns one line of the chart. Line 0 is the lowest.
fn line(
    pool: &PoolStats,
    full: u64,
    level: usize,
    height: usize,
    width: usize,
    palette: Palette,
) -> Line<'static> {
    let label = match level {
        0 => "0 B".to_owned(),
        _ if level + 1 == height => size(full),
        _ => String::new(),
    };
    let mut spans = vec![Span::styled(format!("{label:>SCALE$} "), palette.faint())];
    let columns = width.saturating_sub(SCALE + 1);
    let allocated = latest(&pool.allocated_history, columns);
    let reserved = latest(&pool.reserved_history, columns);
    let blank = columns - allocated.len().max(reserved.len());
    spans.push(Span::raw(" ".repeat(blank)));
    for (used, had) in allocated.iter().zip(reserved) {
        let filled = eighths(*used, full, height).saturating_sub(level * 8).min(8);
        let edge = eighths(*had, full, height).saturating_sub(1) / 8;
        if filled > 0 {
            spans.push(Span::styled(RISING[filled], palette.course()));
        } else if edge == level && *had > 0 {
            spans.push(Span::styled("─", palette.faint()));
        } else {
            spans.push(Span::raw(" "));
        }
    }
    Line::from(spans)
}

fn latest(values: &[u64], most: usize) -> &[u64] {
    &values[values.len().saturating_sub(most)..]
}

/// Returns the height of a value in eighths of a line.
fn eighths(value: u64, full: u64, height: usize) -> usize {
    let all = height as u128 * 8;
    (u128::from(value) * all / u128::from(full.max(1))).min(all) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocated_bytes_are_drawn_below_reserved_bytes() {
        let pool = PoolStats {
            allocated_history: vec![0, 50, 80],
            reserved_history: vec![80, 80, 80],
            ..PoolStats::default()
        };
        let drawn: Vec<String> = (0..4)
            .rev()
            .map(|level| line(&pool, 80, level, 4, 14, Palette { colours: false }).to_string())
            .collect();
        // Zero has no height, and reserved memory is drawn only above the memory in use.
        assert_eq!(
            drawn,
            [
                "     80 B  ──█",
                "            ▄█",
                "            ██",
                "      0 B   ██"
            ]
        );
    }
}
