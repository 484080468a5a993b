//! Functions that run around a fork.

/// Registers `prepare`, which runs before every later fork of this process, and `resume`, which runs after it in parent
/// and child. The forking thread calls both.
pub fn around_fork(prepare: extern "C" fn(), resume: extern "C" fn()) {
    if cfg!(miri) {
        // Miri has no forks.
        return;
    }
    // SAFETY: the functions live as long as the program and take no arguments.
    let failed = unsafe { libc::pthread_atfork(Some(prepare), Some(resume), Some(resume)) };
    // This fails only if a few bytes cannot be allocated. Forks are then as unsafe as without these functions.
    debug_assert_eq!(failed, 0);
}

/// Runs `work` in a child process and returns the child's exit status. A child that hangs is killed.
#[cfg(all(any(test, feature = "testing"), not(miri)))]
pub fn end_of_child(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the call takes a number.
        unsafe { libc::alarm(10) };
        let fine = work();
        // SAFETY: the call ends the child immediately.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    let mut status = -1;
    // SAFETY: the call waits for the child made above, and `status` belongs to this function.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}
