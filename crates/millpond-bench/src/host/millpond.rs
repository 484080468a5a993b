//! Millpond's own row: a pool over host memory with the defaults of a release build, which tracks no live blocks.

use crate::host::allocator::{Allocator, Shape};
use millpond::Pool;
use std::ptr::{self, NonNull};

/// The pool that is measured.
pub(crate) struct Millpond(Pool);

impl Millpond {
    /// Creates a pool with a policy over ordinary memory.
    pub(crate) fn new(policy: &str) -> Result<Self, String> {
        let pool = Pool::builder().policy(policy).track(None).host();
        pool.map(Self).map_err(|error| error.to_string())
    }
}

// SAFETY: a block of the pool is memory of at least the requested size and alignment, which no other block overlaps until it is
// freed. The pool is in `self` and lives as long.
unsafe impl Allocator for Millpond {
    fn alloc(&self, shape: Shape) -> *mut u8 {
        match self.0.allocate(shape.layout()) {
            Ok(block) => block.cast().as_ptr(),
            Err(_) => ptr::null_mut(),
        }
    }

    fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
        match self.0.allocate_zeroed(shape.layout()) {
            Ok(block) => block.cast().as_ptr(),
            Err(_) => ptr::null_mut(),
        }
    }

    unsafe fn free(&self, address: NonNull<u8>, shape: Shape) {
        // SAFETY: the caller got the address from `alloc` with this shape and does not use it any more.
        unsafe { self.0.deallocate(address, shape.layout()) };
    }

    fn trim(&self) {
        self.0.trim();
    }
}
