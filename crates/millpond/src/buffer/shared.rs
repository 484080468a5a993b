//! One buffer in several hands, read only.

use super::Buffer;
use bytemuck::AnyBitPattern;
use std::fmt;
use std::ops::{Bound, Deref, Range, RangeBounds};
use std::sync::Arc;

/// A part of a buffer that several hold: cheap to clone and to cut, read only, from any thread. The memory goes back with
/// the last of them.
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
    /// The buffer as one that several may hold. Nothing is copied.
    #[must_use]
    pub fn into_shared(self) -> SharedBuffer<T> {
        SharedBuffer {
            part: 0..self.len(),
            whole: Arc::new(self),
        }
    }
}

impl<T: AnyBitPattern> SharedBuffer<T> {
    /// A part of this part, which shares the memory; none where it would not lie inside.
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

    /// How many hold the buffer or a part of it now, this one included.
    #[must_use]
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.whole)
    }

    /// The buffer this is a part of.
    #[must_use]
    pub fn whole(&self) -> &Buffer<T> {
        &self.whole
    }

    /// The elements of this part to be written, if nobody else holds the buffer.
    #[must_use]
    pub fn get_mut(&mut self) -> Option<&mut [T]> {
        let whole = Arc::get_mut(&mut self.whole)?;
        whole.get_mut(self.part.clone())
    }

    /// The whole buffer, whatever part this is. Nothing is copied.
    ///
    /// # Errors
    /// This part, if others hold the buffer too.
    pub fn try_into_buffer(self) -> Result<Buffer<T>, Self> {
        let Self { whole, part } = self;
        Arc::try_unwrap(whole).map_err(|whole| Self { whole, part })
    }

    /// Gives the memory back now.
    ///
    /// # Errors
    /// This part, if others hold the buffer too: [`holders`](Self::holders) says how many.
    pub fn try_free(self) -> Result<(), Self> {
        self.try_into_buffer().map(Buffer::free)
    }
}

impl<T: AnyBitPattern> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // Parts lie inside, and a shared buffer keeps its length.
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
