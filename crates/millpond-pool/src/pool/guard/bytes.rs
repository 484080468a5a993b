//! The fill around a live block and in a freed block, and the check that it is unchanged.

use std::ptr;

/// The fill around a block.
pub(super) const AROUND: u8 = 0xfd;
/// The fill of a freed block.
pub(super) const FREED: u8 = 0xdf;

/// Fills the bytes from one address to another.
///
/// # Safety
/// The bytes are accessible memory of a pool, and no caller owns them.
pub(super) unsafe fn fill(from: usize, to: usize, with: u8) {
    let bytes = to.saturating_sub(from);
    // SAFETY: the caller guarantees this. The address was exposed when the memory was mapped.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(from).write_bytes(with, bytes) };
}

/// Returns the first address at which the fill has changed.
///
/// # Safety
/// The bytes are accessible memory of a pool, were [filled](fill), and no code may write to them.
pub(super) unsafe fn first_other(from: usize, to: usize, with: u8) -> Option<usize> {
    (from..to).find(|at| {
        let byte = ptr::with_exposed_provenance::<u8>(*at);
        // SAFETY: the caller guarantees this. The read is volatile, because this searches for invalid writes by the program.
        unsafe { byte.read_volatile() != with }
    })
}

/// Returns whether the fill of the first `bytes` bytes after a guarded block is unchanged.
///
/// # Safety
/// The bytes are accessible, in the block's pages, and do not belong to its caller.
pub(crate) unsafe fn is_filled_around(from: usize, bytes: usize) -> bool {
    // SAFETY: the caller guarantees this.
    unsafe { first_other(from, from + bytes, AROUND) }.is_none()
}

/// Fills the bytes after a guarded block again.
///
/// # Safety
/// The requirements of [`is_filled_around`] apply.
pub(crate) unsafe fn refill_around(from: usize, bytes: usize) {
    // SAFETY: the caller guarantees this.
    unsafe { fill(from, from + bytes, AROUND) };
}
