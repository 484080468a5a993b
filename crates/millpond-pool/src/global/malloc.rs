//! The program's pool as `malloc`: blocks that are freed without their size.
//!
//! The functions are those of C with Rust's types. A library that exports them under C's names makes the pool the allocator of an
//! unmodified program. The library's own Rust code must use [`GlobalPool::of_malloc`](super::GlobalPool::of_malloc), so that its
//! tables come from the metadata arena. Both use the same pool, but a block must be freed by the interface that allocated it.
//!
//! Inside the slow path of a pool, the C library may call these functions itself. A block that it allocates then comes from the
//! arena, and its layout is written in front of it. If it frees a block of the pool, that free is delayed until the slow path ends.

use super::{guarded, inside, refuse, start};
use crate::pool::{PoolError, PoolHeap, RawBlock};
use millpond_account::error::AllocError;
use millpond_engine::display_size;
use millpond_os::metadata::ARENA;
use millpond_os::reentrancy::{self, Deferred};
use millpond_os::thread::{self, COUNTING};
use millpond_os::words::{self, Waiting as List};
use std::alloc::Layout;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

/// The alignment of a block for which none is requested, which suits every type of C.
pub const ALIGN: usize = 16;

/// Whether the next refused request is explained on standard error.
static EXPLAINS: AtomicBool = AtomicBool::new(false);

/// Explains the next refused request of the process on standard error.
pub fn explain_first_refusal() {
    EXPLAINS.store(true, Ordering::Relaxed);
}

/// Returns the pool, and creates it if necessary. Returns `None` if the system has no memory for it, or inside the slow path of a pool.
#[cold]
#[inline(never)]
fn find() -> Option<&'static PoolHeap> {
    if reentrancy::is_inside() {
        return None;
    }
    let heap = guarded(|| start::heap(true))?;
    inside::adopt(heap);
    Some(heap)
}

/// Allocates a block of at least `bytes` bytes, which may be 0, at a multiple of `align`, a power of two. If `zeroed` is true, the
/// requested bytes are zero. Returns null if there is not enough memory.
#[inline(always)]
pub fn allocate(bytes: usize, align: usize, zeroed: bool) -> *mut u8 {
    let found = match inside::pool() {
        Some(heap) => heap.pop_mapped(bytes, align),
        None => RawBlock::REFUSED,
    };
    if !found.is_some() {
        return allocate_elsewhere(bytes, align, zeroed, found);
    }
    let block = ptr::with_exposed_provenance_mut::<u8>(found.address);
    if zeroed {
        // SAFETY: the block was just allocated, with at least this many bytes.
        unsafe { block.write_bytes(0, bytes) };
    }
    block
}

/// Allocates a block that the fast path did not find.
#[cold]
#[inline(never)]
fn allocate_elsewhere(bytes: usize, align: usize, zeroed: bool, found: RawBlock) -> *mut u8 {
    if !align.is_power_of_two() {
        return ptr::null_mut();
    }
    match inside::pool().or_else(find) {
        Some(heap) => match guarded(|| heap.allocate_mapped(bytes, align, zeroed, found)) {
            Ok(taken) => ptr::with_exposed_provenance_mut(taken.address),
            Err(error) => {
                if EXPLAINS.swap(false, Ordering::Relaxed) {
                    explain(error)
                } else {
                    refuse(error)
                }
            }
        },
        None => allocate_in_arena(bytes, align, zeroed),
    }
}

/// Explains a refused request on standard error, and returns null.
#[cold]
fn explain(error: AllocError) -> *mut u8 {
    let _inside = reentrancy::inside();
    let mut text = format!("millpond: malloc returns null: {error}\n");
    if let Some(limit) = start::address_limit() {
        text += &format!(
            "  the process may map {} of addresses (ulimit -v); without a limit of its own, the pool uses half of them\n",
            display_size(limit)
        );
    }
    if let Some(limit) = millpond_os::data_limit() {
        text += &format!(
            "  the process may have {} of data (ulimit -d), which includes the memory of the pool\n",
            display_size(limit)
        );
    }
    millpond_os::say(&text);
    drop(error);
    ptr::null_mut()
}

/// Frees a block. Returns false and does nothing if the address is not that of a block of [`allocate`].
///
/// # Safety
/// Either [`allocate`] or [`reallocate`] returned the block, it was not freed, and nothing uses it any more, or no block was ever at the
/// address.
#[inline(always)]
pub unsafe fn free(block: NonNull<u8>) -> bool {
    let address = block.as_ptr().expose_provenance();
    match inside::pool() {
        Some(heap) if heap.push_mapped(address) => true,
        // SAFETY: the caller guarantees the conditions.
        _ => unsafe { free_elsewhere(block) },
    }
}

/// Returns the bytes of a live block, all of which may be used. Returns `None` if it is not a block of [`allocate`].
///
/// # Safety
/// The conditions of [`free`], but the block stays in use.
pub unsafe fn usable_bytes(block: NonNull<u8>) -> Option<usize> {
    if ARENA.has(block.as_ptr()) {
        // SAFETY: the caller guarantees that this is a block, and blocks in the arena have headers.
        return Some(unsafe { header(block).read() }.requested);
    }
    guarded(|| start::made()?.mapped_bytes(block.as_ptr().expose_provenance()))
}

/// Changes the bytes of a block. It may move, and keeps its contents up to the smaller size. Returns null if there is not enough memory.
/// In that case the block is unchanged.
///
/// # Safety
/// The block is live, and after success only the returned block is used. `old` is what [`usable_bytes`] returns for it.
pub unsafe fn reallocate(block: NonNull<u8>, old: usize, bytes: usize) -> *mut u8 {
    // A block that shrinks by less than an eighth stays in place.
    let stays = bytes <= old && PoolHeap::mapped_block(bytes, ALIGN) > old - old / 8;
    if stays && !ARENA.has(block.as_ptr()) && !start::made().is_some_and(PoolHeap::is_guarded) {
        return block.as_ptr();
    }
    let new = allocate(bytes, ALIGN, false);
    if new.is_null() {
        // The smaller block could not be allocated, and the caller of a shrinking `realloc` does not expect an error.
        return if bytes <= old { block.as_ptr() } else { new };
    }
    // SAFETY: both blocks have at least this many bytes, and a new block does not overlap with a live one.
    unsafe { ptr::copy_nonoverlapping(block.as_ptr(), new, old.min(bytes)) };
    // SAFETY: the caller guarantees that the block is live, and it is not used any more.
    unsafe { free(block) };
    new
}

/// Returns the error in `MILLPOND_CONF`, if there was one. The pool then uses its defaults.
pub fn configuration_error() -> Option<&'static PoolError> {
    start::misread()
}

/// Restores `errno` when it is dropped. System calls of the slow path change `errno`, and `free` must not.
struct KeptErrno(libc::c_int);

impl KeptErrno {
    fn place() -> *mut libc::c_int {
        // SAFETY: the function has no conditions.
        unsafe { libc::__errno_location() }
    }

    fn new() -> Self {
        // SAFETY: the address of this thread's `errno` is valid as long as the thread runs.
        Self(unsafe { Self::place().read() })
    }
}

impl Drop for KeptErrno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { Self::place().write(self.0) };
    }
}

/// Writes a line to standard error without allocating, and ends the program.
pub fn abort(line: &str) -> ! {
    millpond_os::say(line);
    std::process::abort();
}

/// The header in front of a block in the arena.
#[derive(Clone, Copy)]
struct Header {
    requested: usize,
    align: usize,
}

const _: () = assert!(size_of::<Header>() == ALIGN && align_of::<Header>() <= ALIGN);

impl Header {
    /// Returns the layout of a block together with its header.
    fn layout(self) -> Option<Layout> {
        Layout::from_size_align(self.requested.checked_add(self.align)?, self.align).ok()
    }
}

/// Returns the place of the header of a block in the arena.
fn header(block: NonNull<u8>) -> *mut Header {
    block.as_ptr().wrapping_sub(size_of::<Header>()).cast()
}

/// Allocates a block from the arena inside the slow path of a pool. Returns null anywhere else.
#[cold]
#[inline(never)]
fn allocate_in_arena(bytes: usize, align: usize, zeroed: bool) -> *mut u8 {
    if !reentrancy::is_inside() {
        return ptr::null_mut();
    }
    let of_block = Header {
        requested: bytes,
        align: align.max(ALIGN),
    };
    let Some(layout) = of_block.layout() else {
        return ptr::null_mut();
    };
    let Some(start) = NonNull::new(ARENA.take(layout)) else {
        return ptr::null_mut();
    };
    // SAFETY: the block in the arena has this many bytes in front of those requested.
    let block = unsafe { start.add(of_block.align) };
    // SAFETY: the alignment is at least that of the header and the header's size, so it fits in front.
    unsafe { header(block).write(of_block) };
    if zeroed {
        // SAFETY: the block has at least the requested bytes, and belongs to this function alone.
        unsafe { block.write_bytes(0, bytes) };
    }
    block.as_ptr()
}

/// Frees a block that the fast path did not free.
///
/// # Safety
/// The conditions of [`free`].
#[cold]
#[inline(never)]
unsafe fn free_elsewhere(block: NonNull<u8>) -> bool {
    let _errno = KeptErrno::new();
    if ARENA.has(block.as_ptr()) {
        // SAFETY: the caller guarantees that this is a block, and blocks in the arena have headers.
        let of_block = unsafe { header(block).read() };
        let (Some(layout), Some(start)) = (
            of_block.layout(),
            NonNull::new(block.as_ptr().wrapping_sub(of_block.align)),
        ) else {
            return false;
        };
        // SAFETY: the block was taken from the arena for this layout, and is not used any more.
        unsafe { ARENA.give(start, layout) };
        return true;
    }
    let address = block.as_ptr().expose_provenance();
    match inside::pool().or_else(find) {
        Some(heap) => guarded(|| heap.free_mapped(address)),
        None if start::made().is_some_and(|heap| heap.may_be_mapped(address)) => {
            wait(block);
            true
        }
        None => false,
    }
}

/// A note about a block that waits to be freed. The note is not in the block, because the bytes of a guarded block are checked.
struct Waiting {
    block: NonNull<u8>,
    /// Whether observers are not told of the free, as they were not told of the allocation.
    is_untold: bool,
    next: *mut Self,
}

/// Sets the first of the blocks that wait.
fn set_first(first: *mut Waiting) {
    // SAFETY: only this file sets this list, to notes in the arena and to null.
    words::with(|words| unsafe { words.set_waiting(List::Malloc, first.cast()) });
}

fn first() -> *mut Waiting {
    words::with(|words| words.waiting(List::Malloc)).cast()
}

/// Frees a block when the slow path has ended. If there is no memory for the note, the block is leaked.
fn wait(block: NonNull<u8>) {
    let note = ARENA.take(Layout::new::<Waiting>()).cast::<Waiting>();
    if note.is_null() {
        return;
    }
    let waiting = Waiting {
        block,
        is_untold: inside::is_untold(),
        next: first(),
    };
    // SAFETY: the arena has just given memory with this layout.
    unsafe { note.write(waiting) };
    set_first(note);
    if !words::with(|words| words.giving(List::Malloc)) {
        reentrancy::defer(Deferred::Frees, super::give_back);
    }
}

/// Frees the blocks that wait. Nested calls leave their blocks to the outermost one.
#[cold]
#[inline(never)]
pub(super) fn give_back() {
    words::with(|words| words.set_giving(List::Malloc, true));
    while let Some(note) = NonNull::new(first()) {
        // SAFETY: `wait` has written the note, and no other code uses it.
        let Waiting {
            block,
            is_untold,
            next,
        } = unsafe { note.read() };
        set_first(next);
        // SAFETY: the note was allocated with this layout, and is not used any more.
        unsafe { ARENA.give(note.cast(), Layout::new::<Waiting>()) };
        let _untold = is_untold.then(|| thread::enter(COUNTING));
        // SAFETY: the caller that freed the block inside the slow path has guaranteed the conditions.
        unsafe { free(block) };
    }
    words::with(|words| words.set_giving(List::Malloc, false));
}
