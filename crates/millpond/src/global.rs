//! A pool as the allocator of a whole program.
//!
//! A thread's requests go to the one pool, or to the [metadata arena](crate::metadata) while the thread is
//! [inside](crate::reentrancy) the slow path of a pool.

mod inside;
mod start;

use crate::error::AllocError;
use crate::metadata::{ARENA, Arena};
use crate::pool::{Pool, PoolBlock, PoolError, PoolHeap};
use crate::reentrancy;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{self, NonNull};

/// A pool as the allocator of a whole program.
///
/// ```
/// #[global_allocator]
/// static POOL: millpond::GlobalPool = millpond::GlobalPool::new();
///
/// let words: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
/// let stats = POOL.pool().expect("it has served already").stats();
/// assert!(stats.allocations >= 1000 && stats.requested.current >= 1000 * 24);
/// # drop(words);
/// ```
///
/// There is one such pool in a process, whatever number of values stand for it. It is made on first use, over ordinary
/// memory, with the settings in `MILLPOND_CONF`, and never closed. Unless these say otherwise (`trim-every:1s`,
/// `trim-at-pressure:80%`, `limit:1GiB`), nothing goes back in the background: give memory back with
/// [`trim`](Pool::trim); and where the process may have so many addresses only (`RLIMIT_AS`), the pool takes half of
/// them at most.
///
/// *Addresses* are multiples of 64, and a block takes at least 64 bytes. *Out of memory* is a null pointer, from which
/// the standard library makes an error (`try_reserve`) or ends the program; a block can be made smaller all the same, to
/// 64 KiB or less. *Threads* may free what others have allocated, also at their very end. *Forks*: the child may allocate
/// and free, though other threads were at it.
///
/// The pool's own tables do not come from the pool but from an arena of their own, whose bytes
/// [`metadata_bytes`](Self::metadata_bytes) tells; so do those of any other pool in such a program, and the accounts of live
/// blocks. As every allocator, it must not be called from a signal handler.
///
/// Values for its use by hand, as [`GlobalAlloc`], serve the same pool.
///
/// # Limits
/// *`pthread_atfork`.* During a fork the forking thread holds every lock of every pool. A handler that was registered before
/// the process first allocated runs during that time, so the process deadlocks if the handler allocates, frees or calls a pool.
/// Register such handlers after the first allocation: the system then calls them before the pool's `prepare` and after its
/// `resume`. `_Fork` and `vfork` call no handlers, and a fork in a signal handler may interrupt the pool. In these cases the
/// child may only call functions that are safe in a signal handler.
///
/// *A late `RLIMIT_AS`.* The pool reserves addresses when it is created, at most half of the limit. If the limit is set or
/// lowered later, to less than what is already mapped, the system refuses every new mapping, and that includes the growth of
/// stacks: a thread whose stack has to grow is killed with SIGSEGV. Set the limit before the program starts, or limit the pool
/// instead (`MILLPOND_CONF=limit:1GiB`).
///
/// *A late sandbox.* A seccomp filter that forbids `membarrier` once pools exist makes every call take the slow path. Other
/// threads then cannot reach the blocks that a thread keeps until that thread calls the pool again: [`stats`](Pool::stats) does
/// not count these blocks as kept, [`trim`](Pool::trim) leaves them, and the child of a fork never uses them. For exact
/// statistics, allow `membarrier`, or install the filter before the process first allocates.
#[derive(Debug, Default)]
pub struct GlobalPool {
    _private: (),
}

impl GlobalPool {
    /// A value that stands for the pool; makes nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { _private: () }
    }

    /// The pool: its account, and memory to give back. None where the system has no addresses for one.
    #[must_use]
    pub fn pool(&self) -> Option<&'static Pool> {
        start::pool()
    }

    /// What is wrong with `MILLPOND_CONF`. The defaults are used then, which standard error was told once. None as long
    /// as nothing was allocated.
    #[must_use]
    pub fn configuration_error(&self) -> Option<&'static PoolError> {
        start::misread()
    }

    /// Bytes of memory that were opened for the tables of pools. They are no part of the pool's account.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        ARENA.opened()
    }
}

/// Ends the process where a panic would leave the allocator, which no caller of an allocator is prepared for.
struct NoWayOut;

impl Drop for NoWayOut {
    fn drop(&mut self) {
        crate::os::say("millpond: a panic in the allocator of the program\n");
        std::process::abort();
    }
}

#[inline]
fn guarded<R>(work: impl FnOnce() -> R) -> R {
    let guard = NoWayOut;
    let outcome = work();
    std::mem::forget(guard);
    outcome
}

#[inline]
fn take_from(heap: &'static PoolHeap, layout: Layout, zeroed: bool) -> *mut u8 {
    let (bytes, align) = (layout.size(), layout.align());
    let taken = guarded(|| {
        if zeroed {
            heap.allocate_zeroed(bytes, align)
        } else {
            heap.allocate(bytes, align)
        }
    });
    match taken {
        Ok(taken) => ptr::with_exposed_provenance_mut(taken.address),
        Err(error) => refuse(error),
    }
}

/// What ran out of memory has nobody to read its error: the file that was written for it is named on standard error.
#[cold]
fn refuse(error: AllocError) -> *mut u8 {
    let _inside = reentrancy::inside();
    if error.snapshot().is_some() {
        crate::os::say(&format!("millpond: {error}\n"));
    }
    drop(error);
    ptr::null_mut()
}

#[inline]
fn give_to(heap: &'static PoolHeap, block: NonNull<u8>, layout: Layout) {
    let address = block.as_ptr().expose_provenance();
    guarded(|| heap.free_as(address, layout.size(), layout.align()));
}

#[inline]
fn block_of(block: NonNull<u8>, layout: Layout) -> PoolBlock {
    PoolBlock::of(block.as_ptr().expose_provenance(), layout.size(), layout.align())
}

/// A block where the hot path has found no pool: inside, from the arena; else this thread is new to the pool.
#[cold]
#[inline(never)]
fn take_elsewhere(layout: Layout, zeroed: bool) -> *mut u8 {
    if reentrancy::is_inside() {
        let block = ARENA.take(layout);
        if zeroed && !block.is_null() {
            // SAFETY: the block comes from the arena, has at least `layout.size()` bytes, and is ours alone.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        return block;
    }
    match guarded(start::heap) {
        Some(heap) => {
            inside::adopt(heap);
            take_from(heap, layout, zeroed)
        }
        None => ptr::null_mut(),
    }
}

/// Takes back a block of the pool where the hot path has found none.
///
/// # Safety
/// The block was handed out by the pool for this layout, was not given back, and is used no more.
#[cold]
#[inline(never)]
unsafe fn give_elsewhere(block: NonNull<u8>, layout: Layout) {
    if reentrancy::is_inside() {
        // SAFETY: what the caller promises.
        unsafe { inside::wait(block, layout) };
    } else if let Some(heap) = guarded(start::heap) {
        inside::adopt(heap);
        give_to(heap, block, layout);
    }
}

/// Takes back a block of the pool.
///
/// # Safety
/// The block was handed out by the pool for this layout, was not given back, and is used no more.
#[inline]
unsafe fn give(block: NonNull<u8>, layout: Layout) {
    match inside::pool() {
        Some(heap) => give_to(heap, block, layout),
        // SAFETY: what the caller promises.
        None => unsafe { give_elsewhere(block, layout) },
    }
}

/// Takes back a block of the arena.
///
/// # Safety
/// The block was taken from the arena for this layout, was not given back, and is used no more.
#[cold]
#[inline(never)]
unsafe fn give_to_arena(block: NonNull<u8>, layout: Layout) {
    // SAFETY: what the caller promises.
    unsafe { ARENA.give(block, layout) };
}

/// Whether a block may stay where it is when its layout changes: the pool finds a block's size by its layout.
#[inline]
fn stays(block: NonNull<u8>, layout: Layout, wanted: Layout) -> bool {
    if ARENA.has(block.as_ptr()) {
        return Arena::fits(layout, wanted);
    }
    if block_of(block, layout) != block_of(block, wanted) {
        return false;
    }
    match inside::pool() {
        // Its bounds are looked at: there is no room beside them.
        Some(heap) if heap.is_guarded() => false,
        Some(heap) => {
            let [from, to] = [layout, wanted].map(|layout| (layout.size(), layout.align()));
            guarded(|| heap.resize(block_of(block, layout), from, to));
            true
        }
        // The pool's account cannot be changed here, so the block cannot either.
        None => false,
    }
}

// SAFETY: a block of the pool or of the arena is memory that nobody else has until it is given back (what `Heap` and
// `Space` keep), of at least the bytes and at a multiple of the alignment asked for. Nothing unwinds: `guarded` ends the
// process first. Layouts are those of the caller, who is bound by the trait to give back with the one asked with.
unsafe impl GlobalAlloc for GlobalPool {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match inside::pool() {
            Some(heap) => take_from(heap, layout, false),
            None => take_elsewhere(layout, false),
        }
    }

    /// Allocates zeroed memory. Fresh memory is already zero and is not written, so `vec![0; n]` uses no physical memory until
    /// it is written.
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match inside::pool() {
            Some(heap) => take_from(heap, layout, true),
            None => take_elsewhere(layout, true),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(block) = NonNull::new(block) else { return };
        if ARENA.has(block.as_ptr()) {
            // SAFETY: the arena's by its address; the caller gives back what was handed out for this layout.
            unsafe { give_to_arena(block, layout) };
        } else {
            // SAFETY: not the arena's, so the pool's; the caller gives back what was handed out for this layout.
            unsafe { give(block, layout) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let Some(old) = NonNull::new(block) else {
            return ptr::null_mut();
        };
        let Ok(wanted) = Layout::from_size_align(bytes, layout.align()) else {
            return ptr::null_mut();
        };
        if stays(old, layout, wanted) {
            return block;
        }
        // SAFETY: the caller asks for some bytes.
        let mut new = unsafe { self.alloc(wanted) };
        if new.is_null() && bytes <= layout.size() {
            new = ARENA.spare(wanted);
        }
        if new.is_null() {
            return new;
        }
        // SAFETY: both have as many bytes, and a new block shares none with a live one.
        unsafe { ptr::copy_nonoverlapping(block, new, layout.size().min(bytes)) };
        // SAFETY: handed out for this layout, and used no more.
        unsafe { self.dealloc(block, layout) };
        new
    }
}
