//! The operations on the buffer of one field.

use bytemuck::Pod;
use millpond_account::error::AllocError;
use millpond_pool::buffer::Buffer;
use millpond_pool::pool::Pool;

/// The methods of a buffer as a trait. If a field is not plain data, all generated code lacks the same bound, so the compiler
/// reports one error and not one for each call.
pub trait Column: Sized {
    /// The type of the field.
    type Item;

    /// Like [`Pool::alloc_zeroed_aligned`], without elements.
    fn empty(pool: &Pool, align: usize) -> Result<Self, AllocError>;
    /// Like [`Buffer::try_clone`].
    fn try_clone(&self) -> Result<Self, AllocError>;
    /// Like [`Buffer::try_reserve`].
    fn try_reserve(&mut self, additional: usize) -> Result<(), AllocError>;
    /// Like [`Buffer::try_reserve_exact`].
    fn try_reserve_exact(&mut self, len: usize) -> Result<(), AllocError>;
    /// Like [`Buffer::extend_within_capacity`]. The caller has reserved capacity for all values.
    fn extend(&mut self, values: impl IntoIterator<Item = Self::Item>);
    /// Like [`Buffer::pop`].
    fn pop(&mut self) -> Option<Self::Item>;
    /// Like [`Buffer::swap_remove`].
    fn swap_remove(&mut self, index: usize) -> Option<Self::Item>;
    /// Like [`Buffer::truncate`].
    fn truncate(&mut self, len: usize);
    /// Like [`Buffer::capacity`].
    #[must_use]
    fn capacity(&self) -> usize;
    /// Returns the elements.
    #[must_use]
    fn slice(&self) -> &[Self::Item];
    /// Returns the elements for writing.
    #[must_use]
    fn slice_mut(&mut self) -> &mut [Self::Item];
    /// Returns the bytes of the elements.
    #[must_use]
    fn bytes(&self) -> &[u8];
    /// Returns the bytes of the elements for writing.
    #[must_use]
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Returns a copy of an element.
    #[must_use]
    fn copy(item: &Self::Item) -> Self::Item;
}

impl<T: Pod> Column for Buffer<T> {
    type Item = T;

    #[inline]
    fn empty(pool: &Pool, align: usize) -> Result<Self, AllocError> {
        pool.alloc_zeroed_aligned(0, align)
    }

    #[inline]
    fn try_clone(&self) -> Result<Self, AllocError> {
        Self::try_clone(self)
    }

    #[inline]
    fn try_reserve(&mut self, additional: usize) -> Result<(), AllocError> {
        Self::try_reserve(self, additional)
    }

    #[inline]
    fn try_reserve_exact(&mut self, len: usize) -> Result<(), AllocError> {
        Self::try_reserve_exact(self, len)
    }

    #[inline]
    fn extend(&mut self, values: impl IntoIterator<Item = T>) {
        self.extend_within_capacity(values);
    }

    #[inline]
    fn pop(&mut self) -> Option<T> {
        Self::pop(self)
    }

    #[inline]
    fn swap_remove(&mut self, index: usize) -> Option<T> {
        Self::swap_remove(self, index)
    }

    #[inline]
    fn truncate(&mut self, len: usize) {
        Self::truncate(self, len);
    }

    #[inline]
    fn capacity(&self) -> usize {
        Self::capacity(self)
    }

    #[inline]
    fn slice(&self) -> &[T] {
        self
    }

    #[inline]
    fn slice_mut(&mut self) -> &mut [T] {
        self
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }

    #[inline]
    fn copy(item: &T) -> T {
        *item
    }
}
