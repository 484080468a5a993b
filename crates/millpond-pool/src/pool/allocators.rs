//! Pools as the allocators of collections.
//!
//! `allocator-api2` provides the interface that is unstable in the standard library. Its versions are incompatible with
//! each other: 0.4 is the newest, and `hashbrown` uses 0.2. They have the same shape.

use super::Pool;
use std::alloc::Layout;
use std::ptr::NonNull;

macro_rules! allocator {
    ($feature:literal, $api:ident) => {
        // SAFETY: no other code uses a block's memory until it is freed. Its address does not change, even if the handle is
        // moved or cloned: clones are handles of the same pool, and a live block stays valid after the last handle is
        // dropped. A block has exactly the requested bytes, so it is freed with the layout that it was allocated for.
        #[cfg(feature = $feature)]
        unsafe impl $api::alloc::Allocator for Pool {
            #[inline]
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, $api::alloc::AllocError> {
                Pool::allocate(self, layout).map_err(|_| $api::alloc::AllocError)
            }

            #[inline]
            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, $api::alloc::AllocError> {
                Pool::allocate_zeroed(self, layout).map_err(|_| $api::alloc::AllocError)
            }

            #[inline]
            unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
                // SAFETY: the caller guarantees the same conditions.
                unsafe { Pool::deallocate(self, pointer, layout) }
            }

            unsafe fn grow(
                &self,
                pointer: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $api::alloc::AllocError> {
                // SAFETY: the caller guarantees the same conditions.
                unsafe { self.resize(pointer, old, new) }.map_err(|_| $api::alloc::AllocError)
            }

            unsafe fn grow_zeroed(
                &self,
                pointer: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $api::alloc::AllocError> {
                // SAFETY: the caller guarantees the same conditions.
                let block = unsafe { self.resize(pointer, old, new) }.map_err(|_| $api::alloc::AllocError)?;
                let more = new.size().saturating_sub(old.size());
                // SAFETY: the block has the bytes of the new layout. The first of them are those of the old one.
                let rest = unsafe { block.cast::<u8>().add(new.size() - more) };
                // SAFETY: `more` bytes follow in the block, which belongs to the caller alone.
                unsafe { rest.write_bytes(0, more) };
                Ok(block)
            }

            unsafe fn shrink(
                &self,
                pointer: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $api::alloc::AllocError> {
                // SAFETY: the caller guarantees the same conditions.
                unsafe { self.resize(pointer, old, new) }.map_err(|_| $api::alloc::AllocError)
            }
        }
    };
}

allocator!("allocator-api2", allocator_api2);
allocator!("allocator-api2-02", allocator_api2_02);
