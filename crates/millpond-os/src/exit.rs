//! Functions that run at the end of the process.

/// Registers a function that runs when the process ends by `exit` or by the end of `main`, after functions that are
/// registered later. Other threads may still be running then. Returns true if it was registered.
pub fn at_exit(call: extern "C" fn()) -> bool {
    if cfg!(miri) {
        // Miri has no such functions.
        return false;
    }
    // SAFETY: the function lives as long as the program and takes no arguments.
    unsafe { libc::atexit(call) == 0 }
}
