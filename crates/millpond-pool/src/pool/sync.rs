//! The primitives that the models check: from the standard library, or from `loom`.
//!
//! In the models, and under Miri, a [`compiler_fence`] is a full fence. The `membarrier` on the other side cannot be modelled.
//! The system guarantees that the two together have the effect of a full fence on both sides. In models of a system that forbids
//! the call later, a [`compiler_fence`] is no fence at all.

#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(any(miri, all(test, loom))))]
pub(super) use std::sync::atomic::compiler_fence;

#[cfg(all(miri, not(all(test, loom))))]
pub(super) use std::sync::atomic::fence as compiler_fence;

/// Lets other threads run. After 100 rounds the thread sleeps instead of yielding: if a thread with a real-time policy only
/// yields, threads of lower priority do not run on its processor, and it may be waiting for one of them.
#[cfg(not(all(test, loom)))]
pub(super) fn pause(rounds: u32) {
    if rounds < 100 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

#[cfg(all(test, loom))]
pub(super) use super::models::compiler_fence;
#[cfg(all(test, loom))]
pub(super) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(all(test, loom))]
pub(super) fn pause(_: u32) {
    loom::thread::yield_now();
}

/// A value that only one thread at a time accesses, according to the rules of its owner.
#[cfg(not(all(test, loom)))]
#[derive(Debug)]
pub(super) struct Slot<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> Slot<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(super) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}

/// A value that only one thread at a time accesses. `loom` checks the accesses.
#[cfg(all(test, loom))]
pub(super) use loom::cell::UnsafeCell as Slot;
