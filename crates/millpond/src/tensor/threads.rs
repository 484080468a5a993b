//! Several threads for one operation, where it pays.
//!
//! An output and the inputs that belong to it are cut into parts along the dimension whose neighbours lie furthest apart, so
//! that no part lies between another's elements. Every element comes of the same elements by the same steps whatever the
//! parts are, and sums are added up in an order that only their length decides: results are the same for any number of
//! threads.

use super::error::TensorError;
use super::view::{TensorMut, TensorRef};
use crate::threads::available;
pub(super) use crate::threads::threads;

/// Bytes of an output, or of what is summed, for each thread at least: to wake one and wait for it has to be small beside
/// them even where it does not come at once. On two processors of which one was taken, two threads took a quarter longer
/// over 4 MB, and as long as one from 64 MB on (`millpond-bench --bin tensors`, 2026).
#[cfg(not(test))]
const LEAST: usize = 8 << 20;
#[cfg(test)]
const LEAST: usize = 1 << 8;

/// In how many parts to work on so many bytes.
#[inline]
pub(super) fn parts(bytes: usize) -> usize {
    if !cfg!(feature = "rayon") || bytes < 2 * LEAST {
        return 1;
    }
    threads().min(bytes / LEAST)
}

/// In how many parts to do work of which nothing is known: several for each thread, as some may take longer than others.
pub(super) fn tasks() -> usize {
    match threads() {
        1 => 1,
        threads if threads < available() => threads,
        threads => 4 * threads,
    }
}

/// Both at once, if there are threads for it; if either panics, so does this when both have ended.
#[cfg(feature = "rayon")]
pub(super) fn both<A: Send, B: Send>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B + Send,
) -> (A, B) {
    rayon::join(one, other)
}

/// One after the other.
#[cfg(not(feature = "rayon"))]
pub(super) fn both<A, B>(one: impl FnOnce() -> A, other: impl FnOnce() -> B) -> (A, B) {
    (one(), other())
}

/// Work on parts of an output and of as many inputs of its shape.
pub(super) trait Work<const N: usize>:
    Fn(TensorMut<'_>, [TensorRef<'_>; N]) -> Result<(), TensorError> + Sync
{
}

impl<const N: usize, F> Work<N> for F where
    F: Fn(TensorMut<'_>, [TensorRef<'_>; N]) -> Result<(), TensorError> + Sync
{
}

/// Does work in so many parts at once, in fewer where they would lie between each other.
pub(super) fn share<const N: usize>(
    mut out: TensorMut<'_>,
    inputs: [TensorRef<'_>; N],
    parts: usize,
    work: &impl Work<N>,
) -> Result<(), TensorError> {
    let Some((dim, at)) = cut(&out, parts) else {
        return work(out, inputs);
    };
    if out.reborrow().split_at(dim, at).is_err() {
        return work(out, inputs);
    }
    let (first, second) = out.split_at(dim, at)?;
    let (mut head, mut tail) = (inputs, inputs);
    for ((head, tail), input) in head.iter_mut().zip(&mut tail).zip(inputs) {
        (*head, *tail) = (input.slice(dim, ..at)?, input.slice(dim, at..)?);
    }
    let fewer = parts / 2;
    let (one, other) = both(
        || share(first, head, fewer, work),
        || share(second, tail, parts - fewer, work),
    );
    one.and(other)
}

/// The dimension to cut along, and where.
fn cut(out: &TensorMut<'_>, parts: usize) -> Option<(usize, usize)> {
    if parts < 2 {
        return None;
    }
    let dims = out.strides().iter().zip(out.shape()).enumerate();
    let widest = dims.filter(|(_, (_, size))| **size > 1);
    let (dim, (_, size)) = widest.max_by_key(|(_, (stride, _))| **stride)?;
    // Rounded, and neither part empty.
    let at = (size * (parts / 2) / parts).clamp(1, size - 1);
    Some((dim, at))
}
