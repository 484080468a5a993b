//! Operations of a block on a pool's heap besides allocating and freeing.

use crate::pool::{PoolBlock, PoolHeap};
use std::ptr;

/// Moves the first `bytes` bytes of a block to another block. The contents of the first are unspecified afterwards.
///
/// # Safety
/// Both blocks belong to the caller alone, are of this heap, and have these bytes.
pub(super) unsafe fn move_contents(_heap: &'static PoolHeap, from: PoolBlock, to: PoolBlock, bytes: usize) {
    let source: *const u8 = ptr::with_exposed_provenance(from.address);
    let target: *mut u8 = ptr::with_exposed_provenance_mut(to.address);
    // SAFETY: both blocks have these bytes, and two blocks do not overlap.
    unsafe { source.copy_to_nonoverlapping(target, bytes) };
}
