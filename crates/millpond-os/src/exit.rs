//! Functions that run at the end of the process, and the end of a process in which only threads of this library remain.

use crate::facts::task_name;
use crate::hidden::PREFIX;
use crate::reentrancy::quiet;
use crate::time::Time;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The minimum time between two checks of the process's threads, in nanoseconds.
const BETWEEN: u64 = 500_000_000;

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

/// True if hidden threads check whether they are the last ones.
static LOOKS: AtomicBool = AtomicBool::new(false);

/// Enables [`is_abandoned`]. A library that is preloaded into other programs does this.
pub fn look_for_last_thread() {
    LOOKS.store(true, Ordering::Relaxed);
}

/// Returns whether only [hidden](crate::spawn_hidden) threads remain: the main thread has called `pthread_exit`, and all other threads
/// have ended. Without the hidden threads, the system would have ended the process. Returns false before [`look_for_last_thread`] was
/// called. The threads are checked at most twice a second.
pub fn is_abandoned() -> bool {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if !LOOKS.load(Ordering::Relaxed) {
        return false;
    }
    let now = Time::now().nanos();
    if now < NEXT.load(Ordering::Relaxed) {
        return false;
    }
    NEXT.store(now.saturating_add(BETWEEN), Ordering::Relaxed);
    let _quiet = quiet();
    has_ended(std::process::id()) && only_hidden_remain()
}

/// Ends the process if only hidden threads remain. The exit handlers run on this thread, which must hold no lock.
pub fn end_if_abandoned() {
    if is_abandoned() {
        end_abandoned();
    }
}

/// Ends the process as the system does at the end of its last thread. Returns if another thread is doing that.
pub fn end_abandoned() {
    static ENDS: AtomicBool = AtomicBool::new(false);
    if !ENDS.swap(true, Ordering::AcqRel) {
        std::process::exit(0);
    }
}

/// Returns whether a thread of this process has ended and still has an entry, as the main thread has after `pthread_exit`.
fn has_ended(task: u32) -> bool {
    // The line contains the thread's name in parentheses, and then the state. The name may contain parentheses too.
    let stat = std::fs::read_to_string(format!("/proc/self/task/{task}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('Z'))
}

fn only_hidden_remain() -> bool {
    visible_threads() == Some(0)
}

/// Returns whether the process has only one thread that is not [hidden](crate::spawn_hidden). Returns false if this is unknown.
pub fn has_one_thread() -> bool {
    let _quiet = quiet();
    visible_threads() == Some(1)
}

/// Returns the number of threads that have not ended and are not hidden, if it is known.
fn visible_threads() -> Option<usize> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let tasks = tasks
        .flatten()
        .filter_map(|task| task.file_name().to_str()?.parse().ok());
    let visible = tasks.filter(|task| !has_ended(*task) && !task_name(*task).starts_with(PREFIX));
    Some(visible.count())
}
