//! Blocks that read as zero.

use super::ask::Ask;
use super::heap::{Heap, Taken};
use crate::error::AllocError;
use std::ptr;

/// Makes part of a block read as zero.
///
/// # Safety
/// The bytes are of a block that a pool over memory of this process has just taken out of its books, and nobody else has
/// it.
pub(super) unsafe fn clear(address: usize, bytes: usize) {
    // A call for no bytes is not for nothing: where the C library fills with masked stores it costs some 60 ns.
    if bytes == 0 {
        return;
    }
    // SAFETY: the caller's word; the address was exposed by whoever mapped it.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(0, bytes) };
}

impl Heap {
    /// Hands out a block of which the first `requested` bytes read as zero.
    #[inline]
    pub(crate) fn allocate_zeroed(
        &'static self,
        requested: usize,
        align: usize,
    ) -> Result<Taken, AllocError> {
        if let Some(taken) = self.allocate_hot(requested, align) {
            // SAFETY: just handed out, with at least so many bytes.
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
