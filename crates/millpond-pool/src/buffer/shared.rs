//! Shared, read-only buffers.

use super::Buffer;
use bytemuck::AnyBitPattern;
use std::fmt;
use std::ops::{Bound, Deref, Range, RangeBounds};
use std::sync::Arc;

/// A part of a buffer that several owners share. It is read-only, cheap to clone and to slice, and can be used from any
/// thread. The memory is freed when the last owner is dropped.
///
/// ```
/// use millpond::Pool;
///
/// let pool = Pool::host()?;
/// let whole = pool.alloc_from(&[1, 2, 3, 4, 5, 6])?.into_shared();
/// let middle = whole.slice(2..4).expect("inside");
/// assert_eq!((middle[..].iter().sum::<i32>(), middle.holders()), (7, 2));
/// assert!(whole.slice(5..8).is_none());
///
/// let whole = whole.try_into_buffer().expect_err("the part is still held");
/// drop(middle);
/// let mut alone = whole.try_into_buffer().expect("the last holder");
/// alone[0] = 9;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedBuffer<T> {
    whole: Arc<Buffer<T>>,
    part: Range<usize>,
}

impl<T> Clone for SharedBuffer<T> {
    fn clone(&self) -> Self {
        Self {
            whole: Arc::clone(&self.whole),
            part: self.part.clone(),
        }
    }
}

impl<T: AnyBitPattern> Buffer<T> {
    /// Converts the buffer to a shared one. Nothing is copied.
    #[must_use]
    pub fn into_shared(self) -> SharedBuffer<T> {
        SharedBuffer {
            part: 0..self.len(),
            whole: Arc::new(self),
        }
    }
}

impl<T: AnyBitPattern> SharedBuffer<T> {
    /// Returns a part of this part, which shares the memory, or `None` if the range is not inside this part.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Option<Self> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1)?,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.part.len(),
        };
        (start <= end && end <= self.part.len()).then(|| Self {
            whole: Arc::clone(&self.whole),
            part: self.part.start + start..self.part.start + end,
        })
    }

    /// Returns the number of current owners of the buffer or a part of it, including this one.
    #[must_use]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.whole)
    }

    /// Returns the buffer that this is a part of.
    #[must_use]
    pub fn whole(&self) -> &Buffer<T> {
        &self.whole
    }

    /// Returns the elements of this part as a mutable slice, if the buffer has no other owner.
    #[must_use]
    pub fn get_mut(&mut self) -> Option<&mut [T]> {
        let whole = Arc::get_mut(&mut self.whole)?;
        whole.get_mut(self.part.clone())
    }

    /// Converts this part to the whole buffer. Nothing is copied.
    ///
    /// # Errors
    /// Returns this part if the buffer has other owners.
    pub fn try_into_buffer(self) -> Result<Buffer<T>, Self> {
        let Self { whole, part } = self;
        Arc::try_unwrap(whole).map_err(|whole| Self { whole, part })
    }

    /// Frees the memory now.
    ///
    /// # Errors
    /// Returns this part if the buffer has other owners. [`holders`](Self::holders) returns their number.
    pub fn try_free(self) -> Result<(), Self> {
        self.try_into_buffer().map(Buffer::free)
    }
}

impl<T: AnyBitPattern> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // Parts are inside the buffer, and a shared buffer does not change its length.
        &self.whole[self.part.clone()]
    }
}

impl<T: AnyBitPattern> From<Buffer<T>> for SharedBuffer<T> {
    fn from(buffer: Buffer<T>) -> Self {
        buffer.into_shared()
    }
}

impl<T: AnyBitPattern + fmt::Debug> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
