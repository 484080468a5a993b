//! Being called at the end of the process.

/// Has a function called when the process ends by `exit` or by the end of `main`, after the functions that were said so
/// later; other threads may still run then. Answers whether there was room for it.
pub(crate) fn at_exit(call: extern "C" fn()) -> bool {
    if cfg!(miri) {
        // It has no such functions.
        return false;
    }
    // SAFETY: the function lives as long as the program and takes nothing.
    unsafe { libc::atexit(call) == 0 }
}
