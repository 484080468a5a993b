//! A pool as the allocator of a whole program.
//!
//! The requests of a thread go to that one pool, or to the [metadata arena](millpond_os::metadata) while the thread is
//! [inside](millpond_os::reentrancy) the slow path of a pool.

mod inside;
pub mod malloc;
mod start;

use crate::pool::{Pool, PoolError, PoolHeap, RawBlock};
use millpond_account::error::AllocError;
use millpond_os::metadata::{ARENA, Arena};
use millpond_os::reentrancy;
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
/// There is one such pool in a process, independent of the number of values of this type. It is created on first use, over
/// ordinary memory, with the settings in `MILLPOND_CONF`, and never closed. Unless the settings enable it (`trim-every:1s`,
/// `trim-at-pressure:80%`, `limit:1GiB`), no memory is given back in the background: call [`trim`](Pool::trim) to give
/// memory back. If the process has a limit on addresses (`RLIMIT_AS`), the pool uses at most half of it.
///
/// *Addresses* are multiples of 64, and a block takes at least 64 bytes. *Out of memory*: the allocator returns a null
/// pointer, and the standard library returns an error (`try_reserve`) or ends the program. Even then, a block can be shrunk
/// to 64 KiB or less. *Threads* may free blocks of other threads, even while they end. *Forks*: the child may allocate and
/// free, even if other threads were using the pool.
///
/// The pool's own tables are not in the pool but in a separate arena. [`metadata_bytes`](Self::metadata_bytes) returns its
/// bytes. The tables of all other pools in such a program and the ledgers of live blocks are there too. As with every
/// allocator, it must not be called from a signal handler.
///
/// Values that are used directly through [`GlobalAlloc`] use the same pool.
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
/// *A late sandbox.* If a seccomp filter forbids `membarrier` after pools were created, every call takes the slow path. Other
/// threads cannot reach the cached blocks of a thread until that thread calls the pool again: [`stats`](Pool::stats) does
/// not count these blocks as kept, [`trim`](Pool::trim) leaves them, and the child of a fork never uses them. For exact
/// statistics, allow `membarrier`, or install the filter before the process first allocates.
#[derive(Debug, Default)]
pub struct GlobalPool {
    /// Whether blocks are also freed without their sizes, which needs a map from pages to blocks.
    of_malloc: bool,
}

impl GlobalPool {
    /// Creates a value that represents the pool. The pool itself is not created yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { of_malloc: false }
    }

    /// Creates a value for a library that also exports [`malloc`]. The pool can then tell the size of a block from its address.
    #[doc(hidden)]
    #[must_use]
    pub const fn of_malloc() -> Self {
        Self { of_malloc: true }
    }

    /// Returns the pool, for its counters and to give memory back. Returns `None` if the system has no address space for
    /// it.
    #[must_use]
    pub fn pool(&self) -> Option<&'static Pool> {
        start::pool(self.of_malloc)
    }

    /// Returns the error in `MILLPOND_CONF`, if there is one. In that case the pool uses the defaults, and one message was
    /// written to standard error. Returns `None` before the first allocation.
    #[must_use]
    pub fn configuration_error(&self) -> Option<&'static PoolError> {
        start::misread()
    }

    /// Returns the bytes of memory for the tables of pools. The pool's counters do not include them.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        ARENA.opened()
    }
}

/// Ends the process when a panic would leave the allocator. Callers of an allocator cannot handle panics.
struct NoWayOut;

impl Drop for NoWayOut {
    fn drop(&mut self) {
        millpond_os::say("millpond: the allocator of the program panicked\n");
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

/// Frees the blocks of the pool that were freed inside a slow path.
#[cold]
#[inline(never)]
fn give_back() {
    inside::give_back();
    malloc::give_back();
}

#[inline]
fn take_from(heap: &'static PoolHeap, layout: Layout, zeroed: bool) -> *mut u8 {
    let (bytes, align) = (layout.size(), layout.align());
    match guarded(|| heap.allocate(bytes, align, zeroed)) {
        Ok(taken) => ptr::with_exposed_provenance_mut(taken.address),
        Err(error) => refuse(error),
    }
}

/// Drops the error of a failed allocation and returns null. The caller does not receive the error, so if a snapshot was
/// written to a file, this names the file on standard error.
#[cold]
fn refuse(error: AllocError) -> *mut u8 {
    let _inside = reentrancy::inside();
    if error.snapshot().is_some() {
        millpond_os::say(&format!("millpond: {error}\n"));
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
fn block_of(block: NonNull<u8>, layout: Layout) -> RawBlock {
    RawBlock::of(block.as_ptr().expose_provenance(), layout.size(), layout.align())
}

/// Allocates a block when the fast path finds no pool. Inside a slow path the block comes from the arena. Otherwise the
/// thread has not used the pool yet.
#[cold]
#[inline(never)]
fn take_elsewhere(layout: Layout, zeroed: bool, of_malloc: bool) -> *mut u8 {
    if reentrancy::is_inside() {
        let block = ARENA.take(layout);
        if zeroed && !block.is_null() {
            // SAFETY: the block comes from the arena, has at least `layout.size()` bytes, and belongs to this function
            // alone.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        return block;
    }
    match guarded(|| start::heap(of_malloc)) {
        Some(heap) => {
            inside::adopt(heap);
            take_from(heap, layout, zeroed)
        }
        None => ptr::null_mut(),
    }
}

/// Frees a block of the pool when the fast path finds no pool.
///
/// # Safety
/// The pool allocated the block for this layout, the block was not freed, and it is not used any more.
#[cold]
#[inline(never)]
unsafe fn give_elsewhere(block: NonNull<u8>, layout: Layout) {
    if reentrancy::is_inside() {
        // SAFETY: the caller guarantees the conditions.
        unsafe { inside::wait(block, layout) };
    } else if let Some(heap) = guarded(start::made) {
        inside::adopt(heap);
        give_to(heap, block, layout);
    }
}

/// Frees a block of the pool.
///
/// # Safety
/// The pool allocated the block for this layout, the block was not freed, and it is not used any more.
#[inline]
unsafe fn give(block: NonNull<u8>, layout: Layout) {
    match inside::pool() {
        Some(heap) => give_to(heap, block, layout),
        // SAFETY: the caller guarantees the conditions.
        None => unsafe { give_elsewhere(block, layout) },
    }
}

/// Frees a block of the arena.
///
/// # Safety
/// The block was taken from the arena for this layout, was not freed, and is not used any more.
#[cold]
#[inline(never)]
unsafe fn give_to_arena(block: NonNull<u8>, layout: Layout) {
    // SAFETY: the caller guarantees the conditions.
    unsafe { ARENA.give(block, layout) };
}

/// Returns whether a block may stay in place when its layout changes. The pool derives a block's size from its layout.
#[inline]
fn stays(block: NonNull<u8>, layout: Layout, wanted: Layout) -> bool {
    if ARENA.has(block.as_ptr()) {
        return Arena::fits(layout, wanted);
    }
    if block_of(block, layout) != block_of(block, wanted) {
        return false;
    }
    match inside::pool() {
        // The bounds of guarded blocks are checked, so they have no spare room.
        Some(heap) if heap.is_guarded() => false,
        Some(heap) => {
            let [from, to] = [layout, wanted].map(|layout| (layout.size(), layout.align()));
            guarded(|| heap.resize(block_of(block, layout), from, to));
            true
        }
        // The pool's counters cannot be changed here, so the block must move.
        None => false,
    }
}

// SAFETY: no other code uses the memory of a block of the pool or of the arena until it is freed (`Heap` and `Space` ensure
// this). The block has at least the requested bytes and alignment. Nothing unwinds: `guarded` ends the process first.
// Layouts come from the caller, and the trait requires it to free with the layout that it allocated with.
unsafe impl GlobalAlloc for GlobalPool {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match inside::pool() {
            Some(heap) => take_from(heap, layout, false),
            None => take_elsewhere(layout, false, self.of_malloc),
        }
    }

    /// Allocates zeroed memory. Fresh memory is already zero and is not written, so `vec![0; n]` uses no physical memory until
    /// it is written.
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match inside::pool() {
            Some(heap) => take_from(heap, layout, true),
            None => take_elsewhere(layout, true, self.of_malloc),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(block) = NonNull::new(block) else { return };
        if ARENA.has(block.as_ptr()) {
            // SAFETY: the address is in the arena. The caller frees a block that was allocated for this layout.
            unsafe { give_to_arena(block, layout) };
        } else {
            // SAFETY: the address is not in the arena, so the block is of the pool. The caller frees a block that was
            // allocated for this layout.
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
        // SAFETY: the caller guarantees that the size is not 0.
        let mut new = unsafe { self.alloc(wanted) };
        if new.is_null() && bytes <= layout.size() {
            new = ARENA.spare(wanted);
        }
        if new.is_null() {
            return new;
        }
        // SAFETY: both blocks have at least this many bytes, and a new block does not overlap with a live one.
        unsafe { ptr::copy_nonoverlapping(block, new, layout.size().min(bytes)) };
        // SAFETY: the block was allocated for this layout, and is not used any more.
        unsafe { self.dealloc(block, layout) };
        new
    }
}
