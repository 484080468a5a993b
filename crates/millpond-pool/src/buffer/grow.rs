//! Changes the length of buffers.

use super::Buffer;
use crate::block::bytes_of;
use crate::pool::optionally;
use bytemuck::{AnyBitPattern, Zeroable};
use millpond_account::error::AllocError;
use std::mem::MaybeUninit;

/// Up to this capacity in bytes, appending doubles the capacity. Beyond it, the capacity grows by half.
const DOUBLED: usize = 1 << 20;

/// Changes of the length. A buffer that must grow stays in place if its block has room. Otherwise its contents move to
/// another block. After an error the buffer is unchanged.
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
    /// Reserves room for `len` elements in total. It reserves no more than the block size that the pool rounds up to.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn try_reserve_exact(&mut self, len: usize) -> Result<(), AllocError> {
        let keep = self.bytes();
        self.block.grow(keep, bytes_of::<T>(len)?, false)
    }

    /// Reserves room for `additional` more elements. It also reserves some extra room, so that repeated appends copy each
    /// element only a few times. If there is no memory for the extra room, it reserves none.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    #[inline]
    pub fn try_reserve(&mut self, additional: usize) -> Result<(), AllocError> {
        if additional <= self.capacity() - self.len {
            return Ok(());
        }
        self.grow_for(additional)
    }

    /// Moves the elements to a larger block with room for `additional` more.
    #[cold]
    fn grow_for(&mut self, additional: usize) -> Result<(), AllocError> {
        let len = self.len.checked_add(additional).ok_or(AllocError::UNCOUNTABLE)?;
        let (keep, bytes) = (self.bytes(), bytes_of::<T>(len)?);
        let more = if keep <= DOUBLED { keep } else { keep / 2 };
        if more > bytes - keep {
            let with_extra_room = || self.block.grow(keep, keep + more, false);
            if optionally(with_extra_room).is_ok() {
                return Ok(());
            }
        }
        self.block.grow(keep, bytes, false)
    }

    /// Changes the length to `len`. New elements have the value `value`.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn try_resize(&mut self, len: usize, value: T) -> Result<(), AllocError> {
        let old = self.len;
        if len > old {
            self.try_reserve_exact(len)?;
            self.spare()[..len - old].fill(MaybeUninit::new(value));
        }
        // The elements up to `old` were initialised before, and the others were written just now.
        self.len = len;
        Ok(())
    }

    /// Changes the length to at least `len`. New elements are zero.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn try_grow_zeroed(&mut self, len: usize) -> Result<(), AllocError>
    where
        T: Zeroable,
    {
        if len > self.len {
            let keep = self.bytes();
            self.block.grow(keep, bytes_of::<T>(len)?, true)?;
            // The new elements are zero, which is a value of `T`.
            self.len = len;
        }
        Ok(())
    }

    /// Appends copies of elements.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn try_extend_from_slice(&mut self, values: &[T]) -> Result<(), AllocError> {
        self.try_reserve(values.len())?;
        // SAFETY: the place is inside the block or at its end, because the block has room for at least `len` elements.
        let end = unsafe { self.as_mut_ptr().add(self.len) };
        // SAFETY: there is room for these elements, and `values` cannot overlap with memory that this buffer alone owns.
        unsafe { end.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        self.len += values.len();
        Ok(())
    }

    /// Appends an element.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    #[inline]
    pub fn try_push(&mut self, value: T) -> Result<(), AllocError> {
        self.try_reserve(1)?;
        self.extend_within_capacity(Some(value));
        Ok(())
    }

    /// Appends elements of an iterator until the capacity is reached. Returns the number of appended elements. The others
    /// stay in the iterator.
    #[inline]
    pub fn extend_within_capacity(&mut self, values: impl IntoIterator<Item = T>) -> usize {
        let mut written = 0;
        for (place, value) in self.spare().iter_mut().zip(values) {
            place.write(value);
            written += 1;
        }
        // The elements up to `len` were initialised before, and `written` more were written.
        self.len += written;
        written
    }

    /// Returns the unused capacity.
    #[inline]
    fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        let spare = self.capacity() - self.len;
        // SAFETY: the place is inside the block or at its end, because the block has room for at least `len` elements.
        let end = unsafe { self.as_mut_ptr().add(self.len) };
        // SAFETY: from there on there is room for `spare` elements, aligned like all of them, in memory that this buffer
        // alone owns and that is borrowed for as long. `MaybeUninit` requires nothing of their bytes.
        unsafe { std::slice::from_raw_parts_mut(end.cast(), spare) }
    }

    /// Removes the last element and returns it.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let last = *self.last()?;
        self.len -= 1;
        Some(last)
    }

    /// Removes an element, moves the last one into its place, and returns it. Returns `None` if there is no such element.
    #[inline]
    pub fn swap_remove(&mut self, index: usize) -> Option<T> {
        let last = *self.last()?;
        let taken = std::mem::replace(self.get_mut(index)?, last);
        self.len -= 1;
        Some(taken)
    }

    /// Shortens the buffer to at most `len` elements. The block does not change.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Removes all elements. The block does not change.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}
