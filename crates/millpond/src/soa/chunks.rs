//! Parts of slices, one after the other.

use std::iter::FusedIterator;

/// Slices that can be split, all at the same place.
pub trait Split: Default {
    /// Elements of the shortest.
    fn elements(&self) -> usize;

    /// Those before a place, and those from there on; all of them before it where there are fewer.
    #[must_use]
    fn split(self, mid: usize) -> (Self, Self);
}

/// A slice that is split as it may be used, read or written. The place is inside.
pub trait Cut: Sized {
    /// What is before the place, and what from there on.
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

/// Parts of the slices of a structure of arrays, of so many elements each; the last may have fewer.
///
/// What [`derive(Soa)`](derive@crate::Soa) makes has `chunks` and `chunks_mut`, whose parts may go to threads.
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
    /// Elements of a part. Invariant: not 0.
    len: usize,
}

/// Parts of `len` elements, or of one where that is 0.
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
