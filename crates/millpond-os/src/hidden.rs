//! Threads of this library that the program does not know.

use std::io;
use std::thread::{Builder, JoinHandle};

/// The beginning of the names of all hidden threads.
pub(crate) const PREFIX: &str = "millpond-";

/// Starts a thread on which all signals are blocked. So the program's handlers never run there, and a signal that the
/// program blocks on its own threads stays pending. The name must begin with `millpond-`.
///
/// # Errors
/// Returns the system's error if there are too many threads or too little memory.
pub fn spawn_hidden<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    debug_assert!(name.starts_with(PREFIX), "{name}");
    // A thread inherits the signals that are blocked.
    let _blocked = Blocked::all();
    let thread = Builder::new().name(name.to_owned()).spawn(run)?;
    #[cfg(all(target_os = "linux", not(miri)))]
    set_name(&thread, name);
    Ok(thread)
}

/// Sets the name of a thread, which the thread itself sets only when it runs for the first time. The name shows that the thread is
/// hidden.
#[cfg(all(target_os = "linux", not(miri)))]
fn set_name<T>(thread: &JoinHandle<T>, name: &str) {
    use std::os::unix::thread::JoinHandleExt;
    // The system refuses longer names.
    let name: Vec<u8> = name.bytes().take(15).chain([0]).collect();
    // SAFETY: the handle has not been joined or detached, so the thread's identifier is valid, and the name ends with a zero.
    unsafe { libc::pthread_setname_np(thread.as_pthread_t(), name.as_ptr().cast()) };
}

/// Blocks all signals on this thread until it is dropped. Under Miri, which does not support signals, it does nothing.
struct Blocked {
    #[cfg(not(miri))]
    before: libc::sigset_t,
}

impl Blocked {
    #[cfg(not(miri))]
    fn all() -> Self {
        let mut all = std::mem::MaybeUninit::uninit();
        let mut before = std::mem::MaybeUninit::uninit();
        // SAFETY: the call initialises the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: the first set is initialised, and the call initialises the second one. It fails only if the first argument
        // is invalid.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: the set was initialised by the call.
        let before = unsafe { before.assume_init() };
        Self { before }
    }

    #[cfg(miri)]
    fn all() -> Self {
        Self {}
    }
}

#[cfg(not(miri))]
impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is initialised, and no other set is requested.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    /// Returns the signals that this thread blocks, as the system prints them.
    fn blocked() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("the status of the thread");
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        line.expect("the line").trim().to_owned()
    }

    #[test]
    fn all_signals_are_blocked_on_a_hidden_thread_and_not_on_its_creator() {
        let before = blocked();
        let theirs = spawn_hidden("millpond-test", blocked)
            .expect("a thread")
            .join()
            .expect("no panic");
        let mask = u64::from_str_radix(&theirs, 16).expect("a number");
        for signal in [libc::SIGTERM, libc::SIGALRM, libc::SIGXFSZ, libc::SIGUSR1] {
            assert_ne!(mask & 1 << (signal - 1), 0, "{theirs}");
        }
        assert_eq!(blocked(), before);
    }
}
