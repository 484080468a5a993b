//! Casts between element types.

use super::Buffer;
use bytemuck::{NoUninit, Pod};
use std::ptr::NonNull;

/// Casts to other element types. Nothing is copied.
///
/// ```
/// let pool = millpond::Pool::host()?;
/// let bytes = pool.alloc_from(&[1u16, 0, 2, 0])?.into_bytes();
/// assert_eq!(bytes.len(), 8);
/// let words = bytes.try_cast::<u32>().expect("two of them");
/// assert_eq!(words[..], [1u32, 2].map(u32::to_le));
/// assert!(words.try_cast::<[u32; 3]>().is_err(), "the bytes are no whole number of these");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<T: Pod> Buffer<T> {
    /// Casts the buffer to elements of another type.
    ///
    /// # Errors
    /// Returns the buffer itself if its bytes are not a whole number of such elements, or if its address is not aligned for
    /// them.
    pub fn try_cast<U: Pod>(self) -> Result<Buffer<U>, Self> {
        const {
            assert!(
                size_of::<U>() > 0,
                "elements of zero size need no memory: use a type whose size is not zero"
            );
        };
        let (whole, len) = (
            self.bytes().is_multiple_of(size_of::<U>()),
            self.bytes() / size_of::<U>(),
        );
        if !whole || self.block.align() < align_of::<U>() {
            return Err(self);
        }
        // Initialised bytes without padding are values of any plain type, and `len` of them fit.
        Ok(Buffer::of(self.block, len))
    }
}

impl<T: NoUninit> Buffer<T> {
    /// Casts the buffer to bytes.
    #[must_use]
    pub fn into_bytes(self) -> Buffer<u8> {
        // Elements without padding are initialised bytes.
        let len = self.bytes();
        Buffer::of(self.block, len)
    }
}

impl<T> Buffer<T> {
    #[doc(hidden)]
    pub fn pointer(&self) -> NonNull<u8> {
        self.block.pointer()
    }
}
