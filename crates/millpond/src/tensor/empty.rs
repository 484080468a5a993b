//! Tensors of which nothing is known until they are written.

use super::Tensor;
use super::error::TensorError;
use super::layout::Layout;
use crate::block::ALIGN;
use crate::block::Origin;
use crate::buffer::{Buffer, LengthError};
use crate::dtype::Element;
use crate::pool::Pool;
use crate::pools::draw;
use bytemuck::AnyBitPattern;
use std::fmt;
use std::mem::MaybeUninit;

/// A tensor to be: its memory is there, its elements are not. Whatever writes all of them makes it a [`Tensor`].
///
/// Saves the pass over memory that zeroing would take. Where an output is kept and written again and again,
/// [`Tensor::zeros`] does as well.
///
/// ```
/// use millpond::Tensor;
///
/// let ramp = Tensor::empty::<u16>([2, 2])?.write_with(|at| at as u16);
/// let copy = Tensor::empty::<f32>([3])?.write_from(&[1.0, 2.0, 3.0])?;
/// assert_eq!((ramp.as_slice::<u16>()?, copy.shape()), (&[0, 1, 2, 3][..], &[3][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "its memory goes back when it is dropped"]
pub struct EmptyTensor<T> {
    /// As many elements as the layout has.
    buffer: Buffer<MaybeUninit<T>>,
    layout: Layout,
}

impl Tensor {
    /// Memory for elements of which nothing is known until they are written.
    ///
    /// # Errors
    /// As for other [new tensors](Self::zeros).
    pub fn empty<T: Element>(shape: impl AsRef<[usize]>) -> Result<EmptyTensor<T>, TensorError> {
        draw(|pool: &Pool| Self::empty_in(pool, shape))
    }

    /// The same, of a pool, tenant or source of choice.
    ///
    /// # Errors
    /// As for other [new tensors](Self::zeros).
    pub fn empty_in<T: Element>(
        from: &impl Origin,
        shape: impl AsRef<[usize]>,
    ) -> Result<EmptyTensor<T>, TensorError> {
        let layout = Layout::contiguous(shape.as_ref())?;
        let buffer = Buffer::<MaybeUninit<T>>::uninit(from.handle().0, layout.len(), ALIGN)?;
        Ok(EmptyTensor { buffer, layout })
    }
}

impl<T: Element> EmptyTensor<T> {
    fn written(buffer: Buffer<T>, layout: Layout) -> Tensor {
        Tensor {
            storage: std::sync::Arc::new(buffer.into()),
            layout,
        }
    }

    /// Writes the same value to every element.
    #[must_use]
    pub fn fill(self, value: T) -> Tensor {
        Self::written(self.buffer.fill(value), self.layout)
    }

    /// Copies a slice of just as many elements here, row after row.
    ///
    /// # Errors
    /// Where there are more or fewer; the memory is then given back.
    pub fn write_from(self, values: &[T]) -> Result<Tensor, LengthError> {
        Ok(Self::written(self.buffer.write_from(values)?, self.layout))
    }

    /// Writes what a function says for each place, counted from 0 row after row.
    #[must_use]
    pub fn write_with(self, value: impl FnMut(usize) -> T) -> Tensor {
        Self::written(self.buffer.write_with(value), self.layout)
    }
}

impl<T: AnyBitPattern> EmptyTensor<T> {
    /// Sizes of the dimensions.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

impl<T> fmt::Debug for EmptyTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EmptyTensor({:?})", self.layout.shape())
    }
}
