//! Uninitialised tensors, which become tensors when all their elements are written.

use super::Tensor;
use super::error::TensorError;
use super::layout::Layout;
use bytemuck::AnyBitPattern;
use millpond_pool::block::ALIGN;
use millpond_pool::block::Origin;
use millpond_pool::buffer::{Buffer, LengthError};
use millpond_pool::dtype::Element;
use millpond_pool::pool::Pool;
use millpond_set::pools::draw;
use std::fmt;
use std::mem::MaybeUninit;

/// Memory for a tensor whose elements are not yet initialised. A method that writes all of them returns a [`Tensor`].
///
/// This saves the time for zeroing the memory. For an output that is kept and written repeatedly, [`Tensor::zeros`] is equally
/// good.
///
/// ```
/// use millpond::Tensor;
///
/// let ramp = Tensor::empty::<u16>([2, 2])?.write_with(|at| at as u16);
/// let copy = Tensor::empty::<f32>([3])?.write_from(&[1.0, 2.0, 3.0])?;
/// assert_eq!((ramp.as_slice::<u16>()?, copy.shape()), (&[0, 1, 2, 3][..], &[3][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the memory is freed when this value is dropped"]
pub struct EmptyTensor<T> {
    /// The elements, as many as the layout has.
    buffer: Buffer<MaybeUninit<T>>,
    layout: Layout,
}

impl Tensor {
    /// Allocates memory for elements that are initialised later.
    ///
    /// # Errors
    /// Returns the errors of [`zeros`](Self::zeros).
    pub fn empty<T: Element>(shape: impl AsRef<[usize]>) -> Result<EmptyTensor<T>, TensorError> {
        draw(|pool: &Pool| Self::empty_in(pool, shape))
    }

    /// Like [`empty`](Self::empty), from the given pool, tenant or source.
    ///
    /// # Errors
    /// Returns the errors of [`zeros`](Self::zeros).
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

    /// Copies the elements of a slice, row by row.
    ///
    /// # Errors
    /// Returns an error if the slice does not have exactly as many elements. The memory is then freed.
    pub fn write_from(self, values: &[T]) -> Result<Tensor, LengthError> {
        Ok(Self::written(self.buffer.write_from(values)?, self.layout))
    }

    /// Writes the result of a function for each index. Indices count from 0, row by row.
    #[must_use]
    pub fn write_with(self, value: impl FnMut(usize) -> T) -> Tensor {
        Self::written(self.buffer.write_with(value), self.layout)
    }
}

impl<T: AnyBitPattern> EmptyTensor<T> {
    /// Returns the sizes of the dimensions.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether there are no elements.
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
