//! Draws a picture as SVG with paths that step from column to column.

use super::{Canvas, Colour, Side};
use crate::web::text::{Text, one_line};
use std::fmt::Write;

pub(super) struct Svg {
    text: String,
}

impl Svg {
    pub(super) fn new(wide: f64, tall: f64) -> Self {
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {tall}\" font-family=\"sans-serif\" font-size=\"13\">\n<metadata>millpond</metadata>\n"
        );
        let _ = writeln!(text, "<rect width=\"{wide}\" height=\"{tall}\" fill=\"#fff\"/>");
        Self { text }
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

fn hex([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Draws steps through heights. Columns of equal height share one step.
fn steps(path: &mut String, columns: impl Iterator<Item = (f64, f64, f64)>) {
    let mut before: Option<f64> = None;
    let mut end = None;
    for (from, to, height) in columns {
        // A difference of a hundredth of a point is not visible.
        if before.is_none_or(|before| (before - height).abs() >= 0.01) {
            let _ = write!(path, "H{from:.1}V{height:.2}");
            before = Some(height);
        }
        end = Some(to);
    }
    if let Some(to) = end {
        let _ = write!(path, "H{to:.1}");
    }
}

impl Canvas for Svg {
    fn area(&mut self, left: f64, width: f64, heights: &[(f64, f64)], colour: Colour, name: &str) {
        if heights.iter().all(|(over, under)| under - over < 0.01) {
            return;
        }
        let across = width / heights.len().max(1) as f64;
        let x = |column: usize| left + column as f64 * across;
        let first = heights.first().map_or(0.0, |(_, under)| *under);
        let mut path = format!("M{left:.1} {first:.2}");
        steps(
            &mut path,
            heights
                .iter()
                .enumerate()
                .map(|(at, (over, _))| (x(at), x(at + 1), *over)),
        );
        let back = heights.iter().enumerate().rev();
        steps(&mut path, back.map(|(at, (_, under))| (x(at + 1), x(at), *under)));
        let _ = writeln!(
            self.text,
            "<path d=\"{path}Z\" fill=\"{}\"><title>{}</title></path>",
            hex(colour),
            Text(&one_line(name, 200))
        );
    }

    fn line(&mut self, left: f64, width: f64, heights: &[f64], colour: Colour) {
        let across = width / heights.len().max(1) as f64;
        let x = |column: usize| left + column as f64 * across;
        let mut path = format!("M{left:.1} {:.2}", heights.first().copied().unwrap_or(0.0));
        steps(
            &mut path,
            heights
                .iter()
                .enumerate()
                .map(|(at, height)| (x(at), x(at + 1), *height)),
        );
        let _ = writeln!(
            self.text,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>",
            hex(colour)
        );
    }

    fn rule(&mut self, from: (f64, f64), to: (f64, f64), colour: Colour) {
        let _ = writeln!(
            self.text,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\"/>",
            from.0,
            from.1,
            to.0,
            to.1,
            hex(colour)
        );
    }

    fn square(&mut self, at: (f64, f64), colour: Colour) {
        let _ = writeln!(
            self.text,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/>",
            at.0,
            at.1,
            hex(colour)
        );
    }

    fn text(&mut self, at: (f64, f64), text: &str, side: Side) {
        let anchor = match side {
            Side::Right => "start",
            Side::Left => "end",
            Side::Middle => "middle",
        };
        let _ = writeln!(
            self.text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"{}\">{}</text>",
            at.0,
            at.1,
            hex(super::INK),
            Text(text)
        );
    }
}
