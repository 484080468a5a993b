//! What is done with the buffer of one field.

use crate::buffer::Buffer;
use crate::error::AllocError;
use crate::pool::Pool;
use bytemuck::Pod;

/// A buffer's own methods, as those of a trait: where a field is no plain data, all that the derive wrote lacks one and the
/// same, and the compiler does not say it once for each call.
pub trait Column: Sized {
    /// What the field is.
    type Item;

    /// As [`Pool::alloc_zeroed_aligned`], of no elements.
    fn empty(pool: &Pool, align: usize) -> Result<Self, AllocError>;
    /// As [`Buffer::try_clone`].
    fn try_clone(&self) -> Result<Self, AllocError>;
    /// As [`Buffer::try_reserve`].
    fn try_reserve(&mut self, additional: usize) -> Result<(), AllocError>;
    /// As [`Buffer::try_reserve_exact`].
    fn try_reserve_exact(&mut self, len: usize) -> Result<(), AllocError>;
    /// As [`Buffer::extend_within_capacity`], where there is room for all.
    fn extend(&mut self, values: impl IntoIterator<Item = Self::Item>);
    /// As [`Buffer::pop`].
    fn pop(&mut self) -> Option<Self::Item>;
    /// As [`Buffer::swap_remove`].
    fn swap_remove(&mut self, index: usize) -> Option<Self::Item>;
    /// As [`Buffer::truncate`].
    fn truncate(&mut self, len: usize);
    /// As [`Buffer::capacity`].
    #[must_use]
    fn capacity(&self) -> usize;
    /// The elements.
    #[must_use]
    fn slice(&self) -> &[Self::Item];
    /// The elements, to be written.
    #[must_use]
    fn slice_mut(&mut self) -> &mut [Self::Item];
    /// Their bytes.
    #[must_use]
    fn bytes(&self) -> &[u8];
    /// Their bytes, to be written.
    #[must_use]
    fn bytes_mut(&mut self) -> &mut [u8];
    /// A copy of one of them.
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
