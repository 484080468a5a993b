//! Draws the table of pools.

use super::super::app::{App, Column, Watched};
use super::super::stats::PoolStats;
use super::bar::course;
use super::row::{Cell, count, heading, percent, row, size};
use super::{Palette, Section};
use ratatui::text::Line;

/// A column of the table: its heading, its width, and the smallest screen width at which it appears.
struct Shape {
    title: &'static str,
    width: usize,
    from: usize,
    sort: Option<Column>,
}

const fn shape(title: &'static str, width: usize, from: usize, sort: Option<Column>) -> Shape {
    Shape {
        title,
        width,
        from,
        sort,
    }
}

/// The name and the sparkline use the width that the other columns leave.
const SHAPES: [Shape; 12] = [
    shape("POOL", 0, 0, Some(Column::Name)),
    shape("ON", 7, 60, None),
    shape("IN USE", 9, 0, Some(Column::Allocated)),
    shape("PEAK", 9, 132, None),
    shape("RESERVED", 9, 44, Some(Column::Reserved)),
    shape("LIMIT", 9, 118, None),
    shape("COURSE", 0, 72, None),
    shape("USED", 7, 54, Some(Column::Utilisation)),
    shape("HITS", 7, 66, Some(Column::HitRate)),
    shape("CALLS/S", 7, 76, Some(Column::Rate)),
    shape("MISSES", 6, 98, Some(Column::Misses)),
    shape("REFUSED", 7, 106, Some(Column::Refusals)),
];

const NAME: usize = 0;
const COURSE: usize = 6;

fn widths(width: usize, longest: usize) -> [usize; SHAPES.len()] {
    let mut widths = [0; SHAPES.len()];
    let mut fixed = 0;
    for (place, shape) in SHAPES.iter().enumerate() {
        if width >= shape.from && shape.width > 0 {
            widths[place] = shape.width;
            fixed += shape.width + 1;
        }
    }
    let room = width.saturating_sub(fixed);
    if width >= SHAPES[COURSE].from {
        widths[NAME] = longest.clamp(8, (room / 2).max(8));
        widths[COURSE] = room.saturating_sub(widths[NAME] + 1);
    } else {
        widths[NAME] = room;
    }
    widths
}

pub(super) fn section(app: &App, watched: &Watched, width: usize, palette: Palette) -> Section {
    let pools = app.pools();
    let longest = pools
        .iter()
        .map(|pool| console::measure_text_width(&pool.name))
        .max();
    let widths = widths(width, longest.unwrap_or(0));
    let (total, reserved) = pools.iter().fold((0u64, 0u64), |(a, r), pool| {
        (a.saturating_add(pool.allocated), r.saturating_add(pool.reserved))
    });
    let note = format!(
        "{}: {} in use of {} reserved",
        pools.len(),
        size(total),
        size(reserved)
    );
    let mut lines = vec![heading("pools", &note, width, palette.strong(), palette.faint())];
    if pools.is_empty() {
        lines.push(Line::styled("none yet", palette.faint()));
    } else {
        lines.push(head(app, &widths, palette));
    }
    let first = lines.len();
    lines.extend(pools.iter().enumerate().map(|(place, pool)| {
        let line = pool_row(watched, pool, &widths, palette);
        // A single pool is not marked as selected, and neither is any pool in a plain frame.
        let chosen = place == app.pool && pools.len() > 1 && app.colours;
        if chosen {
            line.patch_style(palette.chosen())
        } else {
            line
        }
    }));
    let mut section = Section::new(lines, 5);
    section.window = Some((first, app.pool));
    section
}

fn head(app: &App, widths: &[usize], palette: Palette) -> Line<'static> {
    let cell = |(place, shape): (usize, &Shape)| {
        let chosen = shape.sort == Some(app.sort);
        let arrow = match (chosen, app.reversed) {
            (false, _) => "",
            (true, false) => "▾",
            (true, true) => "▴",
        };
        let style = if chosen { palette.strong() } else { palette.faint() };
        let text = format!("{}{arrow}", shape.title);
        match place {
            NAME | 1 | COURSE => Cell::left(text, style),
            _ => Cell::right(text, style),
        }
    };
    row(SHAPES.iter().enumerate().map(cell).collect(), widths)
}

fn pool_row(watched: &Watched, pool: &PoolStats, widths: &[usize], palette: Palette) -> Line<'static> {
    let plain = ratatui::style::Style::new();
    let right = |text: String| Cell::right(text, plain);
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let on = if pool.kind == "device" || pool.device != "host" {
        &pool.device
    } else {
        &pool.kind
    };
    let limit = pool.limit.map_or_else(
        || Cell::right("-", palette.faint()),
        |limit| Cell::right(size(limit), palette.fullness(share(pool.reserved, limit))),
    );
    // The sparkline is relative to the reserved memory, so that its height shows the share in use.
    let full = pool
        .reserved_history
        .iter()
        .chain([&pool.reserved])
        .max()
        .copied()
        .unwrap_or(0);
    let hits = if pool.allocations == 0 {
        Cell::right("-", palette.faint())
    } else {
        let style = if pool.hit_rate >= 0.9 {
            palette.good()
        } else {
            palette.notable()
        };
        Cell::right(percent(pool.hit_rate), style)
    };
    let rate = watched.rate(pool);
    let refused = if pool.refusals > 0 {
        palette.bad()
    } else {
        palette.faint()
    };
    let name = if pool.stale {
        palette.faint()
    } else {
        palette.strong()
    };
    let cells = vec![
        Cell::left(pool.name.clone(), name),
        Cell::left(on.clone(), palette.faint()),
        right(size(pool.allocated)),
        right(size(pool.allocated_peak)),
        right(size(pool.reserved)),
        limit,
        Cell::left(
            course(&pool.allocated_history, full, widths[COURSE]),
            palette.course(),
        ),
        right(percent(share(pool.allocated, pool.reserved))),
        hits,
        // A rate needs two sets of statistics.
        rate.map_or_else(
            || Cell::right("-", palette.faint()),
            |rate| right(count(rate.round() as u64)),
        ),
        right(count(pool.misses)),
        Cell::right(count(pool.refusals), refused),
    ];
    row(cells, widths)
}
