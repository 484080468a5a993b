//! Draws bytes by group over time, as SVG and as PNG.
//!
//! ```text
//!   Timeline ──▶ draw (here)  bands, lines, axes, legend ──▶ Canvas: svg.rs  paths and text
//!                                                                    png.rs  pixels; letters from font.rs
//! ```

mod font;
mod png;
mod svg;

#[cfg(test)]
mod tests;

use crate::analysis::{Sample, Timeline};
use crate::web::text::one_line;
use millpond_engine::display_size;

/// A colour: red, green, blue.
type Colour = [u8; 3];

const WIDE: f64 = 1200.0;
const TALL: f64 = 520.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 44.0;
/// Height of a line of the legend.
const LINE: f64 = 20.0;

const INK: Colour = [40, 44, 52];
const PALE: Colour = [205, 208, 214];
const REST: Colour = [170, 174, 182];
const RESERVED: Colour = [200, 40, 40];
const UNEXPLAINED: Colour = [228, 214, 170];
const BANDS: [Colour; 8] = [
    [38, 110, 187],
    [232, 140, 38],
    [62, 150, 94],
    [150, 88, 170],
    [64, 176, 186],
    [206, 88, 124],
    [146, 118, 70],
    [120, 140, 30],
];

/// The position of a text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The text begins at the point.
    Right,
    /// The text ends at the point.
    Left,
    /// The text is centred on the point.
    Middle,
}

/// A surface to draw on. The origin is at the upper left.
trait Canvas {
    /// Fills the space between two heights in each column. All columns have the same width.
    fn area(&mut self, left: f64, width: f64, heights: &[(f64, f64)], colour: Colour, name: &str);
    /// Draws a line at one height in each column.
    fn line(&mut self, left: f64, width: f64, heights: &[f64], colour: Colour);
    fn rule(&mut self, from: (f64, f64), to: (f64, f64), colour: Colour);
    fn square(&mut self, at: (f64, f64), colour: Colour);
    /// Writes a text. `at` is on its baseline.
    fn text(&mut self, at: (f64, f64), text: &str, side: Side);
}

/// Draws a timeline as SVG.
#[must_use]
pub fn svg(timeline: &Timeline, title: &str) -> String {
    let mut canvas = svg::Svg::new(WIDE, height(timeline));
    draw(timeline, title, &mut canvas);
    canvas.finish()
}

/// Draws a timeline as PNG.
///
/// # Errors
/// Returns an error if compression fails, for example for lack of memory.
pub fn png(timeline: &Timeline, title: &str) -> std::io::Result<Vec<u8>> {
    let mut canvas = png::Png::new(WIDE as usize, height(timeline) as usize);
    draw(timeline, title, &mut canvas);
    canvas.finish()
}

/// Returns the names and colours of the legend.
fn legend(timeline: &Timeline) -> Vec<(String, Colour)> {
    let bands = timeline.bands.iter().zip(BANDS.iter().cycle());
    let mut all: Vec<(String, Colour)> = bands.map(|(band, colour)| (band.name.clone(), *colour)).collect();
    if timeline.rest_groups > 0 {
        all.push((format!("{} others", timeline.rest_groups), REST));
    }
    if timeline.reserved.is_some() {
        all.push(("reserved by pools".to_owned(), RESERVED));
    }
    if timeline.unexplained.is_some() {
        all.push((
            "in use on devices, and not by these pools".to_owned(),
            UNEXPLAINED,
        ));
    }
    all
}

fn height(timeline: &Timeline) -> f64 {
    TALL + LINE * (legend(timeline).len().div_ceil(2) as f64) + 12.0
}

fn draw(timeline: &Timeline, title: &str, canvas: &mut impl Canvas) {
    let bottom = TALL - 40.0;
    let most = highest(timeline).max(1) as f64;
    let scale = (bottom - TOP) / most;
    let y = |bytes: f64| bottom - bytes * scale;
    let width = WIDE - LEFT - RIGHT;
    canvas.text((LEFT, 24.0), &one_line(title, 120), Side::Right);
    axes(timeline, most, canvas, &y, bottom);
    stack(timeline, canvas, &y, width);
    if let Some(reserved) = &timeline.reserved {
        let heights: Vec<f64> = reserved.iter().map(|sample| y(sample.most as f64)).collect();
        canvas.line(LEFT, width, &heights, RESERVED);
    }
    for (at, (name, colour)) in legend(timeline).into_iter().enumerate() {
        let left = LEFT + (at % 2) as f64 * width / 2.0;
        let line = TALL + LINE * (at / 2) as f64;
        canvas.square((left, line - 10.0), colour);
        canvas.text((left + 18.0, line), &one_line(&name, 54), Side::Right);
    }
}

/// Returns the highest value in the drawing, in bytes.
fn highest(timeline: &Timeline) -> u64 {
    let most = |samples: &[Sample]| samples.iter().map(|sample| sample.most).max().unwrap_or(0);
    let reserved = timeline.reserved.as_deref().map_or(0, most);
    let beyond = timeline.unexplained.as_deref().unwrap_or_default();
    let below = timeline.reserved.as_deref().unwrap_or(&timeline.total);
    let with_beyond = beyond
        .iter()
        .zip(below)
        .map(|(a, b)| a.most.saturating_add(b.most))
        .max();
    most(&timeline.total).max(reserved).max(with_beyond.unwrap_or(0))
}

/// Draws the bands on top of each other. Each column uses the moment at which all groups together held most,
/// so that the top is never below the peak.
fn stack(timeline: &Timeline, canvas: &mut impl Canvas, y: &impl Fn(f64) -> f64, width: f64) {
    let bands = timeline.bands.iter().zip(BANDS.iter().cycle());
    let bands = bands.map(|(band, colour)| (&band.samples, *colour, band.name.as_str()));
    let mut below = vec![0.0; timeline.columns()];
    for (samples, colour, name) in bands.chain([(&timeline.rest, REST, "others")]) {
        let mut heights = Vec::with_capacity(below.len());
        for (under, sample) in below.iter_mut().zip(samples) {
            let over = *under + sample.at_peak as f64;
            heights.push((y(over), y(*under)));
            *under = over;
        }
        canvas.area(LEFT, width, &heights, colour, name);
    }
    if let Some(beyond) = &timeline.unexplained {
        let base = timeline.reserved.as_deref().unwrap_or(&timeline.total);
        let heights: Vec<(f64, f64)> = base
            .iter()
            .zip(beyond)
            .map(|(under, over)| (y(under.most as f64 + over.most as f64), y(under.most as f64)))
            .collect();
        canvas.area(
            LEFT,
            width,
            &heights,
            UNEXPLAINED,
            "in use, and not by these pools",
        );
    }
}

fn axes(timeline: &Timeline, most: f64, canvas: &mut impl Canvas, y: &impl Fn(f64) -> f64, bottom: f64) {
    let right = WIDE - RIGHT;
    for mark in marks(most) {
        let at = y(mark);
        canvas.rule((LEFT, at), (right, at), PALE);
        canvas.text(
            (LEFT - 8.0, at + 4.0),
            &display_size(mark as u64).to_string(),
            Side::Left,
        );
    }
    canvas.rule((LEFT, bottom), (right, bottom), INK);
    let span = timeline.to.saturating_sub(timeline.from) as f64;
    if timeline.by_rows {
        canvas.text(
            (LEFT, bottom + 18.0),
            "in the order of events: the recording has no times",
            Side::Right,
        );
        return;
    }
    for part in 0..=4 {
        let at = timeline.from as f64 + span * f64::from(part) / 4.0;
        let x = LEFT + (right - LEFT) * f64::from(part) / 4.0;
        let side = match part {
            0 => Side::Right,
            4 => Side::Left,
            _ => Side::Middle,
        };
        canvas.rule((x, bottom), (x, bottom + 5.0), INK);
        canvas.text((x, bottom + 18.0), &seconds(at), side);
    }
}

/// Returns at most eight numbers of bytes from 0 to `most`: the multiples of a power of two.
fn marks(most: f64) -> Vec<f64> {
    let mut step = 1.0;
    while most / step > 7.0 {
        step *= 2.0;
    }
    (0..)
        .map(|n| f64::from(n) * step)
        .take_while(|mark| *mark <= most)
        .collect()
}

fn seconds(nanoseconds: f64) -> String {
    match nanoseconds {
        0.0 => "0 s".to_owned(),
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}
