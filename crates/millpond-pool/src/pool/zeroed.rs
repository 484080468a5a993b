//! Sets memory to zero.

use std::ptr;

/// Sets a part of a block to zero.
///
/// # Safety
/// The bytes are in a block that a pool over memory of this process has just allocated, and no other code uses it.
#[inline]
pub(super) unsafe fn clear(address: usize, bytes: usize) {
    // Calls for 0 bytes are skipped, because they can be slow: if the C library fills with masked stores, such a call takes
    // about 60 ns.
    if bytes == 0 {
        return;
    }
    // SAFETY: the caller guarantees this. The address was exposed when the memory was mapped.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(0, bytes) };
}
