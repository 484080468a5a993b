//! The digits to learn. They are drawn with a random strength at a random place on a noisy canvas, and written to
//! `.npy` files. Each row is the canvas followed by the digit.

use millpond::{Npy, TensorError, TensorRef};
use std::error::Error;
use std::path::PathBuf;

pub(crate) const SIDE: usize = 10;
pub(crate) const PIXELS: usize = SIDE * SIDE;
pub(crate) const CLASSES: usize = 10;
/// The elements of a row.
pub(crate) const ROW: usize = PIXELS + 1;

const WIDTH: usize = 5;
const HEIGHT: usize = 7;
/// Each number is a line of a glyph, with its highest bit on the left.
const GLYPHS: [[u8; HEIGHT]; CLASSES] = [
    [0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110],
    [0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110],
    [0b01110, 0b10001, 0b00001, 0b00010, 0b00100, 0b01000, 0b11111],
    [0b11111, 0b00010, 0b00100, 0b00010, 0b00001, 0b10001, 0b01110],
    [0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010],
    [0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110],
    [0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110],
    [0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000],
    [0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110],
    [0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100],
];

/// Pseudo-random numbers that are the same in every run (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 up to, but not including, `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns a number between `-most` and `most`.
    pub(crate) fn around(&mut self, most: f32) -> f32 {
        let part = (self.next() >> 40) as f32 / (1u32 << 24) as f32;
        most * (2.0 * part - 1.0)
    }
}

fn draw(random: &mut Random, row: &mut [f32]) {
    let class = random.below(CLASSES);
    let (left, top) = (random.below(SIDE - WIDTH + 1), random.below(SIDE - HEIGHT + 1));
    let strength = 0.75 + random.around(0.25);
    for (at, pixel) in row[..PIXELS].iter_mut().enumerate() {
        let (x, y) = ((at % SIDE).wrapping_sub(left), (at / SIDE).wrapping_sub(top));
        let inside = x < WIDTH && y < HEIGHT;
        let inked = inside && GLYPHS[class][y] >> (WIDTH - 1 - x) & 1 == 1;
        *pixel = if inked { strength } else { 0.0 } + random.around(0.25);
    }
    row[PIXELS] = class as f32;
}

/// The two files, which are removed on drop.
pub(crate) struct Digits {
    pub(crate) to_learn: PathBuf,
    pub(crate) to_test: PathBuf,
}

impl Digits {
    pub(crate) fn write(to_learn: usize, to_test: usize) -> Result<Self, Box<dyn Error>> {
        let path = |what| std::env::temp_dir().join(format!("millpond-{what}-{}.npy", std::process::id()));
        let digits = Self {
            to_learn: path("learn"),
            to_test: path("test"),
        };
        let mut random = Random(1);
        for (path, rows) in [(&digits.to_learn, to_learn), (&digits.to_test, to_test)] {
            let mut all = vec![0.0; rows * ROW];
            all.chunks_exact_mut(ROW).for_each(|row| draw(&mut random, row));
            Npy::write(path, &[rows as u64, ROW as u64], &all)?;
        }
        Ok(digits)
    }
}

impl Drop for Digits {
    fn drop(&mut self) {
        for path in [&self.to_learn, &self.to_test] {
            // A file that was never written does not exist.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The pixels and digits of some rows, as views without a copy.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub(crate) pixels: TensorRef<'a>,
    pub(crate) digits: TensorRef<'a>,
}

impl<'a> Batch<'a> {
    pub(crate) fn of(rows: TensorRef<'a>) -> Result<Self, TensorError> {
        Ok(Self {
            pixels: rows.slice(1, ..PIXELS)?,
            digits: rows.select(1, PIXELS)?,
        })
    }
}
