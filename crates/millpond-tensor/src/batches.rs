//! Iterators over a large tensor, batch by batch.

use super::error::TensorError;
use super::view::TensorMut;
use std::iter::FusedIterator;
use std::ops::Range;

/// An iterator over views of consecutive parts of a dimension. [`Tensor::batches`](crate::Tensor::batches) and
/// [`TensorRef::batches`](crate::TensorRef::batches) create it.
#[derive(Clone, Debug)]
pub struct Batches<V> {
    whole: V,
    dim: usize,
    size: usize,
    /// The start of the part of the dimension that is not yet returned.
    next: usize,
    end: usize,
}

impl<V> Batches<V> {
    pub(super) fn new(whole: V, end: usize, dim: usize, size: usize) -> Result<Self, TensorError> {
        if size == 0 {
            return Err(TensorError::Zero {
                what: "the size of a batch",
            });
        }
        Ok(Self {
            whole,
            dim,
            size,
            next: 0,
            end,
        })
    }
}

/// A view whose parts are views of the same type. The tensor types that have batches implement this trait.
pub trait Batched: Sized {
    /// Returns the view of a part of a dimension, or `None` if the part lies outside the dimension.
    fn part(&self, dim: usize, places: Range<usize>) -> Option<Self>;
}

impl<V: Batched> Iterator for Batches<V> {
    type Item = V;

    fn next(&mut self) -> Option<V> {
        let start = self.next;
        self.next = start.saturating_add(self.size).min(self.end);
        if start == self.next {
            return None;
        }
        self.whole.part(self.dim, start..self.next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.next).div_ceil(self.size);
        (left, Some(left))
    }
}

impl<V: Batched> DoubleEndedIterator for Batches<V> {
    /// Removes the last batch that is not yet returned. It is the smaller one if the size does not divide the dimension.
    fn next_back(&mut self) -> Option<V> {
        let end = self.end;
        let last = end.checked_sub(1)?.checked_sub(self.next)?;
        self.end = self.next + last / self.size * self.size;
        self.whole.part(self.dim, self.end..end)
    }
}

impl<V: Batched> ExactSizeIterator for Batches<V> {}
impl<V: Batched> FusedIterator for Batches<V> {}

/// An iterator over mutable views of consecutive parts of a dimension. Each view may be sent to another thread.
/// [`TensorMut::batches`] creates it.
#[derive(Debug)]
pub struct BatchesMut<'a> {
    /// The part that is not yet returned, or `None` at the end.
    rest: Option<TensorMut<'a>>,
    dim: usize,
    size: usize,
}

impl<'a> TensorMut<'a> {
    /// Returns an iterator over mutable views of consecutive parts of a dimension, in order. Each part has `size` indices, and
    /// the last may be smaller.
    ///
    /// ```
    /// use millpond::{DType, Tensor};
    ///
    /// let mut image = Tensor::zeros([5, 100], DType::F32)?;
    /// std::thread::scope(|threads| {
    ///     for (at, mut rows) in image.view_mut()?.batches(0, 2)?.enumerate() {
    ///         threads.spawn(move || rows.fill(at as f32));
    ///     }
    ///     Ok::<(), millpond::TensorError>(())
    /// })?;
    /// assert_eq!(image.select(1, 7)?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 2.0]);
    /// # Ok::<(), millpond::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the dimension does not exist, if `size` is 0, or if the batches are interleaved in memory
    /// ([`TensorError::Interleaved`]). Batches of the first dimension of a contiguous tensor are never interleaved.
    pub fn batches(mut self, dim: usize, size: usize) -> Result<BatchesMut<'a>, TensorError> {
        let whole = self.size(dim)?;
        if size == 0 {
            return Err(TensorError::Zero {
                what: "the size of a batch",
            });
        }
        if size < whole {
            // If the first two batches can be split, all can.
            self.reborrow().split_at(dim, size)?;
        }
        Ok(BatchesMut {
            rest: (whole > 0).then_some(self),
            dim,
            size,
        })
    }
}

impl<'a> Iterator for BatchesMut<'a> {
    type Item = TensorMut<'a>;

    fn next(&mut self) -> Option<TensorMut<'a>> {
        let rest = self.rest.take()?;
        if rest.size(self.dim).ok()? <= self.size {
            return Some(rest);
        }
        let (batch, rest) = rest.split_at(self.dim, self.size).ok()?;
        self.rest = Some(rest);
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.as_ref().and_then(|rest| rest.size(self.dim).ok());
        let left = left.unwrap_or(0).div_ceil(self.size);
        (left, Some(left))
    }
}

impl ExactSizeIterator for BatchesMut<'_> {}
impl FusedIterator for BatchesMut<'_> {}
