//! Where this thread's requests go: to the pool, or to the arena while the thread is in a pool's cold path.
//!
//! A pool's tables are vectors and maps like any other. In a program whose allocator is the pool they would come from
//! the pool, which has its locks taken and its tables half changed when it needs them. So each cold path begins with
//! [`inside`], and what the thread asks for until the end of it comes from the [arena](super::arena). The mark and the
//! pool's address are one word: the hot path finds no pool here, and needs no look at a mark of its own.
//!
//! What was taken from the pool before, and is given back inside, waits in a list until the cold path is over: the list
//! runs through the blocks themselves.

use crate::budget::make_calls;
use crate::pool::{PoolHeap, is_filled_around, refill_around};
#[cfg(feature = "stacks")]
use crate::thread::{self, COUNTING};
use std::alloc::Layout;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// Stands for "inside" where the pool would stand.
const INSIDE: *const PoolHeap = ptr::without_provenance(1);

/// A block that goes back later: this is written into it.
struct Waiting {
    layout: Layout,
    /// Whether this lies over what is filled behind a guarded block, which was as it should be.
    over_filled: bool,
    next: Option<NonNull<Waiting>>,
}

thread_local! {
    // Both are there before anything runs in a thread and after everything: no first use, and nothing to drop.
    /// The pool; null before this thread has looked for it; [`INSIDE`].
    static PLACE: Cell<*const PoolHeap> = const { Cell::new(ptr::null()) };
    static WAITING: Cell<Option<NonNull<Waiting>>> = const { Cell::new(None) };
    /// Whether an outer call on this thread is already returning the waiting blocks.
    static GIVING: Cell<bool> = const { Cell::new(false) };
}

/// The pool, if this thread's requests go to it now. The only thing asked on the hot path.
#[inline]
pub(super) fn pool() -> Option<&'static PoolHeap> {
    let place = PLACE.get();
    if place.addr() <= INSIDE.addr() {
        return None;
    }
    // SAFETY: only `adopt` puts pools there, and takes them as references that last for ever.
    Some(unsafe { &*place })
}

/// Whether this thread is in a pool's cold path.
pub(crate) fn is_inside() -> bool {
    PLACE.get().addr() == INSIDE.addr()
}

/// This thread's requests go to the pool from now on. Not called inside.
pub(super) fn adopt(heap: &'static PoolHeap) {
    PLACE.set(heap);
}

/// Until its end this thread is inside.
#[derive(Debug)]
pub(crate) struct Inside {
    before: *const PoolHeap,
    /// Belongs to one thread.
    _thread: PhantomData<*const ()>,
}

/// Begins a cold path. May be nested. Taken before any lock of a pool, so that it ends after them.
pub(crate) fn inside() -> Inside {
    Inside {
        before: PLACE.replace(INSIDE),
        _thread: PhantomData,
    }
}

/// What is allocated until its end is neither told to who watches nor served by a pool.
#[cfg(feature = "stacks")]
pub(crate) fn quiet() -> impl Sized {
    (inside(), thread::enter(COUNTING))
}

impl Drop for Inside {
    fn drop(&mut self) {
        PLACE.set(self.before);
        if self.before.addr() != INSIDE.addr() {
            if WAITING.get().is_some() && !GIVING.get() {
                give_back();
            }
            make_calls();
        }
    }
}

/// Bytes behind a block of this layout that a note lies over.
fn under(layout: Layout) -> usize {
    size_of::<Waiting>().saturating_sub(layout.size())
}

/// Has a block of the pool go back when the cold path is over.
///
/// # Safety
/// The block was handed out by the pool for this layout, was not given back, and is used no more.
pub(super) unsafe fn wait(block: NonNull<u8>, layout: Layout) {
    let waiting = block.cast::<Waiting>();
    let over_filled = super::start::made().is_some_and(PoolHeap::is_guarded)
        // SAFETY: the bytes are of the block's first 64, which are open.
        && unsafe { is_filled_around(block.addr().get() + layout.size(), under(layout)) };
    let note = Waiting {
        layout,
        over_filled,
        next: WAITING.get(),
    };
    // SAFETY: the block is ours alone, as the caller promises, and has at least 64 bytes at a multiple of 64, as all
    // blocks of a pool.
    unsafe { waiting.write(note) };
    WAITING.set(Some(waiting));
}

const _: () = assert!(size_of::<Waiting>() <= 64 && align_of::<Waiting>() <= 64);

/// Returns the waiting blocks to the pool. Returning a block may take a cold path of its own, whose end leaves the remaining
/// blocks to this loop. Nested calls, one for each block, would need a stack as long as the list.
#[cold]
#[inline(never)]
fn give_back() {
    GIVING.set(true);
    while let Some(first) = WAITING.take() {
        // SAFETY: only `wait` puts blocks there, has written them, and nobody else knows of them since.
        let Waiting {
            layout,
            over_filled,
            next,
        } = unsafe { first.read() };
        WAITING.set(next);
        if over_filled {
            // SAFETY: as where they were found filled.
            unsafe { refill_around(first.addr().get() + layout.size(), under(layout)) };
        }
        // SAFETY: what the caller of `wait` promised.
        unsafe { super::give(first.cast(), layout) };
    }
    GIVING.set(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_nests() {
        assert!(!is_inside() && pool().is_none());
        let one = inside();
        {
            let _two = inside();
            assert!(is_inside() && pool().is_none());
        }
        assert!(is_inside());
        drop(one);
        assert!(!is_inside());
    }
}
