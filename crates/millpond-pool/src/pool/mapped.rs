//! Blocks that are freed without their size, as `malloc` requires.
//!
//! The [map of pages](super::page_map) contains the size of each block, but not the requested size, so the pool's counters count all bytes
//! of a block as requested. Observers and errors get the requested size. The fast path is inlined into `malloc` and `free`, because these
//! are its only callers.

use super::classes::{FINE_UNIT, SMALL, fine_class_and_bytes};
use super::fast::with_last;
use super::heap::{Heap, RawBlock};
use super::page_map::{self, Mapped};
use super::request::AllocRequest;
use millpond_account::error::AllocError;

impl Heap {
    /// Takes a block that can be freed by its address alone from this thread's cache or from the shelf. Returns no block if there is
    /// none, if the request is for more than [`SMALL`] bytes or an alignment of more than 16, or if it needs the slow path.
    #[inline(always)]
    pub(crate) fn pop_mapped(&'static self, requested: usize, align: usize) -> RawBlock {
        if requested > SMALL || align > FINE_UNIT {
            return RawBlock::REFUSED;
        }
        let (class, bytes) = fine_class_and_bytes(requested.max(1));
        with_last(self, RawBlock::REFUSED, |cache| {
            self.pop_class_despite::<false>(cache, class, bytes, bytes)
        })
    }

    /// Allocates a block that can be freed by its address alone, after the fast path has returned `found`, which is no block. If `zeroed`
    /// is true, the first `requested` bytes are zero.
    pub(crate) fn allocate_mapped(
        &'static self,
        requested: usize,
        align: usize,
        zeroed: bool,
        found: RawBlock,
    ) -> Result<RawBlock, AllocError> {
        // The caller of a guarded block may use only the requested bytes, and a guarded pool has its own table of blocks.
        let guarded = self.guard.is_some();
        let bytes = if guarded {
            requested
        } else {
            Self::mapped_block(requested, align)
        };
        let ask = AllocRequest {
            told: requested.max(1),
            zeroed,
            ..AllocRequest::new(bytes, align)
        };
        if requested <= SMALL && align <= FINE_UNIT {
            return self.allocate_slowly(AllocRequest {
                fine: true,
                looks_in_cache: found == RawBlock::REFUSED,
                ..ask
            });
        }
        let taken = if self.is_watched() {
            self.allocate_slowly(ask)?
        } else {
            self.allocate(bytes, align, zeroed)?
        };
        if guarded {
            return Ok(taken);
        }
        if taken.bytes > SMALL && !self.maps(|| page_map::set_large(taken.address, taken.bytes)) {
            self.free(taken, bytes, 0);
            return Err(self.refused_finally(requested, self.refuse_tables(requested)));
        }
        Ok(taken)
    }

    /// Returns the bytes of the block for a request.
    pub(crate) fn mapped_block(requested: usize, align: usize) -> usize {
        if requested <= SMALL && align <= FINE_UNIT {
            return fine_class_and_bytes(requested.max(1)).1;
        }
        RawBlock::of(0, requested, align).bytes
    }

    /// Returns the bytes of a block. Returns `None` if no block of the pool is there.
    pub(crate) fn mapped_bytes(&self, address: usize) -> Option<usize> {
        if let Some(guard) = &self.guard {
            return guard.bytes_at(address);
        }
        match page_map::get(address)? {
            Mapped::Small(_, bytes) | Mapped::Large(bytes) => Some(bytes),
        }
    }

    /// Returns whether a block of the pool may be at an address. Takes no lock.
    pub(crate) fn may_be_mapped(&self, address: usize) -> bool {
        self.guard.is_some() || page_map::get(address).is_some()
    }

    /// Puts a small block into this thread's cache. Returns false if the block is not small, if the cache has no room, or if the free
    /// needs the slow path.
    #[inline(always)]
    pub(crate) fn push_mapped(&'static self, address: usize) -> bool {
        let Some(Mapped::Small(class, bytes)) = page_map::get(address) else {
            return false;
        };
        with_last(self, false, |cache| {
            self.push_class_despite::<false>(cache, class, RawBlock { address, bytes }, bytes)
        })
    }

    /// Frees a block that the fast path did not free. Returns false if no block of the pool is there.
    pub(crate) fn free_mapped(&'static self, address: usize) -> bool {
        if let Some(guard) = &self.guard {
            // A guarded pool has a record of freed blocks, and reports wrong frees itself.
            let bytes = guard.bytes_at(address).unwrap_or(0);
            self.free_slowly(RawBlock { address, bytes }, bytes, 0);
            return true;
        }
        match page_map::get(address) {
            Some(Mapped::Small(_, bytes)) => self.free_slowly(RawBlock { address, bytes }, bytes, 0),
            // If two threads free the same larger block, only one of them removes it from the map.
            Some(Mapped::Large(_)) => {
                let Some(bytes) = page_map::take_large(address) else {
                    return false;
                };
                self.free(RawBlock { address, bytes }, bytes, 0);
            }
            None => return false,
        }
        true
    }
}
