//! Maps and unmaps pages of host memory without an allocator.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Maps zeroed pages and returns their address, or `None` if the system refuses.
pub(crate) fn map(bytes: usize) -> Option<usize> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the system chooses the address, so the new mapping replaces no other.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
    at.ok().map(|at| at.expose_provenance())
}

/// Unmaps pages of [`map`].
pub(crate) fn unmap(at: usize, bytes: usize) {
    // SAFETY: [`map`] mapped these pages, and the probe no longer uses them.
    let _ = unsafe { munmap(std::ptr::with_exposed_provenance_mut(at), bytes) };
}
