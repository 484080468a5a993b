//! Pools as the allocators of collections.
//!
//! `allocator-api2` has the interface that the standard library keeps unstable, in versions that do not know each other:
//! 0.4 is the newest, 0.2 is what `hashbrown` speaks. They have the same shape.

use super::Pool;
use std::alloc::Layout;
use std::ptr::NonNull;

macro_rules! allocator {
    ($feature:literal, $api:ident) => {
        // SAFETY: a block is memory that nobody else has until it is given back, at one address, also when the handle moves
        // or is cloned: clones are handles of the same pool, and a block in a caller's hand stays when the last one is gone.
        // A block has just the bytes asked for, so the layout it goes back with is the one it was handed out for.
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
                // SAFETY: the caller promises what is asked for.
                unsafe { Pool::deallocate(self, pointer, layout) }
            }

            unsafe fn grow(
                &self,
                pointer: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $api::alloc::AllocError> {
                // SAFETY: the caller promises what is asked for.
                unsafe { self.resize(pointer, old, new) }.map_err(|_| $api::alloc::AllocError)
            }

            unsafe fn grow_zeroed(
                &self,
                pointer: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $api::alloc::AllocError> {
                // SAFETY: the caller promises what is asked for.
                let block = unsafe { self.resize(pointer, old, new) }.map_err(|_| $api::alloc::AllocError)?;
                let more = new.size().saturating_sub(old.size());
                // SAFETY: the block has the bytes of the new layout, of which the old one's are the first.
                let rest = unsafe { block.cast::<u8>().add(new.size() - more) };
                // SAFETY: so many follow in the block, which is the caller's alone.
                unsafe { rest.write_bytes(0, more) };
                Ok(block)
            }

            unsafe fn shrink(
                &self,
                pointer: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $api::alloc::AllocError> {
                // SAFETY: the caller promises what is asked for.
                unsafe { self.resize(pointer, old, new) }.map_err(|_| $api::alloc::AllocError)
            }
        }
    };
}

allocator!("allocator-api2", allocator_api2);
allocator!("allocator-api2-02", allocator_api2_02);
