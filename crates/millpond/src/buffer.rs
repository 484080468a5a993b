//! Buffers: memory of a pool that goes back by itself.

use crate::error::AllocError;
use crate::pool::{PoolBlock, PoolHeap};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

/// Types of which every pattern of bits is a value, all zeros too, and that own nothing.
///
/// # Safety
/// Every pattern of bits of the type's size is a valid value of it, it has no padding and needs no drop.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {
        $(
            // SAFETY: a number: every pattern of bits is one, it has no padding and owns nothing.
            unsafe impl Plain for $type {}
        )*
    };
}

plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

/// Elements in memory of a pool, at an address that is a multiple of 64. Given back when dropped, from any thread.
///
/// The invariant of the type: `pointer` is the first of `len` initialised elements in a block that this buffer alone
/// has, from the pool's `allocate` to the `free` in its drop.
pub struct Buffer<T: Plain> {
    pointer: NonNull<T>,
    len: usize,
    block: PoolBlock,
    heap: &'static PoolHeap,
    elements: PhantomData<T>,
}

// SAFETY: the buffer owns its block alone, and plain elements may be used from any thread.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: a shared buffer only lends shared elements, which are `Sync`.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    fn uninitialised(heap: &'static PoolHeap, len: usize) -> Result<Self, AllocError> {
        let most = isize::MAX as usize;
        let bytes = size_of::<T>().checked_mul(len).filter(|bytes| *bytes <= most);
        let bytes = bytes.ok_or(AllocError::UNCOUNTABLE)?;
        let block = heap.allocate(bytes, align_of::<T>())?;
        let pointer = ptr::with_exposed_provenance_mut(block.address);
        Ok(Self {
            pointer: NonNull::new(pointer).unwrap_or(NonNull::dangling()),
            len,
            block,
            heap,
            elements: PhantomData,
        })
    }

    pub(crate) fn zeroed(heap: &'static PoolHeap, len: usize) -> Result<Self, AllocError> {
        let buffer = Self::uninitialised(heap, len)?;
        // SAFETY: the block has room for `len` elements, is ours alone, and all zeros are a value of `T`.
        unsafe { buffer.pointer.write_bytes(0, len) };
        Ok(buffer)
    }

    pub(crate) fn copied(heap: &'static PoolHeap, values: &[T]) -> Result<Self, AllocError> {
        let buffer = Self::uninitialised(heap, values.len())?;
        let source = NonNull::from(values).cast::<T>();
        // SAFETY: both are `len` elements long; the block is ours alone, so they share no byte.
        unsafe { buffer.pointer.copy_from_nonoverlapping(source, values.len()) };
        Ok(buffer)
    }

    /// Bytes of the elements.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val::<[T]>(self)
    }

    /// Gives the memory back now.
    pub fn free(self) {}
}

impl<T: Plain> Drop for Buffer<T> {
    #[inline]
    fn drop(&mut self) {
        self.heap.free(self.block, self.len * size_of::<T>());
    }
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the invariant of the type, and the borrow is no longer than ours.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the invariant of the type, and we are borrowed alone for as long.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl<T: Plain + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
