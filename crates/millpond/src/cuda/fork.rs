//! Whether this process was forked from one that uses CUDA. Its driver does not work there, and locks may be held by threads that
//! are not there any more: so nothing is called and nothing is locked.

use super::error::CudaError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The process that uses CUDA; 0 for none.
static USER: AtomicU32 = AtomicU32::new(0);
static FORKED: AtomicBool = AtomicBool::new(false);

/// This process uses CUDA from now on.
pub(super) fn watch() {
    if USER.swap(std::process::id(), Ordering::Relaxed) == 0 {
        crate::os::around_fork(before, after);
    }
}

extern "C" fn before() {}

extern "C" fn after() {
    if USER.load(Ordering::Relaxed) != std::process::id() {
        FORKED.store(true, Ordering::Relaxed);
    }
}

pub(super) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// An error in a forked process.
pub(super) fn check() -> Result<(), CudaError> {
    if is_forked() {
        Err(CudaError::Forked)
    } else {
        Ok(())
    }
}
