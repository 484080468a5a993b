//! Pages of the host that no allocator knows.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Maps zeroed pages and answers their address.
pub(crate) fn map(bytes: usize) -> Option<usize> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the system chooses the address, so nothing that is there is replaced.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
    at.ok().map(|at| at.expose_provenance())
}

/// Gives pages of [`map`] back.
pub(crate) fn unmap(at: usize, bytes: usize) {
    // SAFETY: mapped by this module's function, and the probe is done with them.
    let _ = unsafe { munmap(std::ptr::with_exposed_provenance_mut(at), bytes) };
}
