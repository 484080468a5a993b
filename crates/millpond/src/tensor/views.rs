//! From one view to another: a part, another order of dimensions, another shape. The storage stays, nothing is copied.

use super::Tensor;
use super::batches::Batches;
use super::error::TensorError;
use super::view::{TensorMut, TensorRef};
use std::ops::RangeBounds;

macro_rules! views {
    ($self:ident, [$($receiver:tt)*], $view:ty) => {
        /// The same elements in another shape, as a view.
        ///
        /// # Errors
        /// Where the shape has another number of elements, or they do not lie in memory so that a view could have it
        /// ([`TensorError::NotAView`]).
        pub fn reshape($($receiver)*, shape: impl AsRef<[usize]>) -> Result<$view, TensorError> {
            let layout = $self.layout().reshape(shape.as_ref())?;
            Ok($self.with(layout))
        }

        /// A part of a dimension.
        ///
        /// # Errors
        /// Where there is no such dimension, or the range does not lie inside.
        pub fn slice($($receiver)*, dim: usize, range: impl RangeBounds<usize>) -> Result<$view, TensorError> {
            let layout = $self.layout().slice(dim, range)?;
            Ok($self.with(layout))
        }

        /// Every `step`-th of a dimension, from its first on.
        ///
        /// # Errors
        /// Where there is no such dimension, or the step is 0.
        pub fn step($($receiver)*, dim: usize, step: usize) -> Result<$view, TensorError> {
            let layout = $self.layout().step(dim, step)?;
            Ok($self.with(layout))
        }

        /// One place of a dimension; the dimension is then gone.
        ///
        /// # Errors
        /// Where there is no such dimension or place.
        pub fn select($($receiver)*, dim: usize, at: usize) -> Result<$view, TensorError> {
            let layout = $self.layout().select(dim, at)?;
            Ok($self.with(layout))
        }

        /// Two dimensions in each other's place.
        ///
        /// # Errors
        /// Where there is no such dimension.
        pub fn transpose($($receiver)*, one: usize, other: usize) -> Result<$view, TensorError> {
            let layout = $self.layout().transpose(one, other)?;
            Ok($self.with(layout))
        }

        /// Dimensions in another order, which names each of them once.
        ///
        /// # Errors
        /// Where it does not.
        pub fn permute($($receiver)*, order: impl AsRef<[usize]>) -> Result<$view, TensorError> {
            let layout = $self.layout().permute(order.as_ref())?;
            Ok($self.with(layout))
        }

        /// Without a dimension of size 1.
        ///
        /// # Errors
        /// Where there is no such dimension, or its size is another.
        pub fn squeeze($($receiver)*, dim: usize) -> Result<$view, TensorError> {
            let layout = $self.layout().squeeze(dim)?;
            Ok($self.with(layout))
        }

        /// With a dimension of size 1 more, at this place.
        ///
        /// # Errors
        /// Where the place lies beyond the last dimension's end, or there would be too many.
        pub fn unsqueeze($($receiver)*, dim: usize) -> Result<$view, TensorError> {
            let layout = $self.layout().unsqueeze(dim)?;
            Ok($self.with(layout))
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
        pub fn broadcast_to(&self, shape: impl AsRef<[usize]>) -> Result<$view, TensorError> {
            let layout = self.layout().broadcast_to(shape.as_ref())?;
            Ok(self.with(layout))
        }

        /// Views of so many places of a dimension at a time, in order; the last is short where they do not come out even.
        /// Nothing is copied.
        ///
        /// # Errors
        /// Where there is no such dimension, or the number is 0.
        pub fn batches(&self, dim: usize, size: usize) -> Result<Batches<$view>, TensorError> {
            Batches::new(self.clone(), self.layout().size(dim)?, dim, size)
        }
    };
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
