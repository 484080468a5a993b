//! Runs one operation on several threads if that is faster.
//!
//! An output and its inputs are split along the dimension with the largest stride, so that the parts are not interleaved in memory.
//! Every element is computed from the same elements by the same steps regardless of the parts, and the order of additions in a sum
//! depends only on its length. The results are therefore equal for any number of threads.

use super::error::TensorError;
use super::view::{TensorMut, TensorRef};
use millpond_os::threads::available;
pub(super) use millpond_os::threads::threads;

/// The least number of bytes of an output, or of the operand of a sum, for each thread. Waking a thread and waiting for it has to
/// be cheap in comparison, even if it is not scheduled immediately. On two processors, one of them busy, two threads took a quarter
/// longer than one thread for 4 MB, and as long as one from 64 MB on (`millpond-bench --bin tensors`, 2026).
#[cfg(not(test))]
const LEAST: usize = 8 << 20;
#[cfg(test)]
const LEAST: usize = 1 << 8;

/// Returns the number of parts for an operation on this number of bytes.
#[inline]
pub(super) fn parts(bytes: usize) -> usize {
    if !cfg!(feature = "rayon") || bytes < 2 * LEAST {
        return 1;
    }
    threads().min(bytes / LEAST)
}

/// Returns the number of parts for work of unknown cost: several for each thread, because some parts may take longer than others,
/// or one for each thread if fewer threads are used than are available.
pub(super) fn tasks() -> usize {
    match threads() {
        1 => 1,
        threads if threads < available() => threads,
        threads => 4 * threads,
    }
}

/// Runs both functions in parallel if threads are available. If one panics, this panics after both have ended.
#[cfg(feature = "rayon")]
pub(super) fn both<A: Send, B: Send>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B + Send,
) -> (A, B) {
    rayon::join(one, other)
}

/// Runs both functions, one after the other.
#[cfg(not(feature = "rayon"))]
pub(super) fn both<A, B>(one: impl FnOnce() -> A, other: impl FnOnce() -> B) -> (A, B) {
    (one(), other())
}

/// Work on a part of an output and of `N` inputs of the same shape.
pub(super) trait Work<const N: usize>:
    Fn(TensorMut<'_>, [TensorRef<'_>; N]) -> Result<(), TensorError> + Sync
{
}

impl<const N: usize, F> Work<N> for F where
    F: Fn(TensorMut<'_>, [TensorRef<'_>; N]) -> Result<(), TensorError> + Sync
{
}

/// Runs work in `parts` parallel parts, or in fewer if the parts would be interleaved in memory.
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

/// Returns the dimension to split and the index of the split.
fn cut(out: &TensorMut<'_>, parts: usize) -> Option<(usize, usize)> {
    if parts < 2 {
        return None;
    }
    let dims = out.strides().iter().zip(out.shape()).enumerate();
    let widest = dims.filter(|(_, (_, size))| **size > 1);
    let (dim, (_, size)) = widest.max_by_key(|(_, (stride, _))| **stride)?;
    // The index is clamped so that neither part is empty.
    let at = (size * (parts / 2) / parts).clamp(1, size - 1);
    Some((dim, at))
}
