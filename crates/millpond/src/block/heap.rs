//! What a block asks of a pool's heap beyond taking and freeing.

use crate::pool::{PoolBlock, PoolHeap};
use std::ptr;

/// Takes what the first `bytes` of a block hold to another block. What the first then holds is not said.
///
/// # Safety
/// Both blocks are the caller's alone, of this heap, and have these bytes.
pub(super) unsafe fn move_contents(_heap: &'static PoolHeap, from: PoolBlock, to: PoolBlock, bytes: usize) {
    let source: *const u8 = ptr::with_exposed_provenance(from.address);
    let target: *mut u8 = ptr::with_exposed_provenance_mut(to.address);
    // SAFETY: both have these bytes, and as two blocks they share none.
    unsafe { source.copy_to_nonoverlapping(target, bytes) };
}
