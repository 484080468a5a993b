//! An iterator over parts of slices.

use std::iter::FusedIterator;

/// Slices that can be split at the same index.
pub trait Split: Default {
    /// Returns the number of elements of the shortest slice.
    fn elements(&self) -> usize;

    /// Splits the elements before index `mid`. If there are fewer elements, all of them are in the first part.
    #[must_use]
    fn split(self, mid: usize) -> (Self, Self);
}

/// A shared or mutable slice that can be split into slices of the same kind.
pub trait Cut: Sized {
    /// Splits the elements before index `mid`. If there are fewer elements, all of them are in the first part.
    #[must_use]
    fn cut(self, mid: usize) -> (Self, Self);
}

impl<T> Cut for &[T] {
    #[inline]
    fn cut(self, mid: usize) -> (Self, Self) {
        self.split_at(mid.min(self.len()))
    }
}

impl<T> Cut for &mut [T] {
    #[inline]
    fn cut(self, mid: usize) -> (Self, Self) {
        self.split_at_mut(mid.min(self.len()))
    }
}

/// An iterator over parts of the slices of a structure of arrays. All parts have the same number of elements, except that the last
/// may have fewer.
///
/// Types that `derive(Soa)` generates have the methods `chunks` and `chunks_mut`. The parts can be sent to
/// threads.
///
/// ```
/// use millpond::Soa;
///
/// #[derive(Soa)]
/// struct Cell { heat: f32, flow: [f32; 2] }
///
/// let mut cells = CellVec::try_from_slice(&[const { Cell { heat: 0.0, flow: [1.0; 2] } }; 10])?;
/// let parts = cells.chunks_mut(4);
/// assert_eq!(parts.len(), 3);
/// std::thread::scope(|threads| {
///     for (number, part) in parts.enumerate() {
///         threads.spawn(move || part.heat.fill(number as f32));
///     }
/// });
/// assert_eq!(cells.heat(), [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
/// # Ok::<(), millpond::AllocError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SoaChunks<S> {
    rest: S,
    /// The number of elements of a part. Invariant: not 0.
    len: usize,
}

/// Returns an iterator over parts of `len` elements. A length of 0 means 1.
pub fn chunks<S: Split>(slices: S, len: usize) -> SoaChunks<S> {
    SoaChunks {
        rest: slices,
        len: len.max(1),
    }
}

impl<S: Split> Iterator for SoaChunks<S> {
    type Item = S;

    fn next(&mut self) -> Option<S> {
        if self.rest.elements() == 0 {
            return None;
        }
        let (part, rest) = std::mem::take(&mut self.rest).split(self.len);
        self.rest = rest;
        Some(part)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let parts = self.rest.elements().div_ceil(self.len);
        (parts, Some(parts))
    }
}

impl<S: Split> ExactSizeIterator for SoaChunks<S> {}
impl<S: Split> FusedIterator for SoaChunks<S> {}
