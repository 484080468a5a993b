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
