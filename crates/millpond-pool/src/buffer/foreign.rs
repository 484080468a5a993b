//! Buffers over memory that another library or a `Vec` owns, for use by tensors.

use super::Buffer;
use crate::block::{Foreign, OwnedBlock};
use crate::dtype::Element;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

impl Buffer<u8> {
    /// Creates a buffer over memory that the pool does not own. The holder of the buffer must prevent writes if it is not
    /// [writable](Self::is_writable), and must not pass the buffer to callers: its address need not be a multiple of 64,
    /// and it cannot grow.
    ///
    /// # Safety
    /// The `bytes` bytes at `pointer`, which is a multiple of the power of two `align`, are initialised and may be read
    /// from any thread for as long as `owner` lives. No other code writes to them during that time. If the owner is writable,
    /// they may also be written, and no other code accesses them.
    #[doc(hidden)]
    pub unsafe fn foreign(pointer: NonNull<u8>, bytes: usize, align: usize, owner: Arc<Foreign>) -> Self {
        // SAFETY: the caller guarantees the same conditions.
        let block = unsafe { OwnedBlock::foreign(pointer, bytes, align, owner) };
        Self::of(block, bytes)
    }
}

/// The memory of a `Vec`.
///
/// Invariant: the parts are those of one `Vec`, which no other code takes apart or reassembles.
struct OfVec<T> {
    pointer: NonNull<T>,
    len: usize,
    capacity: usize,
}

// SAFETY: it is a `Vec` that was taken apart, and it lends no element.
unsafe impl<T: Send> Send for OfVec<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for OfVec<T> {}

impl<T> Drop for OfVec<T> {
    fn drop(&mut self) {
        // SAFETY: by the invariant these are the parts of a `Vec`, and the drop runs once.
        drop(unsafe { Vec::from_raw_parts(self.pointer.as_ptr(), self.len, self.capacity) });
    }
}

impl Buffer<u8> {
    /// Creates a buffer of the bytes of a `Vec`'s elements. The memory is not copied.
    #[doc(hidden)]
    pub fn of_vec<T: Element>(values: Vec<T>) -> Self {
        let mut values = ManuallyDrop::new(values);
        let bytes = size_of_val(values.as_slice());
        let (len, capacity) = (values.len(), values.capacity());
        let pointer = NonNull::new(values.as_mut_ptr()).unwrap_or(NonNull::dangling());
        let keeper = Box::new(OfVec {
            pointer,
            len,
            capacity,
        });
        let owner = Arc::new(Foreign::new(bytes, true, keeper));
        // SAFETY: a `Vec`'s elements are aligned, and as plain data they are initialised bytes. The keeper owns them, keeps
        // them allocated and gives no other code access.
        unsafe { Self::foreign(pointer.cast(), bytes, align_of::<T>(), owner) }
    }
}

impl<T> Buffer<T> {
    /// Returns whether the memory belongs to another library or a `Vec`.
    pub(crate) fn is_foreign(&self) -> bool {
        self.block.owner().foreign().is_some()
    }

    /// Returns whether the memory may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.block.owner().foreign().is_none_or(Foreign::is_writable)
    }
}
