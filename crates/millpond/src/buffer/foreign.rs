//! Bytes of others as a buffer, for tensors to stand on.

use super::Buffer;
use crate::block::{Foreign, OwnedBlock};
use crate::dtype::Element;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

impl Buffer<u8> {
    /// Bytes of others. Whoever holds the buffer lets nobody write to it where it is not [writable](Self::is_writable), and
    /// lets it out of hand for nobody: its address is no multiple of 64, and it cannot grow.
    ///
    /// # Safety
    /// From `pointer` on, which is a multiple of the power of two `align`, there are `bytes` bytes that are initialised and
    /// may be read from any thread for as long as `owner` lives. Nobody else writes to them meanwhile; where the owner
    /// says writable, they may be written too, and nobody else has them.
    pub(crate) unsafe fn foreign(
        pointer: NonNull<u8>,
        bytes: usize,
        align: usize,
        owner: Arc<Foreign>,
    ) -> Self {
        // SAFETY: the caller's promise.
        let block = unsafe { OwnedBlock::foreign(pointer, bytes, align, owner) };
        Self::of(block, bytes)
    }
}

/// The memory of a `Vec`.
///
/// Invariant: the parts are those of one, which nobody else takes apart or puts together again.
struct OfVec<T> {
    pointer: NonNull<T>,
    len: usize,
    capacity: usize,
}

// SAFETY: it is a `Vec`, taken apart, and lends no element.
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
    /// The bytes of a `Vec`'s elements, in its own memory.
    pub(crate) fn of_vec<T: Element>(values: Vec<T>) -> Self {
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
        // SAFETY: a `Vec`'s elements are aligned, and as plain data initialised bytes; they are the keeper's, who keeps them
        // and gives them to nobody.
        unsafe { Self::foreign(pointer.cast(), bytes, align_of::<T>(), owner) }
    }
}

impl<T> Buffer<T> {
    /// Whether the memory is that of others.
    pub(crate) fn is_foreign(&self) -> bool {
        self.block.owner().foreign().is_some()
    }

    /// Whether the memory may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.block.owner().foreign().is_none_or(Foreign::is_writable)
    }
}
