//! Allocates zeroed blocks.

use super::ask::Ask;
use super::heap::{Heap, Taken};
use millpond_account::error::AllocError;
use std::ptr;

/// Sets a part of a block to zero.
///
/// # Safety
/// The bytes are in a block that a pool over memory of this process has just allocated, and nobody else has it.
pub(super) unsafe fn clear(address: usize, bytes: usize) {
    // Calls for 0 bytes are skipped, because they can be slow: if the C library fills with masked stores, such a call takes
    // about 60 ns.
    if bytes == 0 {
        return;
    }
    // SAFETY: the caller guarantees this. The address was exposed when the memory was mapped.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(0, bytes) };
}

impl Heap {
    /// Allocates a block whose first `requested` bytes are zero.
    #[inline]
    pub(crate) fn allocate_zeroed(
        &'static self,
        requested: usize,
        align: usize,
    ) -> Result<Taken, AllocError> {
        if let Some(taken) = self.allocate_hot(requested, align) {
            // SAFETY: the block was just allocated, with at least this many bytes.
            unsafe { clear(taken.address, requested) };
            return Ok(taken);
        }
        let taken = self.allocate_watched(requested, align, true);
        if taken.address != 0 {
            return Ok(taken);
        }
        self.allocate_slowly(Ask::new(requested, align).zeroed())
    }
}
