//! A large tensor piece by piece.

use super::Tensor;
use super::error::TensorError;
use super::view::{TensorMut, TensorRef};
use std::iter::FusedIterator;

/// Views of some places of a dimension at a time. Made by [`Tensor::batches`] and [`TensorRef::batches`].
#[derive(Clone, Debug)]
pub struct Batches<V> {
    whole: V,
    dim: usize,
    size: usize,
    /// What of the dimension is still to come.
    next: usize,
    end: usize,
}

impl<V> Batches<V> {
    pub(super) fn new(whole: V, end: usize, dim: usize, size: usize) -> Result<Self, TensorError> {
        if size == 0 {
            return Err(TensorError::Zero { what: "a batch" });
        }
        Ok(Self {
            whole,
            dim,
            size,
            next: 0,
            end,
        })
    }

    fn take(&mut self) -> Option<(usize, usize)> {
        let start = self.next;
        self.next = start.saturating_add(self.size).min(self.end);
        (start < self.end).then_some((start, self.next))
    }

    /// The last batch that is still to come, which is the short one where they do not come out even.
    fn take_back(&mut self) -> Option<(usize, usize)> {
        let (start, end) = (self.next, self.end);
        let last = end.checked_sub(1)?.checked_sub(start)?;
        self.end = start + last / self.size * self.size;
        Some((self.end, end))
    }
}

macro_rules! batches {
    ($view:ty $(, $life:lifetime)?) => {
        impl$(<$life>)? Iterator for Batches<$view> {
            type Item = $view;

            fn next(&mut self) -> Option<$view> {
                let (start, end) = self.take()?;
                self.whole.slice(self.dim, start..end).ok()
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                let left = (self.end - self.next).div_ceil(self.size);
                (left, Some(left))
            }
        }

        impl$(<$life>)? DoubleEndedIterator for Batches<$view> {
            fn next_back(&mut self) -> Option<$view> {
                let (start, end) = self.take_back()?;
                self.whole.slice(self.dim, start..end).ok()
            }
        }

        impl$(<$life>)? ExactSizeIterator for Batches<$view> {}
        impl$(<$life>)? FusedIterator for Batches<$view> {}
    };
}

batches!(Tensor);
#[cfg(feature = "cuda")]
batches!(super::device::DeviceTensor);
batches!(TensorRef<'a>, 'a);

/// Views of some places of a dimension at a time, to write: each may go to a thread of its own. Made by
/// [`TensorMut::batches`].
#[derive(Debug)]
pub struct BatchesMut<'a> {
    /// What is still to come; none at the end.
    rest: Option<TensorMut<'a>>,
    dim: usize,
    size: usize,
}

impl<'a> TensorMut<'a> {
    /// Views of so many places of a dimension at a time, in order, to be written apart from each other; the last is short
    /// where they do not come out even.
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
    /// Where there is no such dimension, the number is 0, or the batches lie between each other in memory
    /// ([`TensorError::Interleaved`]); those of the first dimension of a contiguous tensor never do.
    pub fn batches(mut self, dim: usize, size: usize) -> Result<BatchesMut<'a>, TensorError> {
        let whole = self.size(dim)?;
        if size == 0 {
            return Err(TensorError::Zero { what: "a batch" });
        }
        if size < whole {
            // As the first two lie, so do all.
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
