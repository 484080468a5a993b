//! The owners of blocks, which free them.

use super::direct::Direct;
use super::foreign::Foreign;
use crate::pool::{PoolHeap, PoolRef, RawBlock, Terms};
use millpond_account::memory::MemoryKind;
use millpond_os::device::Device;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// A pool, a source that is used directly, or foreign memory. It stays for as long as a block of it is held.
#[derive(Clone)]
pub enum Owner {
    /// A pool.
    Pool(&'static PoolHeap),
    /// A pool with a tenant's budget and timeout.
    Tenant(Arc<Terms>),
    /// A source without a pool.
    Direct(Arc<Direct>),
    /// Foreign memory, which cannot grow.
    Foreign(Arc<Foreign>),
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pool(), self.foreign()) {
            (Some(pool), _) => pool.fmt(f),
            (None, Some(foreign)) => foreign.fmt(f),
            (None, None) => f.write_str("Unpooled"),
        }
    }
}

fn taken(pointer: NonNull<u8>, bytes: usize) -> RawBlock {
    RawBlock {
        address: pointer.as_ptr().expose_provenance(),
        bytes,
    }
}

impl Owner {
    /// Frees a block.
    ///
    /// # Safety
    /// This owner allocated it for `requested` bytes, and nothing uses it any more.
    pub(super) unsafe fn free(&self, pointer: NonNull<u8>, bytes: usize, requested: usize) {
        match self {
            Self::Pool(heap) => heap.free(taken(pointer, bytes), requested, 0),
            Self::Tenant(terms) => terms.heap().free(taken(pointer, bytes), requested, 0),
            Self::Direct(source) => source.free(pointer),
            // The memory is returned when the last reference to this owner is dropped.
            Self::Foreign(_) => {}
        }
    }

    /// Moves the first `keep` bytes of the block `from` to the block `to`. The other bytes of `to` do not change. The contents of
    /// `from` are unspecified afterwards.
    ///
    /// # Safety
    /// Both must be blocks of this owner that only the caller uses, and both must have at least `keep` bytes.
    pub(super) unsafe fn move_contents(&self, from: NonNull<u8>, to: NonNull<u8>, keep: usize) {
        match self {
            // SAFETY: the caller guarantees this, and two blocks do not overlap.
            Self::Pool(_) | Self::Tenant(_) => unsafe { from.copy_to_nonoverlapping(to, keep) },
            // SAFETY: the caller guarantees the same conditions.
            Self::Direct(source) => unsafe { source.move_contents(from, to, keep) },
            // A foreign owner has one block only.
            Self::Foreign(_) => {}
        }
    }

    /// Records that a block is deliberately never freed.
    pub(super) fn note_leaked(&self, pointer: NonNull<u8>) {
        let heap = match self {
            Self::Pool(heap) => heap,
            Self::Tenant(terms) => terms.heap(),
            Self::Direct(_) | Self::Foreign(_) => return,
        };
        if let Some(ledger) = heap.ledger() {
            ledger.note_leaked(pointer.addr().get());
        }
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        match self {
            Self::Pool(heap) => heap.kind(),
            Self::Tenant(terms) => terms.heap().kind(),
            Self::Direct(source) => source.kind(),
            Self::Foreign(_) => MemoryKind::Host,
        }
    }

    pub(crate) fn device(&self) -> Device {
        // The host can access every kind of memory that a block of bytes is in.
        Device::Host
    }

    pub(crate) fn pool(&self) -> Option<PoolRef> {
        match self {
            Self::Pool(heap) => Some(PoolRef::of(heap)),
            Self::Tenant(terms) => Some(PoolRef::of(terms.heap())),
            Self::Direct(_) | Self::Foreign(_) => None,
        }
    }

    /// Returns the foreign owner, if the memory is foreign.
    pub(crate) fn foreign(&self) -> Option<&Foreign> {
        match self {
            Self::Foreign(foreign) => Some(foreign),
            _ => None,
        }
    }
}
