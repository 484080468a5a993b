//! Several threads for one operation, where it pays. With the feature `rayon`; without it everything here is one thread.
//!
//! An output and the inputs that belong to it are cut into parts along the dimension whose neighbours lie furthest apart, so
//! that no part lies between another's elements. Every element comes of the same elements by the same steps whatever the
//! parts are, and sums are added up in an order that only their length decides: results are the same for any number of
//! threads.

use super::error::TensorError;
use super::view::{TensorMut, TensorRef};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most threads that one operation takes; 0 until somebody asked.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// How many threads one operation takes at most.
///
/// Without the feature `rayon` that is 1. With it, what [`set_threads`] said last, or else the environment's
/// `MILLPOND_THREADS`, or as many as rayon has; never more than those. A `MILLPOND_THREADS` that is no number above 0 is told of
/// on standard error, once, and passed over. Small operations take one whatever it is: to
/// wake a thread takes longer than they do.
#[must_use]
pub fn threads() -> usize {
    if !cfg!(feature = "rayon") {
        return 1;
    }
    let limit = match LIMIT.load(Ordering::Relaxed) {
        0 => {
            let limit = std::env::var("MILLPOND_THREADS").map_or(usize::MAX, |said| limit_of(&said));
            // What was set meanwhile holds.
            let set = LIMIT.compare_exchange(0, limit, Ordering::Relaxed, Ordering::Relaxed);
            set.err().unwrap_or(limit)
        }
        limit => limit,
    };
    // One needs nobody else: rayon is not even asked, which would start its threads.
    if limit == 1 { 1 } else { limit.min(available()) }
}

/// What the environment says; as many as there are where it is no number of threads.
fn limit_of(said: &str) -> usize {
    match said.trim().parse() {
        Ok(limit @ 1..) => limit,
        _ => {
            // Nobody to answer: this is asked in the middle of operations. Where standard error is closed nobody hears it.
            let _ = writeln!(
                std::io::stderr(),
                "millpond: MILLPOND_THREADS={said:?} is passed over: write a number above 0"
            );
            usize::MAX
        }
    }
}

/// Limits how many threads one operation takes from now on, in the whole process; 0 is as many as there are. Results do not
/// depend on it. Where several work, rayon takes memory for its threads and queues from the program's allocator, and nothing
/// from a pool.
///
/// ```
/// millpond::set_threads(1);
/// assert_eq!(millpond::threads(), 1);
/// ```
pub fn set_threads(limit: usize) {
    LIMIT.store(if limit == 0 { usize::MAX } else { limit }, Ordering::Relaxed);
}

#[cfg(feature = "rayon")]
fn available() -> usize {
    use std::sync::atomic::AtomicU32;
    /// The process whose threads they are. A fork's child has none of them, and would wait for ever.
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    let here = std::process::id();
    match PROCESS.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed) {
        Err(process) if process != here => 1,
        _ => rayon::current_num_threads(),
    }
}

#[cfg(not(feature = "rayon"))]
fn available() -> usize {
    1
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_of_threads_is_passed_over() {
        assert_eq!(["1", " 12 "].map(limit_of), [1, 12]);
        assert_eq!(["", "0", "-1", "all", "1.5"].map(limit_of), [usize::MAX; 5]);
    }
}
