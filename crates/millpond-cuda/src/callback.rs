//! Runs code of the program on a thread of the driver, where no function of the driver may be called.

use super::error::CudaError;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs code in a callback of the driver. On this thread, the library does not call the driver meanwhile. A panic does not unwind into the
/// driver.
pub(super) fn run(code: impl FnOnce()) {
    let before = INSIDE.replace(true);
    if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
        // Dropping the payload could panic again.
        std::mem::forget(payload);
    }
    INSIDE.set(before);
}

/// Returns whether this thread runs a callback of the driver.
pub(super) fn is_inside() -> bool {
    INSIDE.get()
}

/// Returns an error if this thread runs a callback of the driver.
pub(super) fn check() -> Result<(), CudaError> {
    if is_inside() {
        Err(CudaError::InCallback)
    } else {
        Ok(())
    }
}
