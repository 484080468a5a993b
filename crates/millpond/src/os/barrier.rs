//! A barrier on every thread of the process at once.

/// Registers the process for [`barrier_everywhere`]; false where the system does not have it.
///
/// Miri has no such call. There every barrier of the other side is a full one (`pool/sync.rs`), and this one is none.
pub(crate) fn can_barrier_everywhere() -> bool {
    cfg!(miri) || membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

/// Returns after every running thread of the process has passed a full memory barrier.
///
/// A child of a fork has to be registered anew, where the call fails the first time.
pub(crate) fn barrier_everywhere() {
    while !cfg!(miri) && !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        if !can_barrier_everywhere() {
            // Nothing of what is known of the system refuses here. Threads that are descheduled pass a barrier.
            std::thread::yield_now();
        }
    }
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no pointer and changes nothing but when threads see each other's writes.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
