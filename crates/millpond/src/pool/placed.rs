//! What the placement of a pool knows of its blocks, where no account tells more.

use super::heap::Heap;
use crate::reentrancy::inside;
use millpond_engine::PieceState;

impl Heap {
    /// Tells what the pool has memory in: first addresses and bytes, in the order of the policy. Under the pool's lock.
    pub(crate) fn each_range(&self, each: &mut dyn FnMut(u64, u64)) {
        let _inside = inside();
        self.with_engine(|core| {
            core.memory.policy().layout(&mut |piece| {
                if piece.state != PieceState::Unmapped {
                    each(piece.address, piece.bytes);
                }
            });
        });
    }

    /// Tells the blocks in callers' hands that are not cut from spans: address and bytes. What threads keep of such sizes goes back
    /// first. False where blocks are guarded, and so lie elsewhere than they were placed. Under the pool's lock.
    pub(crate) fn each_placed(&self, each: &mut dyn FnMut(u64, u64)) -> bool {
        if self.guard.is_some() {
            return false;
        }
        let _inside = inside();
        self.drain_caches();
        self.with_engine(|core| core.each_large(|address, bytes| each(address as u64, bytes)));
        true
    }
}
