//! Buffers taken apart, for interfaces that know pointers only.

use super::Buffer;
use crate::block::OwnedBlock;
use bytemuck::AnyBitPattern;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// A [`Buffer`] without its type, which nothing gives back until it is a buffer again.
///
/// What crosses a C interface is `Box::into_raw(Box::new(raw))` as a handle, with [`pointer`](Self::pointer) beside it.
#[derive(Debug)]
#[must_use = "memory that is not made a buffer again is never given back"]
pub struct RawBuffer {
    block: ManuallyDrop<OwnedBlock>,
    len: usize,
}

impl RawBuffer {
    /// The first byte.
    #[must_use]
    pub fn pointer(&self) -> NonNull<u8> {
        self.block.pointer()
    }

    /// Elements it was made of.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.len
    }

    /// Bytes of the block, which may be more than the elements need.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.block.bytes()
    }
}

/// Apart and together again.
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
    /// Takes the buffer apart. Its memory is given back only by way of [`from_raw`](Self::from_raw).
    pub fn into_raw(self) -> RawBuffer {
        RawBuffer {
            block: ManuallyDrop::new(self.block),
            len: self.len,
        }
    }

    /// Puts a buffer together again.
    ///
    /// # Safety
    /// `raw` was made of a buffer of `T`, or of a type of the same size of which every value that it holds is one of `T`,
    /// and of no smaller alignment. Nothing else reads or writes its elements any more.
    #[must_use]
    pub unsafe fn from_raw(raw: RawBuffer) -> Self {
        Self::of(ManuallyDrop::into_inner(raw.block), raw.len)
    }
}
