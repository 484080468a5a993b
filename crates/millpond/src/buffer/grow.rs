//! Buffers that become longer and shorter.

use super::Buffer;
use crate::block::bytes_of;
use crate::error::AllocError;
use bytemuck::{AnyBitPattern, Zeroable};
use std::mem::MaybeUninit;

/// Up to so many bytes a buffer that is appended to doubles; beyond that it grows by half.
const DOUBLED: usize = 1 << 20;

/// Longer and shorter. A buffer that has to grow stays where it is if its block has room, else its contents move to
/// another block. After an error it is as it was.
///
/// ```
/// let pool = millpond::Pool::host()?;
/// let mut buffer = pool.alloc_from(&[1u16])?;
/// buffer.try_push(2)?;
/// buffer.try_resize(4, 9)?;
/// buffer.try_grow_zeroed(5)?;
/// assert_eq!(buffer[..], [1, 2, 9, 9, 0]);
/// buffer.truncate(3);
/// assert_eq!(buffer[..], [1, 2, 9]);
/// assert!(buffer.try_resize(usize::MAX, 0).is_err());
/// assert_eq!(buffer[..], [1, 2, 9]);
/// assert_eq!((buffer.swap_remove(0), buffer.pop(), buffer.swap_remove(1)), (Some(1), Some(2), None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<T: AnyBitPattern> Buffer<T> {
    /// Makes room for so many elements in all, and for no more than comes with the block.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn try_reserve_exact(&mut self, len: usize) -> Result<(), AllocError> {
        let keep = self.bytes();
        self.block.grow(keep, bytes_of::<T>(len)?, false)
    }

    /// Makes room for so many elements more, and for some beyond that, so that appending again and again copies each
    /// element a few times at most. Where there is no memory for those beyond, without them.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn try_reserve(&mut self, additional: usize) -> Result<(), AllocError> {
        let len = self.len.checked_add(additional).ok_or(AllocError::UNCOUNTABLE)?;
        let (keep, bytes) = (self.bytes(), bytes_of::<T>(len)?);
        if bytes <= self.block.bytes() {
            return Ok(());
        }
        let more = if keep <= DOUBLED { keep } else { keep / 2 };
        if more > bytes - keep && self.block.grow(keep, keep + more, false).is_ok() {
            return Ok(());
        }
        self.block.grow(keep, bytes, false)
    }

    /// Makes the buffer of just this length; elements that are added have this value.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn try_resize(&mut self, len: usize, value: T) -> Result<(), AllocError> {
        let old = self.len;
        if len > old {
            self.try_reserve_exact(len)?;
            for index in old..len {
                // SAFETY: the place is inside the block, which has room for `len` elements.
                let place = unsafe { self.as_mut_ptr().add(index) };
                // SAFETY: the block is ours alone, and what is in the place needs no drop.
                unsafe { place.write(value) };
            }
        }
        // Those up to `old` were there, those above were written.
        self.len = len;
        Ok(())
    }

    /// Makes the buffer at least this long; elements that are added are zero.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn try_grow_zeroed(&mut self, len: usize) -> Result<(), AllocError>
    where
        T: Zeroable,
    {
        if len > self.len {
            let keep = self.bytes();
            self.block.grow(keep, bytes_of::<T>(len)?, true)?;
            // Those added are zero, which is a value of `T`.
            self.len = len;
        }
        Ok(())
    }

    /// Appends copies of elements.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn try_extend_from_slice(&mut self, values: &[T]) -> Result<(), AllocError> {
        self.try_reserve(values.len())?;
        // SAFETY: the place is inside the block or at its end, as it has room for `len` elements and more.
        let end = unsafe { self.as_mut_ptr().add(self.len) };
        // SAFETY: there is room for these elements, and in what is ours alone nothing else can lie.
        unsafe { end.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        self.len += values.len();
        Ok(())
    }

    /// Appends an element.
    ///
    /// # Errors
    /// When there is no memory for it.
    #[inline]
    pub fn try_push(&mut self, value: T) -> Result<(), AllocError> {
        self.try_reserve(1)?;
        self.extend_within_capacity(Some(value));
        Ok(())
    }

    /// Appends what an iterator gives while there is room without another block; answers how many elements that were. The
    /// rest is left in the iterator.
    #[inline]
    pub fn extend_within_capacity(&mut self, values: impl IntoIterator<Item = T>) -> usize {
        let mut written = 0;
        for (place, value) in self.spare().iter_mut().zip(values) {
            place.write(value);
            written += 1;
        }
        // Those up to `len` were there, and as many more were written.
        self.len += written;
        written
    }

    /// The places for elements that the block has room for.
    #[inline]
    fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        let spare = self.capacity() - self.len;
        // SAFETY: the place is inside the block or at its end, as it has room for `len` elements and more.
        let end = unsafe { self.as_mut_ptr().add(self.len) };
        // SAFETY: there is room for as many elements from there on, aligned as all of them, in what is ours alone for as long
        // as we are borrowed; of their bytes nothing is said.
        unsafe { std::slice::from_raw_parts_mut(end.cast(), spare) }
    }

    /// Takes the last element.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let last = *self.last()?;
        self.len -= 1;
        Some(last)
    }

    /// Takes an element and puts the last one in its place; none where there is no such element.
    #[inline]
    pub fn swap_remove(&mut self, index: usize) -> Option<T> {
        let last = *self.last()?;
        let taken = std::mem::replace(self.get_mut(index)?, last);
        self.len -= 1;
        Some(taken)
    }

    /// Makes the buffer of at most this length. The block stays as it is.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the buffer empty. The block stays as it is.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}
