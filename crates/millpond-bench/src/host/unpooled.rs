//! No pool: every block is a separate mapping, which is new from the system and returned to it at once.

use crate::host::allocator::{Allocator, Shape};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::{self, NonNull};

/// An allocator without pooling: a system call for each allocation and each free, and new pages.
pub(crate) struct Unpooled;

/// The alignment of every mapping.
const PAGE: usize = 4096;

/// Returns the bytes of a block's mapping.
fn mapped(shape: Shape) -> Option<usize> {
    shape.size().checked_next_multiple_of(PAGE)
}

// SAFETY: each block is a private anonymous mapping of its own, readable and writable from its first page for at least its
// size. It is unmapped when it is freed, which any thread may do.
unsafe impl Allocator for Unpooled {
    fn alloc(&self, shape: Shape) -> *mut u8 {
        let Some(bytes) = mapped(shape).filter(|_| shape.align() <= PAGE) else {
            return ptr::null_mut();
        };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the address of a new mapping, so it replaces no existing one.
        let map = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        map.map_or(ptr::null_mut(), |address| address.cast())
    }

    fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
        // New mappings read as zero.
        self.alloc(shape)
    }

    unsafe fn free(&self, address: NonNull<u8>, shape: Shape) {
        let Some(bytes) = mapped(shape) else { return };
        // SAFETY: the caller guarantees that the mapping of this shape begins here, and that it is no longer used. If the system
        // refuses, the mapping leaks, which is harmless.
        let _ = unsafe { munmap(address.as_ptr().cast(), bytes) };
    }
}
