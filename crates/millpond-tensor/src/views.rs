//! Views of views: a part, another order of dimensions, another shape. All share the storage, and nothing is copied.

use super::Tensor;
use super::batches::{Batched, Batches};
use super::error::TensorError;
use super::view::{TensorMut, TensorRef};
use std::ops::RangeBounds;

macro_rules! views {
    ($self:ident, [$($receiver:tt)*], $view:ty) => {
        /// Returns a view of the same elements with another shape.
        ///
        /// # Errors
        /// Returns an error if the number of elements does not match the shape, or if the strides do not allow a view of this
        /// shape ([`TensorError::NotAView`]).
        #[inline]
        pub fn reshape($($receiver)*, shape: impl AsRef<[usize]>) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.reshape(shape.as_ref()))
        }

        /// Returns a view of a part of a dimension.
        ///
        /// # Errors
        /// Returns an error if the dimension does not exist, or if the range does not lie inside it.
        #[inline]
        pub fn slice($($receiver)*, dim: usize, range: impl RangeBounds<usize>) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.slice(dim, range))
        }

        /// Returns a view of every `step`-th index of a dimension, starting with 0.
        ///
        /// # Errors
        /// Returns an error if the dimension does not exist, or if the step is 0.
        #[inline]
        pub fn step($($receiver)*, dim: usize, step: usize) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.step(dim, step))
        }

        /// Returns a view of one index of a dimension. The view does not have this dimension.
        ///
        /// # Errors
        /// Returns an error if the dimension does not exist or the index is out of bounds.
        #[inline]
        pub fn select($($receiver)*, dim: usize, at: usize) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.select(dim, at))
        }

        /// Returns a view with two dimensions swapped.
        ///
        /// # Errors
        /// Returns an error if the dimension does not exist.
        #[inline]
        pub fn transpose($($receiver)*, one: usize, other: usize) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.transpose(one, other))
        }

        /// Returns a view with the dimensions in the given order.
        ///
        /// # Errors
        /// Returns an error if the order does not contain each dimension exactly once.
        #[inline]
        pub fn permute($($receiver)*, order: impl AsRef<[usize]>) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.permute(order.as_ref()))
        }

        /// Returns a view without a dimension of size 1.
        ///
        /// # Errors
        /// Returns an error if the dimension does not exist, or if its size is not 1.
        #[inline]
        pub fn squeeze($($receiver)*, dim: usize) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.squeeze(dim))
        }

        /// Returns a view with an additional dimension of size 1 at this index.
        ///
        /// # Errors
        /// Returns an error if the index is larger than the number of dimensions, or if there would be too many dimensions.
        #[inline]
        pub fn unsqueeze($($receiver)*, dim: usize) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.unsqueeze(dim))
        }
    };
}

/// Lets iterators return the parts of a dimension as views.
macro_rules! batched {
    ($view:ty) => {
        impl Batched for $view {
            fn part(&self, dim: usize, places: std::ops::Range<usize>) -> Option<Self> {
                self.slice(dim, places).ok()
            }
        }
    };
}

macro_rules! repeats {
    ($view:ty) => {
        /// Returns a view of the given shape, in which dimensions of size 1 are repeated and new dimensions are added before the
        /// first. The view uses no additional memory. It can be read, but not written.
        ///
        /// # Errors
        /// Returns an error if this shape cannot be broadcast to the given one.
        #[inline]
        pub fn broadcast_to(&self, shape: impl AsRef<[usize]>) -> Result<$view, TensorError> {
            self.viewed(|layout| layout.broadcast_to(shape.as_ref()))
        }

        /// Returns an iterator over views of consecutive parts of a dimension, in order. Each part has `size` indices, and the
        /// last may be smaller. Nothing is copied.
        ///
        /// # Errors
        /// Returns an error if the dimension does not exist, or if `size` is 0.
        #[inline]
        pub fn batches(&self, dim: usize, size: usize) -> Result<Batches<$view>, TensorError> {
            Batches::new(self.clone(), self.layout().size(dim)?, dim, size)
        }
    };
}

#[cfg(feature = "cuda")]
pub(super) use {batched, repeats, views};

/// Views: other tensors of the same storage. None of these methods copies an element or calls an allocator.
///
/// ```
/// use millpond::Tensor;
///
/// let table = Tensor::arange(0, 12, 1)?.reshape([3, 4])?;
/// assert_eq!(table.select(1, 2)?.to_vec::<i32>()?, [2, 6, 10]);
/// assert_eq!(table.slice(0, 1..)?.step(1, 3)?.to_vec::<i32>()?, [4, 7, 8, 11]);
/// assert_eq!(table.permute([1, 0])?.shape(), [4, 3]);
/// assert_eq!(table.unsqueeze(1)?.broadcast_to([3, 5, 4])?.get(&[1, 4, 2])?.to_i64(), Some(6));
/// let sizes: Vec<usize> = table.batches(0, 2)?.map(|batch| batch.shape()[0]).collect();
/// assert_eq!(sizes, [2, 1]);
///
/// // If the strides do not allow a view of the shape, `reshaped` makes a copy.
/// let turned = table.transpose(0, 1)?;
/// assert!(turned.reshape([12]).is_err());
/// assert_eq!(turned.reshaped([12])?.to_vec::<i32>()?[..3], [0, 4, 8]);
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl Tensor {
    views!(self, [&self], Self);
    repeats!(Self);
}

batched!(Tensor);
batched!(TensorRef<'_>);

/// Views of the same memory, with the lifetime of its borrow.
impl<'a> TensorRef<'a> {
    views!(self, [&self], TensorRef<'a>);
    repeats!(TensorRef<'a>);
}

/// Methods that consume the view and return another view of the same memory.
impl<'a> TensorMut<'a> {
    views!(self, [self], TensorMut<'a>);
}
