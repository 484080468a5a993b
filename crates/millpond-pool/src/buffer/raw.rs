//! Raw parts of buffers, for interfaces that use pointers.

use super::Buffer;
use crate::block::OwnedBlock;
use bytemuck::AnyBitPattern;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// A [`Buffer`] without its element type. It is not freed until it is converted to a buffer again.
///
/// To pass one through a C interface, pass `Box::into_raw(Box::new(raw))` as a handle together with
/// [`pointer`](Self::pointer).
#[derive(Debug)]
#[must_use = "the memory is leaked unless it is made a buffer again"]
pub struct RawBuffer {
    block: ManuallyDrop<OwnedBlock>,
    len: usize,
}

impl RawBuffer {
    /// Returns a pointer to the first byte.
    #[must_use]
    pub fn pointer(&self) -> NonNull<u8> {
        self.block.pointer()
    }

    /// Returns the number of elements of the original buffer.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.len
    }

    /// Returns the bytes of the block, which may be more than the elements need.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.block.bytes()
    }
}

/// Conversions to and from raw parts.
///
/// ```
/// use millpond::{Buffer, Pool};
///
/// let pool = Pool::host()?;
/// let raw = pool.alloc_from(&[1.0f32, 2.0])?.into_raw();
/// // SAFETY: nothing else uses the elements.
/// unsafe { raw.pointer().cast::<f32>().write(5.0) };
/// // SAFETY: it was a buffer of `f32`, and nothing else uses it.
/// let buffer: Buffer<f32> = unsafe { Buffer::from_raw(raw) };
/// assert_eq!(buffer[..], [5.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<T: AnyBitPattern> Buffer<T> {
    /// Converts the buffer to its raw parts. Its memory is not freed unless [`from_raw`](Self::from_raw) converts them back.
    pub fn into_raw(self) -> RawBuffer {
        RawBuffer {
            block: ManuallyDrop::new(self.block),
            len: self.len,
        }
    }

    /// Creates a buffer from its raw parts.
    ///
    /// # Safety
    /// `raw` was made from a buffer of `T`, or of a type of the same size and of no smaller alignment, and every stored
    /// value of that type is a valid `T`. Nothing else reads or writes its elements any more.
    #[must_use]
    pub unsafe fn from_raw(raw: RawBuffer) -> Self {
        Self::of(ManuallyDrop::into_inner(raw.block), raw.len)
    }
}
