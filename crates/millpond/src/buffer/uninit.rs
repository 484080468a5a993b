//! From memory of which nothing is known to elements.

use super::Buffer;
use crate::block::{ALIGN, OwnedBlock, Owner, align_of_elements, bytes_of};
use crate::error::AllocError;
use bytemuck::AnyBitPattern;
use std::mem::MaybeUninit;
use thiserror::Error;

/// Values were given for another number of elements than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{found} values for {expected} elements")]
pub struct LengthError {
    /// Elements there are.
    pub expected: usize,
    /// Values given.
    pub found: usize,
}

/// What [`Pool::alloc`](crate::Pool::alloc) gives: elements that have to be written before they can be read.
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
    pub(crate) fn uninit(owner: Owner, len: usize, align: usize) -> Result<Self, AllocError> {
        let align = align_of_elements::<T>(align)?;
        let block = OwnedBlock::allocate(owner, bytes_of::<T>(len)?, align)?;
        // Anything is a value of `MaybeUninit`.
        Ok(Self::of(block, len))
    }

    /// The same buffer, of elements that are there.
    ///
    /// # Safety
    /// Every element was written.
    #[must_use]
    pub unsafe fn assume_init(self) -> Buffer<T> {
        Buffer::of(self.block, self.len)
    }

    /// The first `len` elements of it.
    ///
    /// # Safety
    /// They were written, and there are as many.
    pub(super) unsafe fn assume_init_first(self, len: usize) -> Buffer<T> {
        Buffer::of(self.block, len)
    }

    /// Copies a slice to the first elements, as many as there are of both.
    pub(super) fn write_first(&mut self, values: &[T]) {
        for (element, value) in self.iter_mut().zip(values) {
            element.write(*value);
        }
    }

    /// A copy of a slice, as long as the shorter of both.
    pub(crate) fn copied(mut self, values: &[T]) -> Buffer<T> {
        let len = self.len().min(values.len());
        self.write_first(values);
        // SAFETY: so many were written just now, and there are as many.
        unsafe { self.assume_init_first(len) }
    }

    /// Writes the same value to every element.
    #[must_use]
    pub fn fill(mut self, value: T) -> Buffer<T> {
        // A plain loop over elements, which compiles to a few wide stores.
        for element in &mut *self {
            element.write(value);
        }
        // SAFETY: every element was written just now.
        unsafe { self.assume_init() }
    }

    /// Copies a slice of just as many elements here.
    ///
    /// # Errors
    /// Where there are more or fewer; the memory is then given back.
    pub fn write_from(mut self, values: &[T]) -> Result<Buffer<T>, LengthError> {
        if values.len() != self.len() {
            return Err(LengthError {
                expected: self.len(),
                found: values.len(),
            });
        }
        self.write_first(values);
        // SAFETY: every element was written just now, as the lengths agree.
        Ok(unsafe { self.assume_init() })
    }

    /// Writes what a function says for each place.
    #[must_use]
    pub fn write_with(mut self, mut value: impl FnMut(usize) -> T) -> Buffer<T> {
        for (index, element) in self.iter_mut().enumerate() {
            element.write(value(index));
        }
        // SAFETY: every element was written just now.
        unsafe { self.assume_init() }
    }
}

impl<T: AnyBitPattern> Buffer<T> {
    /// What an iterator gives, which says how many that are; at most as many are taken of it.
    pub(crate) fn collect(
        owner: Owner,
        values: impl ExactSizeIterator<Item = T>,
    ) -> Result<Self, AllocError> {
        let mut buffer = Buffer::<MaybeUninit<T>>::uninit(owner, values.len(), ALIGN)?;
        let mut written = 0;
        for (element, value) in buffer.iter_mut().zip(values) {
            element.write(value);
            written += 1;
        }
        // SAFETY: as many elements were written just now, and there are at least as many.
        Ok(unsafe { buffer.assume_init_first(written) })
    }
}
