//! What the placement of a device's pool knows of its blocks, where no account tells more.

use super::DevicePool;
use crate::event::PoolLabel;
use millpond_engine::PieceState;

impl DevicePool {
    /// What tells the pool from others.
    pub(crate) fn label(&self) -> PoolLabel {
        self.0.watchers().pool().clone()
    }

    /// Tells what the pool has memory in: first addresses and bytes, in the order of the policy. Under the pool's lock.
    pub(crate) fn each_range(&self, each: &mut dyn FnMut(u64, u64)) {
        // A process that was forked has none of it.
        let _ = self.0.with_core(|core| {
            core.memory.policy().layout(&mut |piece| {
                if piece.state != PieceState::Unmapped {
                    each(piece.address, piece.bytes);
                }
            });
        });
    }

    /// Tells blocks that are in callers' hands, or were given back and wait for a stream: address, bytes, and no stream, which the
    /// placement does not know. Under the pool's lock.
    pub(crate) fn each_placed(&self, each: &mut dyn FnMut(u64, u64, u32)) -> bool {
        let told = self.0.with_core(|core| {
            let returned = &core.returned;
            core.memory.policy().layout(&mut |piece| {
                let came_back = || returned.iter().any(|of| of.block.address() == piece.address);
                if piece.state == PieceState::Live && !came_back() {
                    each(piece.address, piece.bytes, 0);
                }
            });
        });
        told.is_ok()
    }
}
