//! Buffers: elements of one type in memory that is freed automatically.
//!
//! ```text
//!   make      allocates buffers from pools and sources
//!   uninit    initialises new buffers
//!   grow      changes the length, in place if there is room
//!   shared    shared, read-only buffers
//!   cast      casts between element types
//!   raw       raw parts of buffers
//!   leaked    buffers that are never freed, and their count
//!   foreign   memory that another library or a `Vec` owns
//! ```
//!
//! Code that accesses memory by pointer and size is in `block.rs`. This module treats the bytes as elements.

mod cast;
mod foreign;
mod grow;
mod leaked;
mod make;
mod patient;
mod raw;
mod shared;
#[cfg(test)]
mod tests;
mod uninit;

pub use leaked::{Leaks, leaks};
pub use raw::RawBuffer;
pub use shared::SharedBuffer;
pub use uninit::LengthError;

use crate::block::{OwnedBlock, Owner};
use crate::pool::PoolRef;
use bytemuck::{AnyBitPattern, NoUninit};
use millpond_account::error::AllocError;
use millpond_account::memory::MemoryKind;
use millpond_os::device::Device;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Elements in memory of a pool or a source, at an address that is a multiple of 64. The memory is freed when the buffer is
/// dropped, on any thread.
///
/// A buffer is an owned slice: it derefs to `[T]`, and it can grow into its [`capacity`](Self::capacity). Every operation
/// that needs memory returns an error if there is none. Therefore a buffer does not implement `Clone`, but has
/// [`try_clone`](Self::try_clone).
///
/// Elements are plain data: any type that implements the traits of [`bytemuck`], such as numbers, arrays of them, and
/// structures that derive the traits ([`Pod`](bytemuck::Pod) is enough for every method). `bool` is not such a type,
/// because most byte values are not a valid `bool`. [`Storage`](crate::Storage) has a [`DType`](crate::DType) for it.
///
/// ```
/// use millpond::Pool;
///
/// let pool = Pool::host()?;
/// let mut row = pool.alloc_from(&[3.0f32, 1.0, 2.0])?;
/// row.sort_by(f32::total_cmp);
/// row.try_extend_from_slice(&[4.0, 5.0])?;
/// assert_eq!(row[..], [1.0, 2.0, 3.0, 4.0, 5.0]);
/// assert_eq!((row.len(), row.bytes()), (5, 20));
/// assert!(row.as_ptr().addr().is_multiple_of(64) && row.capacity() >= 5);
///
/// std::thread::spawn(move || row.free()).join().expect("no panic");
/// assert_eq!(pool.stats().requested.current, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Zero-sized elements are a compile error:
///
/// ```compile_fail
/// millpond::Pool::host().unwrap().alloc_zeroed::<()>(10);
/// ```
pub struct Buffer<T> {
    /// Invariant: its address is a multiple of `T`'s alignment, and its first `len` elements are values of `T`.
    block: OwnedBlock,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: AnyBitPattern> Buffer<T> {
    /// Creates a buffer of a block. The caller guarantees the invariant of `block`.
    #[inline]
    fn of(block: OwnedBlock, len: usize) -> Self {
        debug_assert!(block.bytes() / size_of::<T>() >= len);
        debug_assert!(block.align() >= align_of::<T>());
        Self {
            block,
            len,
            elements: PhantomData,
        }
    }

    /// Returns the number of elements that fit in the current block.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.block.bytes() / size_of::<T>()
    }

    /// Returns a pointer to the first element. The elements may be read through it for as long as the buffer lives and is
    /// not grown. If the length is 0, there is no first element.
    #[must_use]
    pub fn as_ptr(&self) -> *const T {
        self.block.pointer().as_ptr().cast()
    }

    /// Returns a mutable pointer to the first element.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.block.pointer().as_ptr().cast()
    }

    /// Returns the elements as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8]
    where
        T: NoUninit,
    {
        bytemuck::cast_slice(self)
    }

    /// Returns the owner that allocated the memory, and the elements as a mutable slice.
    pub(crate) fn parts_mut(&mut self) -> (&Owner, &mut [T]) {
        // SAFETY: as in `deref_mut`. The owner is stored outside the block's memory, so the two references do not overlap.
        let elements = unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) };
        (self.block.owner(), elements)
    }

    /// Returns a copy in memory of the same pool or source, with the same alignment.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn try_clone(&self) -> Result<Self, AllocError> {
        let bytes = self.bytes();
        let mut block = OwnedBlock::allocate(self.block.owner().clone(), bytes, self.block.align(), false)?;
        block.copy_from(&self.block, bytes);
        Ok(Self::of(block, self.len))
    }
}

impl<T> Buffer<T> {
    /// Returns the number of elements. Unlike the method of the slice, it creates no reference to the elements, so it may
    /// be called while pointers to them are in use.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is 0.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes of the elements.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Returns the owner that allocated the memory.
    pub(crate) fn owner(&self) -> &Owner {
        self.block.owner()
    }

    /// Returns the device of the memory.
    #[must_use]
    pub fn device(&self) -> Device {
        self.block.owner().device()
    }

    /// Returns the kind of the memory.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.block.owner().kind()
    }

    /// Returns the pool that the memory belongs to, or `None` if it came from a source directly. The pool may be closed.
    ///
    /// ```
    /// let pool = millpond::Pool::host()?;
    /// let buffer = pool.alloc_zeroed::<u8>(1000)?;
    /// let of = buffer.pool().expect("pooled");
    /// assert_eq!((of.id(), of.is_closed()), (pool.id(), false));
    /// drop(pool);
    /// assert!(of.is_closed());
    /// assert_eq!(of.stats().requested.current, 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pool(&self) -> Option<PoolRef> {
        self.block.owner().pool()
    }

    /// Returns the alignment that was requested for the address.
    #[must_use]
    pub fn alignment(&self) -> usize {
        self.block.align()
    }

    /// Frees the memory now.
    pub fn free(self) {}
}

impl<T: AnyBitPattern> Deref for Buffer<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: by the invariant of `block` these are `len` aligned values of `T`, in a block that this buffer alone
        // owns, or no values at an aligned address. The borrow is not longer than that of the buffer.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl<T: AnyBitPattern> DerefMut for Buffer<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`. The buffer is borrowed mutably for as long.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

impl<T: AnyBitPattern> AsRef<[T]> for Buffer<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: AnyBitPattern> AsMut<[T]> for Buffer<T> {
    fn as_mut(&mut self) -> &mut [T] {
        self
    }
}

impl<'a, T: AnyBitPattern> IntoIterator for &'a Buffer<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T: AnyBitPattern> IntoIterator for &'a mut Buffer<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: AnyBitPattern + PartialEq> PartialEq for Buffer<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: AnyBitPattern + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
