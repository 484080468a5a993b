//! Being called around a fork.

/// Has `prepare` called before every fork of this process from now on, and `resume` after it, in parent and child, by
/// the thread that forks.
pub(crate) fn around_fork(prepare: extern "C" fn(), resume: extern "C" fn()) {
    if cfg!(miri) {
        // It has no forks.
        return;
    }
    // SAFETY: the functions live as long as the program and take nothing.
    let failed = unsafe { libc::pthread_atfork(Some(prepare), Some(resume), Some(resume)) };
    // It can only fail for want of a few bytes; forks are then as unsafe as without it.
    debug_assert_eq!(failed, 0);
}

/// Runs `work` in a child process and returns the child's exit status. A child that hangs is killed.
#[cfg(all(test, not(miri)))]
pub(crate) fn end_of_child(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes a number.
        unsafe { libc::alarm(10) };
        let fine = work();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made; the status is ours.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}
