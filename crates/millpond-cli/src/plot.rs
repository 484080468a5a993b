//! Draws bytes over time, as text in the terminal and as pictures in files.

use crate::exit::CliError;
use crate::output;
use crate::terminal::{band, colours, dim};
use crate::text::{duration_us, short, size};
use millpond_replay::analysis::Timeline;
use millpond_replay::chart;
use std::io::Write;
use std::path::Path;

/// The number of rows of the plot in the terminal.
const ROWS: usize = 8;
/// The number of columns of its axis, including the line.
const AXIS: usize = 12;
/// Cells from empty to full, filled from the bottom.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Cells from empty to full, filled from the left.
const PARTS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
/// Marks the bytes that pools have reserved beyond the bytes that are held.
const RESERVED: char = '┄';

/// Returns the number of columns for a plot.
pub(crate) fn columns(width: usize) -> usize {
    width.saturating_sub(AXIS + 1).clamp(10, 400)
}

/// Draws a share as a bar of `cells` cells.
pub(crate) fn bar(share: f64, cells: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * cells as f64 * 8.0).round() as usize;
    let cell = |at: usize| PARTS[eighths.saturating_sub(at * 8).min(8)];
    (0..cells).map(cell).collect::<String>().trim_end().to_owned()
}

/// Draws a timeline as text: the total of all blocks, coloured by group if colours are enabled.
pub(crate) fn text(timeline: &Timeline, width: usize) -> String {
    let held = timeline.total.iter().map(|sample| sample.most);
    let reserved = timeline.reserved.iter().flatten().map(|sample| sample.most);
    let most = held.chain(reserved).max().unwrap_or(0).max(1);
    let mut out = String::new();
    for row in (0..ROWS).rev() {
        let label = match row {
            _ if row + 1 == ROWS => size(most),
            _ if row == ROWS / 2 - 1 => size(most / 2),
            0 => "0".to_owned(),
            _ => String::new(),
        };
        out.push_str(&dim(&format!("{label:>9} ┤")));
        let cells = (0..timeline.columns()).map(|column| cell(timeline, column, row, most));
        out.push_str(&painted(cells));
        out.push('\n');
    }
    out.push_str(&times(timeline));
    if colours() {
        out.push_str(&legend(timeline, width));
    }
    out
}

/// Returns the character of a cell, and the band whose colour it gets.
fn cell(timeline: &Timeline, column: usize, row: usize, most: u64) -> (char, Option<usize>) {
    let level = |bytes: u64| (bytes as f64 / most as f64 * (ROWS * 8) as f64).round() as usize;
    let held = timeline.total[column].most;
    let filled = level(held).saturating_sub(row * 8).min(8);
    if filled > 0 {
        let middle = (row * 8) as f64 + filled as f64 / 2.0;
        let bytes = middle / (ROWS * 8) as f64 * most as f64;
        return (EIGHTHS[filled], Some(band_at(timeline, column, bytes)));
    }
    let reserved = timeline.reserved.as_ref().map_or(0, |line| line[column].most);
    let at = level(reserved).saturating_sub(1) / 8;
    (
        if reserved > held && at == row {
            RESERVED
        } else {
            ' '
        },
        None,
    )
}

/// Returns the band at this many bytes from the bottom. The rest comes after the last band.
fn band_at(timeline: &Timeline, column: usize, bytes: f64) -> usize {
    let mut below = 0.0;
    let over = timeline.bands.iter().position(|band| {
        below += band.samples[column].at_peak as f64;
        below >= bytes
    });
    over.unwrap_or(timeline.bands.len())
}

/// Joins characters with as few changes of colour as possible.
fn painted(cells: impl Iterator<Item = (char, Option<usize>)>) -> String {
    let mut runs: Vec<(Option<usize>, String)> = Vec::new();
    for (letter, of) in cells {
        match runs.last_mut() {
            Some((last, run)) if *last == of => run.push(letter),
            _ => runs.push((of, letter.to_string())),
        }
    }
    let paint = |(of, run): &(Option<usize>, String)| of.map_or_else(|| dim(run), |of| band(of, run));
    let line: String = runs.iter().map(paint).collect();
    line.trim_end().to_owned()
}

fn times(timeline: &Timeline) -> String {
    let columns = timeline.columns();
    let (from, to) = if timeline.by_rows {
        ("first event".to_owned(), "last".to_owned())
    } else {
        let shown = |time: u64| duration_us(time as f64 / 1e3);
        (shown(timeline.from), shown(timeline.to))
    };
    let from = if timeline.from == 0 && !timeline.by_rows {
        "0".to_owned()
    } else {
        from
    };
    let gap = columns.saturating_sub(from.chars().count() + to.chars().count());
    let line = format!("{}{from}{}{to}", " ".repeat(AXIS - 1), " ".repeat(gap));
    format!("{}\n", dim(&line))
}

/// Returns which colour belongs to which group. The table below lists the groups in the same order up to the peak.
fn legend(timeline: &Timeline, width: usize) -> String {
    let mut names: Vec<&str> = timeline.bands.iter().map(|band| band.name.as_str()).collect();
    if timeline.rest_groups > 0 {
        names.push("others");
    }
    let mut out = String::new();
    let mut column = width;
    for (at, name) in names.into_iter().enumerate() {
        let name = short(&name.split_whitespace().collect::<Vec<_>>().join(" "), 36);
        let wide = console::measure_text_width(&name) + 4;
        if column + wide > width {
            out.push_str(if out.is_empty() { "" } else { "\n" });
            out.push_str(&" ".repeat(AXIS - 1));
            column = AXIS - 1;
        }
        out.push_str(&format!("{} {name}  ", band(at, "■")));
        column += wide;
    }
    out.push('\n');
    out
}

/// The format of a picture.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Picture {
    Svg,
    Png,
}

fn picture(path: &Path) -> Result<Picture, CliError> {
    let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
    match ending.to_str() {
        Some("svg") => Ok(Picture::Svg),
        Some("png") => Ok(Picture::Png),
        _ => Err(CliError::Usage(format!(
            "cannot tell what picture {} is to be: name it .svg or .png",
            path.display()
        ))),
    }
}

/// Checks that a picture can be written at a path, before it is made.
pub(crate) fn check(path: &Path) -> Result<(), CliError> {
    picture(path)?;
    output::check_writable(path)
}

/// Writes a timeline as a picture.
pub(crate) fn write(path: &Path, timeline: &Timeline, title: &str) -> Result<(), CliError> {
    let kind = picture(path)?;
    output::write_file(path, |out| match kind {
        Picture::Svg => out.write_all(chart::svg(timeline, title).as_bytes()),
        Picture::Png => out.write_all(&chart::png(timeline, title)?),
    })
}
