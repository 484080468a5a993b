//! Where a thread is.

/// Shows return addresses of the caller, from the innermost, until `visit` answers false.
///
/// Without the lock that `backtrace::trace` takes around it: a child of a fork would wait for ever for a lock that
/// another thread held.
#[cfg(feature = "stacks")]
pub(crate) fn walk(mut visit: impl FnMut(usize) -> bool) {
    // SAFETY: the lock is for systems whose unwinder is not made for several threads. Linux has libgcc's or LLVM's, which
    // are, and this module is for Linux only.
    unsafe { backtrace::trace_unsynchronized(|frame| visit(frame.ip().addr())) };
}
