//! The allocator of a program while a pool's slow path runs on the thread.
//!
//! [Inside](millpond_os::reentrancy), new blocks come from the [metadata arena](millpond_os::metadata). A block of the pool that is freed inside is
//! returned when the slow path has ended: until then it is in a list that runs through the blocks themselves.

use crate::pool::{PoolHeap, is_filled_around, refill_around};
use millpond_os::reentrancy::{self, Deferred};
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;

/// A note that is written into a block which is returned later.
struct Waiting {
    layout: Layout,
    /// Whether the note covers bytes behind a guarded block that were filled correctly.
    over_filled: bool,
    next: Option<NonNull<Waiting>>,
}

thread_local! {
    // These have no lazy initialisation and no destructor, so they can be used at any moment of a thread's life.
    static WAITING: Cell<Option<NonNull<Waiting>>> = const { Cell::new(None) };
    /// Whether an outer call on this thread is already returning the waiting blocks.
    static GIVING: Cell<bool> = const { Cell::new(false) };
}

/// Returns the pool that serves this thread now. The fast path calls nothing else.
#[inline]
pub(super) fn pool() -> Option<&'static PoolHeap> {
    // SAFETY: by the invariant of `reentrancy::SERVER` this is the reference that `adopt` was given, which is valid forever.
    reentrancy::server().map(|heap| unsafe { heap.cast::<PoolHeap>().as_ref() })
}

/// Makes the pool serve this thread from now on. Not called inside a slow path.
pub(super) fn adopt(heap: &'static PoolHeap) {
    reentrancy::set_server(NonNull::from(heap).cast());
}

/// Returns the bytes behind a block of this layout that the note covers.
fn under(layout: Layout) -> usize {
    size_of::<Waiting>().saturating_sub(layout.size())
}

/// Returns a block to the pool when the slow path has ended.
///
/// # Safety
/// The block was allocated by the pool with this layout, was not freed, and is not used any more.
pub(super) unsafe fn wait(block: NonNull<u8>, layout: Layout) {
    let waiting = block.cast::<Waiting>();
    let over_filled = super::start::made().is_some_and(PoolHeap::is_guarded)
        // SAFETY: the bytes are among the first 64 of the block, which are open.
        && unsafe { is_filled_around(block.addr().get() + layout.size(), under(layout)) };
    let note = Waiting {
        layout,
        over_filled,
        next: WAITING.get(),
    };
    // SAFETY: the block belongs to this function alone, as the caller guarantees. Like every block of a pool it has at
    // least 64 bytes and begins at a multiple of 64.
    unsafe { waiting.write(note) };
    WAITING.set(Some(waiting));
    if !GIVING.get() {
        reentrancy::defer(Deferred::Frees, super::give_back);
    }
}

const _: () = assert!(size_of::<Waiting>() <= 64 && align_of::<Waiting>() <= 64);

/// Returns the waiting blocks to the pool. Returning a block may take a slow path of its own, whose end leaves the remaining
/// blocks to this loop. Nested calls, one for each block, would need a stack as long as the list.
#[cold]
#[inline(never)]
pub(super) fn give_back() {
    GIVING.set(true);
    while let Some(first) = WAITING.take() {
        // SAFETY: only `wait` puts blocks there. It has written the note, and nobody else has used the block since.
        let Waiting {
            layout,
            over_filled,
            next,
        } = unsafe { first.read() };
        WAITING.set(next);
        if over_filled {
            // SAFETY: these are the bytes that `wait` found filled.
            unsafe { refill_around(first.addr().get() + layout.size(), under(layout)) };
        }
        // SAFETY: the caller of `wait` has guaranteed it.
        unsafe { super::give(first.cast(), layout) };
    }
    GIVING.set(false);
}
