//! What is written around a block and into one that was freed, and whether it is still there.

use std::ptr;

/// Around a block.
pub(super) const AROUND: u8 = 0xfd;
/// In a block that was freed.
pub(super) const FREED: u8 = 0xdf;

/// Fills bytes from one address to another.
///
/// # Safety
/// They are open memory of a pool, and no caller's.
pub(super) unsafe fn fill(from: usize, to: usize, with: u8) {
    let bytes = to.saturating_sub(from);
    // SAFETY: the caller's word; the address was exposed by whoever mapped it.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(from).write_bytes(with, bytes) };
}

/// The first address at which the bytes are not as they were filled.
///
/// # Safety
/// They are open memory of a pool, were [filled](fill), and nobody has a right to write to them.
pub(super) unsafe fn first_other(from: usize, to: usize, with: u8) -> Option<usize> {
    (from..to).find(|at| {
        let byte = ptr::with_exposed_provenance::<u8>(*at);
        // SAFETY: the caller's word. Volatile: whoever writes there has no right to, and is what is looked for.
        unsafe { byte.read_volatile() != with }
    })
}

/// Whether so many bytes behind a guarded block are as they were filled.
///
/// # Safety
/// They are open, of the block's pages, and not its caller's.
pub(crate) unsafe fn is_filled_around(from: usize, bytes: usize) -> bool {
    // SAFETY: the caller's word.
    unsafe { first_other(from, from + bytes, AROUND) }.is_none()
}

/// Fills them again.
///
/// # Safety
/// As for [`is_filled_around`].
pub(crate) unsafe fn refill_around(from: usize, bytes: usize) {
    // SAFETY: the caller's word.
    unsafe { fill(from, from + bytes, AROUND) };
}
