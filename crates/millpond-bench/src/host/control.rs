//! Measures the cost of the loops: allocates from one touched region in sequence.

use crate::host::allocator::{Allocator, Shape};
use std::alloc::{GlobalAlloc, System};
use std::cell::Cell;
use std::ptr::{self, NonNull};

/// Allocates in sequence, and starts again when everything is freed. It searches nothing and shares nothing, so it measures the
/// loop without an allocator. It is not `Sync`, because each thread has its own.
pub(crate) struct Control {
    /// Invariant: null, or [`REGION`] bytes from the system's heap that only this control uses.
    region: *mut u8,
    next: Cell<usize>,
    live: Cell<usize>,
}

/// The size of the region, which exceeds everything that a loop holds at once, and its alignment.
const REGION: usize = 128 << 20;
const ALIGN: usize = 4096;

// SAFETY: the region belongs to the control and moves with it.
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

// SAFETY: places are allocated in sequence within the region, so they do not overlap, until all of them are freed. The region
// is aligned to 4096, so the places in it can have any alignment up to this.
unsafe impl Allocator for Control {
    #[inline]
    fn alloc(&self, shape: Shape) -> *mut u8 {
        let at = self.next.get().next_multiple_of(shape.align());
        if self.region.is_null() || shape.align() > ALIGN || shape.size() > REGION - at.min(REGION) {
            return ptr::null_mut();
        }
        self.next.set(at + shape.size());
        self.live.set(self.live.get() + 1);
        // SAFETY: the place is within the region, as was just checked.
        unsafe { self.region.add(at) }
    }

    #[inline]
    fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
        let place = self.alloc(shape);
        if !place.is_null() {
            // SAFETY: this many bytes were just allocated there.
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
            // SAFETY: by the invariant the system's heap allocated it with this layout, and no block outlives the control.
            unsafe { System.dealloc(self.region, Shape::new(REGION, ALIGN).layout()) };
        }
    }
}
