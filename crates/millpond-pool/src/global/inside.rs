//! The allocator of a program while a pool's slow path runs on the thread.
//!
//! [Inside](millpond_os::reentrancy) a slow path, new blocks come from the [metadata arena](millpond_os::metadata). If a block of the
//! pool is freed there, it is returned when the slow path has ended. Until then it is in a list that is stored in the blocks themselves.

use crate::pool::{PoolHeap, is_filled_around, refill_around};
use millpond_os::reentrancy::{self, Deferred};
use millpond_os::thread::{self, COUNTING};
use millpond_os::words::{self, Waiting as List};
use std::alloc::Layout;
use std::ptr::{self, NonNull};

/// A note that is written into a block which is returned later.
struct Waiting {
    layout: Layout,
    /// Whether the note covers bytes after a guarded block, and their fill was unchanged.
    over_filled: bool,
    /// Whether observers are not told of the free, as they were not told of the allocation.
    is_untold: bool,
    next: Option<NonNull<Waiting>>,
}

/// Sets the first of the waiting blocks.
fn set_first(first: Option<NonNull<Waiting>>) {
    let first = first.map_or(ptr::null_mut(), NonNull::as_ptr);
    // SAFETY: only this file sets this list, to blocks with a note and to null.
    words::with(|words| unsafe { words.set_waiting(List::Global, first.cast()) });
}

fn first() -> Option<NonNull<Waiting>> {
    NonNull::new(words::with(|words| words.waiting(List::Global)).cast())
}

/// Returns the pool that serves this thread now. The fast path calls nothing else.
#[inline]
pub(super) fn pool() -> Option<&'static PoolHeap> {
    // SAFETY: by the condition of `Words::set_server` this is the reference that `adopt` was given, which is valid forever.
    reentrancy::server().map(|heap| unsafe { heap.cast::<PoolHeap>().as_ref() })
}

/// Makes the pool serve this thread from now on. Not called inside a slow path.
pub(super) fn adopt(heap: &'static PoolHeap) {
    // The C library may allocate for the destructors of the thread's locals, which must be registered before the first event.
    heap.meet_thread();
    // SAFETY: this is the global allocator, the pool is never freed, and the caller is not inside.
    words::with(|words| unsafe { words.set_server(NonNull::from(heap).cast()) });
}

/// Returns whether observers are told neither of allocations nor of frees now.
pub(super) fn is_untold() -> bool {
    thread::inside() & COUNTING != 0
}

/// Returns the number of bytes after a block of this layout that the note covers.
fn under(layout: Layout) -> usize {
    size_of::<Waiting>().saturating_sub(layout.size())
}

/// Queues a block that is returned to the pool when the slow path has ended.
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
        is_untold: is_untold(),
        next: first(),
    };
    // SAFETY: the block belongs to this function alone, as the caller guarantees. Like every block of a pool it has at
    // least 64 bytes and begins at a multiple of 64.
    unsafe { waiting.write(note) };
    set_first(Some(waiting));
    if !words::with(|words| words.giving(List::Global)) {
        reentrancy::defer(Deferred::Frees, super::give_back);
    }
}

const _: () = assert!(size_of::<Waiting>() <= 64 && align_of::<Waiting>() <= 64);

/// Returns the waiting blocks to the pool. Returning a block may take another slow path. When that ends, it does not call this
/// function again, but leaves the remaining blocks to this loop. Otherwise the stack would grow with the length of the list.
#[cold]
#[inline(never)]
pub(super) fn give_back() {
    words::with(|words| words.set_giving(List::Global, true));
    while let Some(first) = first() {
        // SAFETY: only `wait` adds blocks to the list. It has written the note, and no other code has used the block since.
        let Waiting {
            layout,
            over_filled,
            is_untold,
            next,
        } = unsafe { first.read() };
        set_first(next);
        if over_filled {
            // SAFETY: these are the bytes that `wait` found filled.
            unsafe { refill_around(first.addr().get() + layout.size(), under(layout)) };
        }
        let _untold = is_untold.then(|| thread::enter(COUNTING));
        // SAFETY: the caller of `wait` has guaranteed the conditions.
        unsafe { super::give(first.cast(), layout) };
    }
    words::with(|words| words.set_giving(List::Global, false));
}
