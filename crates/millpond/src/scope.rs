//! Which scope this thread is in, and what it allocated last.
//!
//! Plain cells without a destructor and without a first use, as those of `thread.rs`: an allocator may read them at any
//! moment of a thread's life.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

/// The scopes that a block counts for: numbers, or 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charged {
    /// The innermost scope of the thread that allocated it.
    pub(crate) scope: u32,
    /// The profiler's.
    pub(crate) profile: u32,
}

impl Charged {
    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.scope | self.profile != 0
    }
}

/// An allocation, known by its account and its number there; of nothing, 0 and 0.
pub(crate) type Last = (usize, u64);

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
    static LAST: Cell<Last> = const { Cell::new((0, 0)) };
}

/// The profiler's scope, of all threads.
static PROFILE: AtomicU32 = AtomicU32::new(0);

/// What is allocated here and now counts for these.
#[inline]
pub(crate) fn here() -> Charged {
    Charged {
        scope: CURRENT.get(),
        profile: PROFILE.load(Ordering::Relaxed),
    }
}

/// This thread's innermost scope.
pub(crate) fn current() -> u32 {
    CURRENT.get()
}

pub(crate) fn set_profile(number: u32) {
    PROFILE.store(number, Ordering::Relaxed);
}

/// What this thread allocated, if that was the last thing it did; something else takes its place.
#[inline]
pub(crate) fn replace_last(by: Last) -> Last {
    LAST.replace(by)
}

/// While it lives, its thread is in a scope. Stays on that thread; guards that are not dropped in reverse order bring back
/// what was there when they were made.
#[derive(Debug)]
pub(crate) struct Entered {
    before: u32,
    here: PhantomData<*const ()>,
}

/// This thread is in that scope until the answer is dropped, in a panic too.
pub(crate) fn enter(number: u32) -> Entered {
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
