//! What the loops themselves cost: one region, touched before, given out in a row.

use crate::host::allocator::{Allocator, Shape};
use std::alloc::{GlobalAlloc, System};
use std::cell::Cell;
use std::ptr::{self, NonNull};

/// Gives memory in a row, and begins anew once everything is back. It searches nothing and shares nothing, so it
/// is what is left of a measurement when the allocator is taken out of it. Not `Sync`: each thread has its own.
pub(crate) struct Control {
    /// Invariant: null, or [`REGION`] bytes from the system's heap that only this control uses.
    region: *mut u8,
    next: Cell<usize>,
    live: Cell<usize>,
}

/// More than any loop it runs holds at once, and the alignment of the start.
const REGION: usize = 128 << 20;
const ALIGN: usize = 4096;

// SAFETY: the region is its own, and moves with it.
unsafe impl Send for Control {}

impl Control {
    pub(crate) fn new() -> Self {
        let shape = Shape::new(REGION, ALIGN);
        // SAFETY: the size of a shape is not zero.
        let region = unsafe { System.alloc(shape.layout()) };
        if !region.is_null() {
            // SAFETY: the bytes were just allocated.
            unsafe { region.write_bytes(1, REGION) };
        }
        Self {
            region,
            next: Cell::new(0),
            live: Cell::new(0),
        }
    }
}

// SAFETY: places are given in a row within the region, so apart from one another, until all of them are back. The
// region begins at a multiple of 4096, and a place at a multiple of the alignment if that is no more.
unsafe impl Allocator for Control {
    #[inline]
    fn alloc(&self, shape: Shape) -> *mut u8 {
        let at = self.next.get().next_multiple_of(shape.align());
        if self.region.is_null() || shape.align() > ALIGN || shape.size() > REGION - at.min(REGION) {
            return ptr::null_mut();
        }
        self.next.set(at + shape.size());
        self.live.set(self.live.get() + 1);
        // SAFETY: within the region, as was just looked at.
        unsafe { self.region.add(at) }
    }

    #[inline]
    fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
        let place = self.alloc(shape);
        if !place.is_null() {
            // SAFETY: so many bytes were just given there.
            unsafe { place.write_bytes(0, shape.size()) };
        }
        place
    }

    #[inline]
    unsafe fn free(&self, _: NonNull<u8>, _: Shape) {
        let live = self.live.get() - 1;
        self.live.set(live);
        if live == 0 {
            self.next.set(0);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if !self.region.is_null() {
            // SAFETY: by the invariant the system's heap gave it for this layout, and no block outlives us.
            unsafe { System.dealloc(self.region, Shape::new(REGION, ALIGN).layout()) };
        }
    }
}
