//! Detects whether this process was forked from one that uses CUDA.
//!
//! CUDA does not work in the child of such a process, and another thread may have held a lock when it forked. So the child calls no driver
//! and takes no lock of `cuda`. A process that does not use CUDA has no devices and no pools of devices, so it takes none of these locks
//! either: a child that begins to use CUDA finds them free.

use super::error::CudaError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The process that uses CUDA, or 0.
static USER: AtomicU32 = AtomicU32::new(0);
static FORKED: AtomicBool = AtomicBool::new(false);

/// Notes that this process uses CUDA from now on. Called before the driver is loaded and before any lock of `cuda` is taken.
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

/// Returns whether this process may have devices and pools of devices. A function that lists them asks this before it takes a lock.
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
