//! Allocators with the interface of `GlobalAlloc`: all peers.

use crate::host::allocator::{Allocator, Shape};
use std::alloc::GlobalAlloc;
use std::ptr::NonNull;

/// A heap, and its trim function.
pub(crate) struct Global<G> {
    heap: G,
    trim: fn(),
}

impl<G> Global<G> {
    pub(crate) fn new(heap: G, trim: fn()) -> Self {
        Self { heap, trim }
    }
}

// SAFETY: `GlobalAlloc` makes the same promises for any layout with a size other than zero, and a `Shape` is one.
unsafe impl<G: GlobalAlloc> Allocator for Global<G> {
    #[inline]
    fn alloc(&self, shape: Shape) -> *mut u8 {
        // SAFETY: the size of a shape is not zero.
        unsafe { self.heap.alloc(shape.layout()) }
    }

    #[inline]
    fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
        // SAFETY: the size of a shape is not zero.
        unsafe { self.heap.alloc_zeroed(shape.layout()) }
    }

    #[inline]
    unsafe fn free(&self, address: NonNull<u8>, shape: Shape) {
        // SAFETY: the caller guarantees that the address came from this heap with this layout.
        unsafe { self.heap.dealloc(address.as_ptr(), shape.layout()) }
    }

    fn trim(&self) {
        (self.trim)();
    }
}

/// Calls `malloc_trim`.
pub(crate) fn trim_glibc() {
    // SAFETY: the function may be called at any time from any thread.
    unsafe { libc::malloc_trim(0) };
}

/// Calls `mi_collect` with force.
#[cfg(feature = "peers")]
pub(crate) fn trim_mimalloc() {
    // SAFETY: the function may be called at any time from any thread.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Flushes this thread's cache and purges every arena.
#[cfg(feature = "peers")]
pub(crate) fn trim_jemalloc() {
    for name in [c"thread.tcache.flush", c"arena.4096.purge"] {
        // SAFETY: the name ends with a zero, and neither command reads or writes through the other pointers.
        unsafe {
            tikv_jemalloc_sys::mallctl(
                name.as_ptr(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
            )
        };
    }
}

/// For an allocator without such a call.
#[cfg(any(test, feature = "peers"))]
pub(crate) fn no_trim() {}
