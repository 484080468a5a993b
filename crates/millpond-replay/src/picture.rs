//! Draws a plan as text and as SVG, with time from left to right and addresses from bottom to top.

use crate::web::text::{Text, one_line};
use millpond_engine::plan::Plan;
use std::fmt::Write;

/// Shades from empty to full.
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];

/// Returns the lifetime of a slot as one or two ranges within the period. Each is the first allocation and
/// one past the last.
fn stretches(at: usize, life: usize, period: usize) -> impl Iterator<Item = (usize, usize)> {
    let end = at + life;
    let first = Some((at, end.min(period)));
    let second = (end > period).then(|| (0, end - period));
    first.into_iter().chain(second)
}

/// Returns start, end, offset, bytes and stream of every block in the plan.
fn blocks(plan: &Plan) -> impl Iterator<Item = (usize, usize, u64, u64, u32)> + '_ {
    let period = plan.step.period();
    let placed = plan.places.iter().zip(&plan.step.slots).enumerate();
    placed
        .filter_map(|(at, (place, slot))| place.map(|p| (at, p, slot)))
        .flat_map(move |(at, place, slot)| {
            stretches(at, slot.life as usize, period)
                .map(move |(from, to)| (from, to, place.offset, slot.bytes, slot.stream.0))
        })
}

/// Draws the plan as shaded text with the highest addresses first. Each character shows how much of its part
/// of time and memory is in use.
#[must_use]
pub fn text(plan: &Plan, columns: usize, rows: usize) -> String {
    let (columns, rows) = (columns.max(1), rows.max(1));
    let period = plan.step.period().max(1) as f64;
    let height = plan.height.max(1) as f64;
    let mut used = vec![0f64; columns * rows];
    for (from, to, offset, bytes, _) in blocks(plan) {
        let (x0, x1) = (
            from as f64 / period * columns as f64,
            to as f64 / period * columns as f64,
        );
        let (y0, y1) = (
            offset as f64 / height * rows as f64,
            (offset + bytes) as f64 / height * rows as f64,
        );
        for row in y0 as usize..(y1.ceil() as usize).min(rows) {
            let tall = (y1.min(row as f64 + 1.0) - y0.max(row as f64)).max(0.0);
            for column in x0 as usize..(x1.ceil() as usize).min(columns) {
                let wide = (x1.min(column as f64 + 1.0) - x0.max(column as f64)).max(0.0);
                used[row * columns + column] += tall * wide;
            }
        }
    }
    let mut picture = String::new();
    for row in (0..rows).rev() {
        let line = used[row * columns..][..columns].iter();
        picture.extend(line.map(|u| SHADES[((u * 4.0).round() as usize).min(4)]));
        picture.truncate(picture.trim_end().len());
        picture.push('\n');
    }
    picture
}

/// Draws the plan as a picture with one rectangle for each block, coloured by stream. The title of a
/// rectangle names its block.
#[must_use]
pub fn svg(plan: &Plan, title: &str) -> String {
    const WIDE: f64 = 1200.0;
    const TALL: f64 = 700.0;
    let across = WIDE / plan.step.period().max(1) as f64;
    let up = TALL / plan.height.max(1) as f64;
    let title = one_line(title, 120);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-10 -40 {} {}\" font-family=\"sans-serif\" font-size=\"14\">\n<metadata>millpond</metadata>\n\
         <text y=\"-16\">{}: one step, {} allocations from left to right, {} bytes from bottom to top</text>\n\
         <rect width=\"{WIDE}\" height=\"{TALL}\" fill=\"#f4f4f0\"/>\n",
        WIDE + 20.0,
        TALL + 80.0,
        Text(&title),
        plan.step.period(),
        plan.height,
    );
    for (number, (from, to, offset, bytes, stream)) in blocks(plan).enumerate() {
        let hue = (210 + 67 * stream) % 360;
        let light = 45 + number % 4 * 8;
        let (x, wide) = (from as f64 * across, (to - from) as f64 * across);
        let (y, tall) = (TALL - (offset + bytes) as f64 * up, bytes as f64 * up);
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{wide:.2}\" height=\"{tall:.2}\" fill=\"hsl({hue},55%,{light}%)\">\
             <title>{bytes} bytes at {offset}, stream {stream}, from {from} to {to}</title></rect>"
        );
    }
    let bound = TALL - plan.lower_bound as f64 * up;
    let _ = write!(
        svg,
        "<line x2=\"{WIDE}\" y1=\"{bound:.2}\" y2=\"{bound:.2}\" stroke=\"#c00\" stroke-dasharray=\"6 4\"/>\n\
         <text y=\"{}\">dashed: the most live bytes at once, {}; no placement needs less</text>\n</svg>\n",
        TALL + 22.0,
        plan.lower_bound,
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_engine::Stream;
    use millpond_engine::plan::{Slot, Step, solve};

    fn plan() -> Plan {
        let slot = |bytes, life| Slot {
            least: bytes,
            bytes,
            stream: Stream::DEFAULT,
            life,
        };
        solve(Step {
            slots: vec![slot(512, 4), slot(512, 1), slot(256, 2), slot(256, 2)],
        })
    }

    #[test]
    fn the_text_shows_where_memory_is_in_use() {
        // The first block fills the lower half all the time. The last one wraps around to the start of the
        // step.
        assert_eq!(text(&plan(), 4, 4).lines().collect::<Vec<_>>().len(), 4);
        let picture = text(&plan(), 4, 4);
        assert!(picture.ends_with("████\n████\n"), "{picture}");
    }

    #[test]
    fn the_svg_has_a_rectangle_for_each_range_and_no_markup_from_names() {
        let svg = svg(&plan(), "a<b>&c\u{1b}[2J\u{0}");
        assert_eq!(svg.matches("<rect").count(), 1 + 5);
        assert!(svg.contains("a&lt;b&gt;&amp;c") && svg.ends_with("</svg>\n"));
        // XML allows no control characters, not even as character references.
        assert!(!svg.contains(|c: char| c.is_control() && c != '\n'), "{svg:?}");
    }
}
