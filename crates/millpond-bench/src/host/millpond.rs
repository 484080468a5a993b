//! Millpond's own row: a pool over host memory, with the defaults of a release build, which keeps no account of live blocks.

use crate::host::allocator::{Allocator, Shape};
use millpond::Pool;
use std::ptr::{self, NonNull};

/// What the row is measured with.
pub(crate) struct Millpond(Pool);

impl Millpond {
    /// A policy over ordinary memory.
    pub(crate) fn new(policy: &str) -> Result<Self, String> {
        let pool = Pool::builder().policy(policy).track(None).host();
        pool.map(Self).map_err(|error| error.to_string())
    }
}

// SAFETY: a block of the pool is memory that nobody else is given until the block is freed, of at least the bytes and at
// the alignment asked for. The pool is in `self` and lives as long.
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
        // SAFETY: the caller has it from `alloc` with this shape and uses it no more.
        unsafe { self.0.deallocate(address, shape.layout()) };
    }

    fn trim(&self) {
        self.0.trim();
    }
}
