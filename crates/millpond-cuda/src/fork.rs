//! Detects whether this process was forked from one that uses CUDA.
//!
//! CUDA does not work in the child of a process that uses CUDA, and another thread may have held a lock when the process forked. The child
//! therefore calls no driver and takes no lock of this crate. A process that does not use CUDA has no devices and no pools of devices, so
//! it takes none of these locks either. If its child begins to use CUDA, the locks are free.

use super::error::CudaError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The id of the process that uses CUDA, or 0.
static USER: AtomicU32 = AtomicU32::new(0);
static FORKED: AtomicBool = AtomicBool::new(false);

/// Records that this process uses CUDA from now on. This is called before the driver is loaded and before any lock of this crate is taken.
pub(super) fn watch() {
    if USER.load(Ordering::Acquire) == 0 {
        // Threads that come here at the same time register the functions twice, which does no harm.
        millpond_os::around_fork(before, after);
        USER.store(std::process::id(), Ordering::Release);
    }
}

extern "C" fn before() {}

extern "C" fn after() {
    let user = USER.load(Ordering::Relaxed);
    if user != 0 && user != std::process::id() {
        FORKED.store(true, Ordering::Relaxed);
    }
}

pub(super) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Returns whether this process may have devices and pools of devices. A function that lists them calls this before it takes a lock.
pub(super) fn is_in_use() -> bool {
    USER.load(Ordering::Acquire) != 0 && !is_forked()
}

/// Returns an error in a forked process.
pub(super) fn check() -> Result<(), CudaError> {
    if is_forked() {
        Err(CudaError::Forked)
    } else {
        Ok(())
    }
}
