//! The operations on the buffer of one field.

use bytemuck::Pod;
use millpond_account::error::AllocError;
use millpond_pool::buffer::Buffer;
use millpond_pool::pool::Pool;

/// A buffer of plain data. If a field is not plain data, all generated code lacks the same bound, so the compiler reports one error
/// instead of one for each call.
pub trait Column: Sized {
    /// The type of the field.
    type Item: Pod;

    /// Creates a buffer without elements, like [`Pool::alloc_zeroed_aligned`].
    fn empty(pool: &Pool, align: usize) -> Result<Self, AllocError>;

    /// Returns the buffer.
    #[must_use]
    fn buffer(&self) -> &Buffer<Self::Item>;

    /// Returns the buffer for writing.
    #[must_use]
    fn buffer_mut(&mut self) -> &mut Buffer<Self::Item>;

    /// Like [`Buffer::try_clone`].
    fn try_clone(&self) -> Result<Self, AllocError>;

    /// Returns the bytes of the elements.
    #[must_use]
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.buffer())
    }

    /// Returns the bytes of the elements for writing.
    #[must_use]
    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self.buffer_mut())
    }

    /// Returns a copy of an element.
    #[must_use]
    #[inline]
    fn copy(item: &Self::Item) -> Self::Item {
        *item
    }
}

impl<T: Pod> Column for Buffer<T> {
    type Item = T;

    #[inline]
    fn empty(pool: &Pool, align: usize) -> Result<Self, AllocError> {
        pool.alloc_zeroed_aligned(0, align)
    }

    #[inline]
    fn buffer(&self) -> &Self {
        self
    }

    #[inline]
    fn buffer_mut(&mut self) -> &mut Self {
        self
    }

    #[inline]
    fn try_clone(&self) -> Result<Self, AllocError> {
        Self::try_clone(self)
    }
}
