//! No pool at all: every block a map of its own, fresh from the system and back to it at once.

use crate::host::allocator::{Allocator, Shape};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::{self, NonNull};

/// What "without pooling" means on a host: a system call for each allocation and each free, and fresh pages.
pub(crate) struct Unpooled;

/// The alignment of every map.
const PAGE: usize = 4096;

/// The bytes of a block's map.
fn mapped(shape: Shape) -> Option<usize> {
    shape.size().checked_next_multiple_of(PAGE)
}

// SAFETY: each block is a private anonymous map that nobody else has, readable and writable over at least its size,
// from its first page on. It is unmapped when it is freed, which any thread may do.
unsafe impl Allocator for Unpooled {
    fn alloc(&self, shape: Shape) -> *mut u8 {
        let Some(bytes) = mapped(shape).filter(|_| shape.align() <= PAGE) else {
            return ptr::null_mut();
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new map where the system chooses touches nothing that is there.
        let map = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        map.map_or(ptr::null_mut(), |address| address.cast())
    }

    fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
        // Fresh maps read as zero.
        self.alloc(shape)
    }

    unsafe fn free(&self, address: NonNull<u8>, shape: Shape) {
        let Some(bytes) = mapped(shape) else { return };
        // SAFETY: by the caller's word the map of this shape begins here, and nobody uses it any more.
        // A refusal leaves the map where it is, which is a leak and no harm.
        let _ = unsafe { munmap(address.as_ptr().cast(), bytes) };
    }
}
