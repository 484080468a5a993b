//! Draws a picture as pixels and encodes it as a PNG file, with eight bits for each colour, unfiltered rows
//! and one zlib stream.

use super::{Canvas, Colour, INK, Side, font};
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use std::io::Write;

/// The width and height of a point of the drawing, in pixels.
const SCALE: usize = 2;

pub(super) struct Png {
    wide: usize,
    tall: usize,
    pixels: Vec<u8>,
}

impl Png {
    pub(super) fn new(wide: usize, tall: usize) -> Self {
        let (wide, tall) = (wide * SCALE, tall * SCALE);
        Self {
            wide,
            tall,
            pixels: vec![255; wide * tall * 3],
        }
    }

    /// Fills a rectangle in pixels. Parts outside the picture are clipped.
    fn fill(&mut self, x: (f64, f64), y: (f64, f64), colour: Colour) {
        let clamp = |at: f64, most: usize| (at.round().max(0.0) as usize).min(most);
        let (left, right) = (clamp(x.0, self.wide), clamp(x.1, self.wide));
        for row in clamp(y.0, self.tall)..clamp(y.1, self.tall) {
            let from = (row * self.wide + left) * 3;
            let to = (row * self.wide + right.max(left)) * 3;
            for pixel in self.pixels[from..to].chunks_exact_mut(3) {
                pixel.copy_from_slice(&colour);
            }
        }
    }

    pub(super) fn finish(self) -> std::io::Result<Vec<u8>> {
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut header = Vec::with_capacity(13);
        header.extend((self.wide as u32).to_be_bytes());
        header.extend((self.tall as u32).to_be_bytes());
        // Eight bits per channel; red, green and blue; the only compression and filter methods that PNG
        // defines; not interlaced.
        header.extend([8, 2, 0, 0, 0]);
        chunk(&mut out, *b"IHDR", &header);
        chunk(&mut out, *b"tEXt", b"Software\0millpond");
        let mut rows = ZlibEncoder::new(Vec::new(), Compression::default());
        for row in self.pixels.chunks_exact(self.wide * 3) {
            rows.write_all(&[0])?;
            rows.write_all(row)?;
        }
        chunk(&mut out, *b"IDAT", &rows.finish()?);
        chunk(&mut out, *b"IEND", &[]);
        Ok(out)
    }
}

/// Appends a chunk: length, name, content, and the checksum of name and content.
fn chunk(out: &mut Vec<u8>, name: [u8; 4], content: &[u8]) {
    let mut sum = Crc::new();
    sum.update(&name);
    sum.update(content);
    out.extend((content.len() as u32).to_be_bytes());
    out.extend(name);
    out.extend(content);
    out.extend(sum.sum().to_be_bytes());
}

impl Canvas for Png {
    fn area(&mut self, left: f64, width: f64, heights: &[(f64, f64)], colour: Colour, _: &str) {
        let scale = SCALE as f64;
        let across = width / heights.len().max(1) as f64;
        for (column, (over, under)) in heights.iter().enumerate() {
            let x = left + column as f64 * across;
            self.fill(
                (x * scale, (x + across) * scale),
                (over * scale, under * scale),
                colour,
            );
        }
    }

    fn line(&mut self, left: f64, width: f64, heights: &[f64], colour: Colour) {
        let scale = SCALE as f64;
        let across = width / heights.len().max(1) as f64;
        let mut before = heights.first().copied().unwrap_or(0.0);
        for (column, height) in heights.iter().enumerate() {
            let x = (left + column as f64 * across) * scale;
            let (top, low) = (height.min(before) * scale, height.max(before) * scale);
            self.fill((x, x + scale), (top, low + scale), colour);
            self.fill(
                (x, x + across * scale),
                (height * scale, (height + 1.0) * scale),
                colour,
            );
            before = *height;
        }
    }

    fn rule(&mut self, from: (f64, f64), to: (f64, f64), colour: Colour) {
        let scale = SCALE as f64;
        let x = (from.0.min(to.0) * scale, from.0.max(to.0) * scale + 1.0);
        let y = (from.1.min(to.1) * scale, from.1.max(to.1) * scale + 1.0);
        self.fill(x, y, colour);
    }

    fn square(&mut self, at: (f64, f64), colour: Colour) {
        let scale = SCALE as f64;
        self.fill(
            (at.0 * scale, (at.0 + 12.0) * scale),
            (at.1 * scale, (at.1 + 12.0) * scale),
            colour,
        );
    }

    fn text(&mut self, at: (f64, f64), text: &str, side: Side) {
        let scale = SCALE as f64;
        let wide = text.chars().count() as f64 * font::ADVANCE;
        let left = match side {
            Side::Right => at.0,
            Side::Left => at.0 - wide,
            Side::Middle => at.0 - wide / 2.0,
        };
        for (place, letter) in text.chars().enumerate() {
            let x = (left + place as f64 * font::ADVANCE) * scale;
            let y = (at.1 - font::HEIGHT) * scale;
            let dot = font::DOT * scale;
            for (column, row) in font::dots(letter) {
                let (x, y) = (x + column as f64 * dot, y + row as f64 * dot);
                self.fill((x, x + dot), (y, y + dot), INK);
            }
        }
    }
}
