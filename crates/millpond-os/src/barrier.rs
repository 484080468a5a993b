//! A memory barrier on all threads of the process.

/// Registers the process for [`barrier_everywhere`]. Returns false if the system does not support it.
///
/// Miri does not support the call. Under Miri, the other side always uses full barriers (`pool/sync.rs`), and this function does nothing.
pub fn can_barrier_everywhere() -> bool {
    cfg!(miri) || membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

/// Makes every running thread of the process pass a full memory barrier before it returns. Returns false if the system refuses.
///
/// The system may refuse although it did not refuse before: the program may have forbidden the call, for example with a seccomp
/// filter.
pub fn barrier_everywhere() -> bool {
    let pass = || membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    // The child of a fork has to register again, and the call fails until then.
    cfg!(miri) || pass() || (can_barrier_everywhere() && pass())
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no pointer. It only affects when threads see each other's writes.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
