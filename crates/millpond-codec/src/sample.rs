//! Chooses a scheme from a few blocks, and estimates what it achieves.

use crate::block::Packer;
use crate::{BLOCK, Scheme, Transform};
use std::time::Instant;

/// The bytes of data for each block of a sample, so that larger data has a larger sample.
const SHARE: usize = 64 * BLOCK;
/// The maximum number of blocks of a sample.
const MOST: usize = 16;

/// The type of the values in some data, with the size of a value in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Bytes, which may be parts of larger values.
    Bytes,
    /// Integers with or without a sign.
    Integers(usize),
    /// Floating-point numbers.
    Floats(usize),
}

/// The result of a [`sample`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Sample {
    /// The scheme with the fewest bytes.
    pub scheme: Scheme,
    /// The packed size divided by the size of the data.
    pub share: f64,
    /// The bytes that one thread packs in a second.
    pub speed: f64,
    /// The bytes that were packed for the sample.
    pub bytes: usize,
}

/// Packs a few blocks of the data by each scheme that may fit, and some more by the best one. Returns `None` if the data has no whole block.
#[must_use]
pub fn sample(data: &[u8], values: Values) -> Option<Sample> {
    let blocks = data.as_chunks::<BLOCK>().0;
    if blocks.is_empty() {
        return None;
    }
    let looked = (data.len() / SHARE).clamp(2, MOST).min(blocks.len());
    let mut bytes = 0;
    let mut measure = |packer: &mut Packer, looked: usize| {
        bytes += looked * BLOCK;
        // The blocks are in the middle of parts of equal size, so that neither end has more weight.
        let sizes = (0..looked).map(|number| {
            packer
                .pack(&blocks[(2 * number + 1) * blocks.len() / (2 * looked)])
                .len()
                + 4
        });
        sizes.sum::<usize>() as f64 / (looked * BLOCK) as f64
    };
    let tried = candidates(values).map(|scheme| {
        let mut packer = Packer::new(scheme);
        (measure(&mut packer, looked.div_ceil(8)), packer)
    });
    let (_, mut packer) = tried.min_by(|one, other| one.0.total_cmp(&other.0))?;
    let begun = Instant::now();
    let share = measure(&mut packer, looked);
    let seconds = begun.elapsed().as_secs_f64();
    Some(Sample {
        scheme: packer.scheme(),
        share,
        speed: (looked * BLOCK) as f64 / seconds.max(1e-9),
        bytes,
    })
}

/// Returns the schemes that may fit these values.
fn candidates(values: Values) -> impl Iterator<Item = Scheme> {
    use Transform::{Delta, None, Rotate, Zigzag};
    let (widths, transforms): (&[usize], &[Transform]) = match values {
        Values::Bytes => (&[1, 2, 4, 8], &Transform::ALL),
        Values::Integers(width) => (only(width), &[None, Zigzag, Delta]),
        Values::Floats(width) => (only(width), &[None, Rotate]),
    };
    let of = |width: &usize| {
        let width = *width;
        transforms.iter().map(move |transform| Scheme {
            width,
            transform: *transform,
        })
    };
    widths.iter().flat_map(of)
}

/// Returns the largest width of a scheme that divides this one.
fn only(width: usize) -> &'static [usize] {
    match width {
        width if width.is_multiple_of(8) => &[8],
        width if width.is_multiple_of(4) => &[4],
        width if width.is_multiple_of(2) => &[2],
        _ => &[1],
    }
}
