//! The primitives that the models check: from the standard library, or from `loom`.
//!
//! In the models, and under Miri, a [`compiler_fence`] is a full fence. The `membarrier` on the other side cannot be modelled.
//! The system promises that the two together are worth a full fence on both sides. In models of a system that forbids the call
//! later, a [`compiler_fence`] is no fence at all.

#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(any(miri, all(test, loom))))]
pub(super) use std::sync::atomic::compiler_fence;

#[cfg(all(miri, not(all(test, loom))))]
pub(super) use std::sync::atomic::fence as compiler_fence;

/// Lets other threads run. A thread that has waited for a while sleeps: while a thread with a real-time policy only yields,
/// threads of lower priority on its processor do not run, and the thread that it waits for may be one of them.
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

/// A value like that, whose accesses `loom` checks.
#[cfg(all(test, loom))]
pub(super) use loom::cell::UnsafeCell as Slot;
