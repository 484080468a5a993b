//! The scope of this thread, and its last allocation.
//!
//! Both are plain cells without a destructor and without lazy initialisation, like those in `thread.rs`, so an allocator may read
//! them at any moment of a thread's life.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

/// The scopes to which a block is charged, as numbers, or 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// The innermost scope of the allocating thread.
    pub(crate) scope: u32,
    /// The scope of the profiler.
    pub profile: u32,
}

impl Charged {
    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.scope | self.profile != 0
    }
}

/// An allocation, identified by its account and its serial number there, or 0 and 0 for none.
pub(crate) type Last = (usize, u64);

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
    static LAST: Cell<Last> = const { Cell::new((0, 0)) };
}

/// The profiler's scope, which all threads share.
static PROFILE: AtomicU32 = AtomicU32::new(0);

/// Returns the scopes to which an allocation by this thread is charged now.
#[inline]
pub fn here() -> Charged {
    Charged {
        scope: CURRENT.get(),
        profile: PROFILE.load(Ordering::Relaxed),
    }
}

/// Returns this thread's innermost scope.
pub fn current() -> u32 {
    CURRENT.get()
}

pub(crate) fn set_profile(number: u32) {
    PROFILE.store(number, Ordering::Relaxed);
}

/// Returns the allocation of this thread if that was its last operation, and replaces it.
#[inline]
pub(crate) fn replace_last(by: Last) -> Last {
    LAST.replace(by)
}

/// A guard that keeps its thread in a scope. It cannot be sent to another thread. If guards are not dropped in reverse
/// order, each restores the scope at its creation.
#[derive(Debug)]
pub struct Entered {
    before: u32,
    here: PhantomData<*const ()>,
}

/// Puts this thread in the scope until the guard is dropped, also by a panic.
pub fn enter(number: u32) -> Entered {
    LAST.set((0, 0));
    Entered {
        before: CURRENT.replace(number),
        here: PhantomData,
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        LAST.set((0, 0));
        CURRENT.set(self.before);
    }
}
