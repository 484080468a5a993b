//! From one view to another: a part, another order of dimensions, another shape. The storage stays, nothing is copied.

use super::Tensor;
use super::batches::Batches;
use super::error::TensorError;
use super::layout::Layout;
use super::view::{TensorMut, TensorRef};
use std::ops::RangeBounds;

macro_rules! views {
    ($self:ident, [$($receiver:tt)*], $view:ty) => {
        /// The same elements in another shape, as a view.
        ///
        /// # Errors
        /// Where the shape has another number of elements, or they do not lie in memory so that a view could have it
        /// ([`TensorError::NotAView`]).
        #[inline]
        pub fn reshape($($receiver)*, shape: impl AsRef<[usize]>) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.reshape(shape.as_ref()))
        }

        /// A part of a dimension.
        ///
        /// # Errors
        /// Where there is no such dimension, or the range does not lie inside.
        #[inline]
        pub fn slice($($receiver)*, dim: usize, range: impl RangeBounds<usize>) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.slice(dim, range))
        }

        /// Every `step`-th of a dimension, from its first on.
        ///
        /// # Errors
        /// Where there is no such dimension, or the step is 0.
        #[inline]
        pub fn step($($receiver)*, dim: usize, step: usize) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.step(dim, step))
        }

        /// One place of a dimension; the dimension is then gone.
        ///
        /// # Errors
        /// Where there is no such dimension or place.
        #[inline]
        pub fn select($($receiver)*, dim: usize, at: usize) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.select(dim, at))
        }

        /// Two dimensions in each other's place.
        ///
        /// # Errors
        /// Where there is no such dimension.
        #[inline]
        pub fn transpose($($receiver)*, one: usize, other: usize) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.transpose(one, other))
        }

        /// Dimensions in another order, which names each of them once.
        ///
        /// # Errors
        /// Where it does not.
        #[inline]
        pub fn permute($($receiver)*, order: impl AsRef<[usize]>) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.permute(order.as_ref()))
        }

        /// Without a dimension of size 1.
        ///
        /// # Errors
        /// Where there is no such dimension, or its size is another.
        #[inline]
        pub fn squeeze($($receiver)*, dim: usize) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.squeeze(dim))
        }

        /// With a dimension of size 1 more, at this place.
        ///
        /// # Errors
        /// Where the place lies beyond the last dimension's end, or there would be too many.
        #[inline]
        pub fn unsqueeze($($receiver)*, dim: usize) -> Result<$view, TensorError> {
            $self.viewed(|layout| layout.unsqueeze(dim))
        }
    };
}

macro_rules! repeats {
    ($view:ty) => {
        /// Repeated along dimensions of size 1, and along new ones before the first: to the eye a tensor of the shape, in
        /// memory what it was. It can be read and not be written.
        ///
        /// # Errors
        /// Where the shape is none that this one can be repeated to.
        #[inline]
        pub fn broadcast_to(&self, shape: impl AsRef<[usize]>) -> Result<$view, TensorError> {
            self.viewed(|layout| layout.broadcast_to(shape.as_ref()))
        }

        /// Views of so many places of a dimension at a time, in order; the last is short where they do not come out even.
        /// Nothing is copied.
        ///
        /// # Errors
        /// Where there is no such dimension, or the number is 0.
        #[inline]
        pub fn batches(&self, dim: usize, size: usize) -> Result<Batches<$view>, TensorError> {
            Batches::new(self.clone(), self.layout().size(dim)?, dim, size)
        }
    };
}

#[cfg(feature = "cuda")]
pub(super) use {repeats, views};

/// Elsewhere in the same memory: where a change of the layout leads.
///
/// The layout is changed where it will be, as it is large and to carry it takes longer than to change it.
impl Tensor {
    #[inline]
    fn viewed(
        &self,
        change: impl FnOnce(&mut Layout) -> Result<(), TensorError>,
    ) -> Result<Self, TensorError> {
        let mut view = self.clone();
        change(&mut view.layout)?;
        Ok(view)
    }
}

/// Views: other tensors of the same storage. None of these copies an element or calls an allocator.
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
/// // Where the elements do not lie so, a view cannot have the shape; `reshaped` makes a copy then.
/// let turned = table.transpose(0, 1)?;
/// assert!(turned.reshape([12]).is_err());
/// assert_eq!(turned.reshaped([12])?.to_vec::<i32>()?[..3], [0, 4, 8]);
/// # Ok::<(), millpond::TensorError>(())
/// ```
impl Tensor {
    views!(self, [&self], Self);
    repeats!(Self);
}

/// Views of the same memory, for as long as it is borrowed.
impl<'a> TensorRef<'a> {
    views!(self, [&self], TensorRef<'a>);
    repeats!(TensorRef<'a>);
}

/// Views of the same memory, which take the place of this one.
impl<'a> TensorMut<'a> {
    views!(self, [self], TensorMut<'a>);
}
