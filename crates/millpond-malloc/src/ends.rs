//! The functions of C that end a process without its exit handlers. They complete the recording first.
//!
//! Shells, servers and Python's `os._exit` end processes in this way, and a C++ program that does not catch `bad_alloc` aborts. The last
//! events of such a process are often the most important ones.

use libc::c_int;
use millpond_record::complete_now;
use std::ptr;

unsafe extern "C" {
    fn at_quick_exit(call: extern "C" fn()) -> c_int;
}

/// Completes the recording also at `quick_exit`.
pub(crate) fn watch_quick_exit() {
    extern "C" fn complete() {
        complete_now();
    }
    // If the handler cannot be registered, the last events are missing, as after a kill.
    // SAFETY: the function lives as long as this library, which is never unloaded, and takes no arguments.
    unsafe { at_quick_exit(complete) };
}

/// Ends the process at once.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    complete_now();
    loop {
        // SAFETY: the call has no conditions.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Ends the process at once, like [`_exit`].
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// Ends the process with `SIGABRT`, also if the signal is blocked or ignored, or if its handler returns.
#[unsafe(no_mangle)]
pub extern "C" fn abort() -> ! {
    complete_now();
    raise_abort();
    // SAFETY: the default action is valid for this signal.
    unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
    raise_abort();
    _exit(127)
}

/// Sends `SIGABRT` to this thread, which receives it before the function returns.
fn raise_abort() {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: the call initialises the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set is initialised, and the signal exists.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGABRT) };
    // SAFETY: the set is initialised, and no other set is requested.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut()) };
    // SAFETY: the call has no conditions.
    unsafe { libc::raise(libc::SIGABRT) };
}
