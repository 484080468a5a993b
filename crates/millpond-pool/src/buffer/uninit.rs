//! Initialises the elements of new buffers.

use super::Buffer;
use crate::block::{ALIGN, Owner};
use bytemuck::AnyBitPattern;
use millpond_account::error::AllocError;
use std::mem::MaybeUninit;
use thiserror::Error;

/// The number of values differs from the number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected {expected} values, one for each element, got {found}")]
pub struct LengthError {
    /// The number of elements.
    pub expected: usize,
    /// The number of values.
    pub found: usize,
}

/// Uninitialised elements, which [`Pool::alloc`](crate::Pool::alloc) returns. They must be written before they are read.
///
/// ```
/// use millpond::Pool;
///
/// let pool = Pool::host()?;
/// let ones = pool.alloc::<f32>(3)?.fill(1.0);
/// let rows = pool.alloc::<u32>(3)?.write_from(&[7, 8, 9])?;
/// let squares = pool.alloc::<u64>(3)?.write_with(|i| (i * i) as u64);
/// assert_eq!((&ones[..], &rows[..], &squares[..]), (&[1.0; 3][..], &[7, 8, 9][..], &[0, 1, 4][..]));
///
/// let mut by_hand = pool.alloc::<u8>(2)?;
/// by_hand[0].write(1);
/// by_hand[1].write(2);
/// // SAFETY: both elements were written.
/// let by_hand = unsafe { by_hand.assume_init() };
/// assert_eq!(by_hand[..], [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<T: AnyBitPattern> Buffer<MaybeUninit<T>> {
    /// Converts the buffer to one of initialised elements.
    ///
    /// # Safety
    /// Every element was written.
    #[must_use]
    #[inline]
    pub unsafe fn assume_init(self) -> Buffer<T> {
        Buffer::of(self.block, self.len)
    }

    /// Converts the buffer to one of its first `len` elements.
    ///
    /// # Safety
    /// These elements were written, and the buffer has at least `len` elements.
    #[inline]
    pub(super) unsafe fn assume_init_first(self, len: usize) -> Buffer<T> {
        Buffer::of(self.block, len)
    }

    /// Copies the first values of a slice to the first elements, up to the shorter length.
    #[inline]
    pub(super) fn write_first(&mut self, values: &[T]) {
        for (element, value) in self.iter_mut().zip(values) {
            element.write(*value);
        }
    }

    /// Returns a copy of a slice, with the shorter of both lengths.
    #[inline]
    pub(crate) fn copied(mut self, values: &[T]) -> Buffer<T> {
        let len = self.len().min(values.len());
        self.write_first(values);
        // SAFETY: `len` elements were written just now, and the buffer has at least `len` elements.
        unsafe { self.assume_init_first(len) }
    }

    /// Writes the same value to every element.
    #[must_use]
    #[inline]
    pub fn fill(mut self, value: T) -> Buffer<T> {
        <[MaybeUninit<T>]>::fill(&mut self, MaybeUninit::new(value));
        // SAFETY: every element was written just now.
        unsafe { self.assume_init() }
    }

    /// Copies a slice of the same length to the elements.
    ///
    /// # Errors
    /// Returns an error if the lengths differ. The memory is then freed.
    #[inline]
    pub fn write_from(mut self, values: &[T]) -> Result<Buffer<T>, LengthError> {
        if values.len() != self.len() {
            return Err(LengthError {
                expected: self.len(),
                found: values.len(),
            });
        }
        self.write_first(values);
        // SAFETY: every element was written just now, because the lengths are equal.
        Ok(unsafe { self.assume_init() })
    }

    /// Writes the value that the function returns for each index.
    #[must_use]
    #[inline]
    pub fn write_with(mut self, mut value: impl FnMut(usize) -> T) -> Buffer<T> {
        for (index, element) in self.iter_mut().enumerate() {
            element.write(value(index));
        }
        // SAFETY: every element was written just now.
        unsafe { self.assume_init() }
    }
}

impl<T: AnyBitPattern> Buffer<T> {
    /// Allocates a buffer of an iterator's elements, of at most the length that the iterator reports.
    #[doc(hidden)]
    #[inline]
    pub fn collect(owner: Owner, values: impl ExactSizeIterator<Item = T>) -> Result<Self, AllocError> {
        let mut buffer = Buffer::<MaybeUninit<T>>::uninit(owner, values.len(), ALIGN)?;
        let mut written = 0;
        for (element, value) in buffer.iter_mut().zip(values) {
            element.write(value);
            written += 1;
        }
        // SAFETY: `written` elements were written just now, and there are at least as many.
        Ok(unsafe { buffer.assume_init_first(written) })
    }
}
