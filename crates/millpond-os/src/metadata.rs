//! The metadata arena, which holds a pool's own tables in a program whose allocator is the pool.
//!
//! ```text
//!   base                                next               open                        base + bytes
//!    | blocks, live or in a free list    | never allocated  | closed addresses, no memory |
//! ```
//!
//! The arena is one range of addresses, so two comparisons decide whether a block belongs to it. The size of a block is a power
//! of two of at least 16 bytes, and its offset from the base is a multiple of its size or of 64 KiB. There is one list of free blocks
//! for each size, whose links are in the blocks. Free blocks are not merged. Tables usually double when they grow, so a table
//! mostly needs a size that another table has freed. Large free blocks return their memory to the system, except their first
//! page.
//!
//! The arena opens more memory than it has allocated: a reserve of 1 MiB and four times the largest table. If the system has no
//! more memory for it, a pool first frees all memory that it can and then refuses to grow (`has_reserve`). The reserve then
//! serves the tables for blocks that the pool has already allocated. At most 512 KiB of it may be used for small blocks without
//! which the program could not continue ([`spare`](Arena::spare)).
//!
//! Recordings, snapshots and the monitor also allocate here. They ask first whether the first half of the addresses and the
//! memory beside the reserve suffice ([`has_room`]). If not, they stop, and the program continues.
//!
//! The arena's lock is the last in the [order](crate::ranked::Rank). No function outside this module is called under it, and no thread
//! local is used, because that may allocate.

use crate::ranked::{Locked, Rank, Ranked};
use crate::thread::{self, COUNTING};
use crate::{self as os, Map, Part};
use std::alloc::Layout;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The logarithm of the smallest block size.
const LEAST_LOG: u32 = 4;
/// The number of block sizes.
const SIZES: usize = 36;
/// The alignment of the base. No block can have a larger alignment.
const ALIGN: u64 = 2 << 20;
/// Larger blocks begin at a multiple of this, the largest page of any supported system, unless a larger alignment is requested.
const PAGE: u64 = 64 << 10;
/// The least number of bytes that are opened at once.
const STEP: u64 = 1 << 20;
/// Free blocks of at least this many bytes return their memory to the system.
const LARGE: u64 = 256 << 10;
/// The largest block that [`spare`](Arena::spare) hands out.
const SPARE: u64 = 64 << 10;
/// The arena is not created with fewer addresses than this.
const LEAST_BYTES: u64 = 16 << 20;

/// Returns the bytes of the block for a layout and the index of its size, or `None` if no block size fits.
fn size_of_block(layout: Layout) -> Option<(u64, usize)> {
    if layout.align() as u64 > ALIGN {
        return None;
    }
    let bytes = layout.size().max(layout.align()).max(1 << LEAST_LOG);
    let bytes = bytes
        .checked_next_multiple_of(1 << LEAST_LOG)?
        .checked_next_power_of_two()? as u64;
    let size = (bytes.trailing_zeros() - LEAST_LOG) as usize;
    (size < SIZES).then_some((bytes, size))
}

/// Returns the alignment of the block of `bytes` bytes for a layout.
fn align_of_block(layout: Layout, bytes: u64) -> u64 {
    bytes.min(PAGE.max(layout.align() as u64))
}

/// The data under the lock. Offsets are from the base.
///
/// Invariant: `[0, open)` of the map is open, and `[next, open)` was never handed out. Each list contains unused blocks of
/// its size below `next`, at multiples of that size or of `PAGE`. A list names a block by its offset plus one.
#[derive(Debug)]
struct Space {
    map: Option<Map>,
    bytes: u64,
    next: u64,
    open: u64,
    largest: u64,
    free: [u64; SIZES],
}

impl Space {
    const fn new() -> Self {
        Self {
            map: None,
            bytes: 0,
            next: 0,
            open: 0,
            largest: 0,
            free: [0; SIZES],
        }
    }

    /// Reserves addresses: as many as tables could ever need, or fewer if the process has a limit.
    fn begin(&mut self) -> Option<()> {
        if self.map.is_some() {
            return Some(());
        }
        let memory = os::machine_memory().1.clamp(1 << 30, 1 << 40).next_power_of_two();
        let most = os::address_limit().map_or(u64::MAX, |limit| limit / 8);
        let mut bytes = memory.min(most.max(LEAST_BYTES)).next_multiple_of(ALIGN);
        let map = loop {
            match Map::new(bytes, ALIGN) {
                Ok(map) => break map,
                Err(_) if bytes / 2 >= LEAST_BYTES => bytes = (bytes / 2).next_multiple_of(ALIGN),
                Err(_) => return None,
            }
        };
        self.bytes = bytes;
        self.map = Some(map);
        Some(())
    }

    /// Opens memory until at least `more` open bytes were never handed out.
    fn open(&mut self, more: u64) -> Option<()> {
        let end = self.next.checked_add(more)?;
        if end <= self.open {
            return Some(());
        }
        if end > self.bytes {
            return None;
        }
        let target = end.max(self.open + STEP).next_multiple_of(STEP).min(self.bytes);
        let part = Part {
            offset: self.open,
            bytes: target - self.open,
        };
        self.map.as_ref()?.open(part).ok()?;
        self.open = target;
        Some(())
    }

    /// Opens the reserve. Returns false if the system refuses.
    fn keep_reserve(&mut self) -> bool {
        self.open(STEP + 4 * self.largest).is_some()
    }

    fn address(&self, offset: u64) -> Option<usize> {
        Some((self.map.as_ref()?.address() + offset) as usize)
    }

    fn pop(&mut self, size: usize) -> Option<u64> {
        let head = self.free.get_mut(size)?;
        let offset = head.checked_sub(1)?;
        let at = self.map.as_ref()?.address() + offset;
        let at: *const u64 = ptr::with_exposed_provenance(at as usize);
        // SAFETY: by the invariant the block is open and unused, and `push` has written its first word.
        *head = unsafe { at.read() };
        Some(offset)
    }

    fn push(&mut self, size: usize, offset: u64) {
        let (Some(address), Some(head)) = (self.address(offset), self.free.get_mut(size)) else {
            return;
        };
        let at: *mut u64 = ptr::with_exposed_provenance_mut(address);
        // SAFETY: the caller gives us an open block of at least 16 bytes at a multiple of 16, which no other code uses.
        unsafe { at.write(*head) };
        *head = offset + 1;
    }

    /// Returns a free block of a size and an alignment.
    fn reuse(&mut self, size: usize, align: u64) -> Option<u64> {
        let offset = self.pop(size)?;
        if offset.is_multiple_of(align) {
            return Some(offset);
        }
        self.push(size, offset);
        None
    }

    /// Returns a block that was never handed out.
    fn cut(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let start = self.next.checked_next_multiple_of(align)?;
        self.open(start + bytes - self.next)?;
        // The skipped bytes become free blocks, each the largest that can begin at its address.
        while self.next < start {
            let log = self.next.trailing_zeros();
            self.next += 1 << log;
            self.push((log - LEAST_LOG) as usize, self.next - (1 << log));
        }
        self.next = start + bytes;
        Some(start)
    }

    /// Splits a larger free block and returns a part of it, as the last resort.
    fn split(&mut self, size: usize, align: u64) -> Option<u64> {
        let (offset, from) =
            (size + 1..SIZES).find_map(|from| self.reuse(from, align).map(|offset| (offset, from)))?;
        for half in (size..from).rev() {
            self.push(half, offset + (1 << (half as u32 + LEAST_LOG)));
        }
        Some(offset)
    }

    /// Returns a block. `is_table` is true if it is for a table of a pool, because the size of the reserve depends on the largest table.
    fn take(&mut self, layout: Layout, is_table: bool) -> Option<usize> {
        let (bytes, size) = size_of_block(layout)?;
        self.begin()?;
        if is_table {
            self.largest = self.largest.max(bytes);
        }
        let align = align_of_block(layout, bytes);
        let offset = self
            .reuse(size, align)
            .or_else(|| self.cut(bytes, align))
            .or_else(|| self.split(size, align))?;
        self.address(offset)
    }

    /// Returns whether a block of these bytes can be allocated beside the reserve, and leaves half of the addresses to tables.
    fn has_room(&mut self, bytes: usize) -> bool {
        let layout = Layout::from_size_align(bytes, 1).ok();
        let Some((bytes, size)) = layout.and_then(size_of_block) else {
            return false;
        };
        let lists = self.free.get(size..).unwrap_or_default();
        let is_free = lists.iter().any(|head| *head != 0);
        let end = if is_free {
            self.next
        } else {
            self.next.next_multiple_of(bytes.min(PAGE)) + bytes
        };
        let fits = is_free || end <= self.bytes / 2;
        fits && self.open(end - self.next + STEP + 4 * self.largest).is_some()
    }

    /// Returns a block that tables do not need: a free block, or a new block that leaves half of the reserve.
    fn spare(&mut self, layout: Layout) -> Option<usize> {
        let (bytes, size) = size_of_block(layout)?;
        if bytes > SPARE {
            return None;
        }
        let align = align_of_block(layout, bytes);
        let cut = |this: &mut Self| {
            this.open(align + bytes + STEP / 2 + 4 * this.largest)?;
            this.cut(bytes, align)
        };
        let offset = self.reuse(size, align).or_else(|| cut(self))?;
        self.address(offset)
    }

    fn give(&mut self, address: usize, layout: Layout) {
        let (Some((bytes, size)), Some(map)) = (size_of_block(layout), self.map.as_ref()) else {
            return;
        };
        let offset = address as u64 - map.address();
        let page = os::page_bytes();
        if bytes >= LARGE {
            // If the system refuses, the memory stays for the next table of this size.
            let _ = map.empty(Part {
                offset: offset + page,
                bytes: bytes - page,
            });
        }
        self.push(size, offset);
    }
}

/// The arena of the process.
pub static ARENA: Arena = Arena::new();

/// Returns whether the tables of pools have room to change. This is always true if the program's allocator is not a pool.
pub fn has_reserve() -> bool {
    ARENA.has_reserve()
}

/// Returns whether `bytes` bytes can be allocated now without the reserve for the tables of pools. A program that runs out of memory
/// may survive, which would not be possible if a thread of this library failed an ordinary allocation. If the program's allocator is
/// not a pool, other threads may use the memory between this check and the allocation.
pub fn has_room(bytes: usize) -> bool {
    if ARENA.bytes.load(Ordering::Relaxed) == 0 {
        return Vec::<u8>::new().try_reserve_exact(bytes).is_ok();
    }
    ARENA.lock().has_room(bytes)
}

/// A guard that keeps the arena unchanged until it is dropped. A fork takes the arena's lock last.
pub(crate) struct NoTables(#[expect(dead_code, reason = "held")] Locked<'static, Space>);

/// Locks the arena for a fork.
pub(crate) fn no_tables() -> NoTables {
    NoTables(ARENA.lock())
}

/// The arena, as described at the top of the file.
#[derive(Debug)]
pub struct Arena {
    /// Set once, when addresses are reserved. A thread that has a block has seen it.
    base: AtomicUsize,
    bytes: AtomicUsize,
    /// Whether the reserve is incomplete.
    short: AtomicBool,
    space: Ranked<Space>,
}

impl Arena {
    pub(crate) const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            short: AtomicBool::new(false),
            space: Ranked::new(Rank::Tables, Space::new()),
        }
    }

    /// Returns whether a block belongs to the arena.
    #[inline]
    pub fn has(&self, block: *const u8) -> bool {
        let offset = block.addr().wrapping_sub(self.base.load(Ordering::Relaxed));
        offset < self.bytes.load(Ordering::Relaxed)
    }

    /// Keeps the arena unchanged until the guard is dropped.
    fn lock(&self) -> Locked<'_, Space> {
        self.space.lock()
    }

    /// Allocates a block. Returns null if there is none.
    pub fn take(&self, layout: Layout) -> *mut u8 {
        let is_table = thread::inside() & COUNTING == 0;
        let mut space = self.lock();
        let taken = space.take(layout, is_table);
        self.short.store(!space.keep_reserve(), Ordering::Relaxed);
        let Some(address) = taken else {
            return ptr::null_mut();
        };
        if self.bytes.load(Ordering::Relaxed) == 0
            && let Some(base) = space.address(0)
        {
            self.base.store(base, Ordering::Relaxed);
            self.bytes.store(space.bytes as usize, Ordering::Relaxed);
        }
        ptr::with_exposed_provenance_mut(address)
    }

    /// Allocates a block that is not for a table, when the pool has no memory. Returns null if tables need the memory.
    pub fn spare(&self, layout: Layout) -> *mut u8 {
        let mut space = self.lock();
        // A thread that has a block of the pool has seen the base of the arena, because the arena is created before the pool.
        let taken = space.spare(layout);
        self.short.store(!space.keep_reserve(), Ordering::Relaxed);
        taken.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
    }

    /// Returns whether there is room for requests that must not be refused. If there was none, asks the system again.
    pub(crate) fn has_reserve(&self) -> bool {
        if !self.short.load(Ordering::Relaxed) {
            return true;
        }
        let short = !self.lock().keep_reserve();
        self.short.store(short, Ordering::Relaxed);
        !short
    }

    /// Frees a block.
    ///
    /// # Safety
    /// The block was allocated here for this layout or one of the same [block](Self::fits), and is not used any more.
    pub unsafe fn give(&self, block: NonNull<u8>, layout: Layout) {
        self.lock().give(block.as_ptr().expose_provenance(), layout);
    }

    /// Returns whether two layouts have the same block.
    pub fn fits(one: Layout, other: Layout) -> bool {
        size_of_block(one).is_some_and(|block| size_of_block(other) == Some(block))
    }

    /// Returns the bytes of memory that were opened so far.
    pub fn opened(&self) -> u64 {
        self.lock().open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bytes: usize, align: usize) -> Layout {
        Layout::from_size_align(bytes, align).expect("a layout")
    }

    fn fill(block: *mut u8, bytes: usize, seed: u8) {
        assert!(!block.is_null());
        // SAFETY: this is a block of the arena of at least this many bytes, and no other code uses it.
        unsafe { block.write_bytes(seed, bytes) };
    }

    fn holds(block: *mut u8, bytes: usize, seed: u8) -> bool {
        // SAFETY: this is a block of the arena of at least this many bytes, no other code uses it, and `fill` has written all of
        // them.
        let bytes = unsafe { std::slice::from_raw_parts(block, bytes) };
        bytes.iter().all(|byte| *byte == seed)
    }

    #[test]
    fn blocks_do_not_overlap_are_aligned_and_are_reused() {
        let arena = Arena::new();
        let mut held: Vec<(*mut u8, Layout, u8)> = Vec::new();
        let mut seed = 1u64;
        for round in 0..4000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bytes = 1 + (seed >> 33) as usize % (1 << (4 + round % 14));
            let shape = layout(bytes, 1 << (seed >> 60).min(12));
            let block = arena.take(shape);
            assert!(block.addr().is_multiple_of(shape.align()) && arena.has(block));
            fill(block, bytes, round as u8);
            held.push((block, shape, round as u8));
            if round % 3 != 0 {
                let (block, shape, seed) = held.swap_remove((seed >> 40) as usize % held.len());
                assert!(holds(block, shape.size(), seed));
                // SAFETY: the block was allocated with this layout, and is not used any more.
                unsafe { arena.give(NonNull::new(block).expect("a block"), shape) };
            }
        }
        for (block, shape, seed) in &held {
            assert!(holds(*block, shape.size(), *seed));
        }
        let open = arena.opened();
        for (block, shape, _) in held.drain(..) {
            // SAFETY: the block was allocated with this layout, and is not used any more.
            unsafe { arena.give(NonNull::new(block).expect("a block"), shape) };
        }
        for _ in 0..100 {
            let (shape, one) = (layout(5000, 8), arena.take(layout(5000, 8)));
            // SAFETY: the block was allocated with this layout, and is not used any more.
            unsafe { arena.give(NonNull::new(one).expect("a block"), shape) };
        }
        assert_eq!(arena.opened(), open, "free blocks are used again");
    }

    #[test]
    fn impossible_requests_return_null_and_the_last_blocks_are_split() {
        let arena = Arena::new();
        assert!(arena.take(layout(1, 4 << 20)).is_null());
        assert!(arena.take(layout(isize::MAX as usize - 4096, 1)).is_null());
        let mut space = Space {
            bytes: LEAST_BYTES,
            map: Map::new(LEAST_BYTES, ALIGN).ok(),
            ..Space::new()
        };
        let large = layout(1 << 20, 8);
        let held: Vec<usize> = std::iter::from_fn(|| space.take(large, true)).collect();
        assert_eq!(held.len(), 16);
        assert_eq!(space.take(layout(16, 16), true), None);
        space.give(held[3], large);
        let small: Vec<usize> = std::iter::from_fn(|| space.take(layout(4096, 8), true)).collect();
        assert_eq!(small.len(), 256);
        assert!(small.iter().all(|at| (held[3]..held[3] + (1 << 20)).contains(at)));
    }

    #[test]
    fn large_blocks_leave_no_gaps_and_are_aligned_if_that_is_requested() {
        let mut space = Space {
            bytes: LEAST_BYTES,
            map: Map::new(LEAST_BYTES, ALIGN).ok(),
            ..Space::new()
        };
        let base = space.take(layout(64 << 10, 8), true).expect("room");
        let [one, two] = [1, 8].map(|align| space.take(layout(1 << 20, align), true).expect("room") - base);
        assert_eq!([one, two], [64 << 10, (1 << 20) + (64 << 10)]);
        let aligned = space.take(layout(1 << 20, 1 << 20), true).expect("room") - base;
        assert_eq!(aligned, 3 << 20);
        space.give(base + one, layout(1 << 20, 8));
        let another = space.take(layout(1 << 20, 1 << 20), true).expect("room") - base;
        assert_eq!(another, 4 << 20, "the free block is not aligned");
        assert_eq!(space.take(layout(1 << 20, 8), true), Some(base + one));
    }

    #[test]
    fn spare_blocks_leave_half_of_the_reserve_for_tables() {
        let mut space = Space {
            bytes: LEAST_BYTES,
            map: Map::new(LEAST_BYTES, ALIGN).ok(),
            ..Space::new()
        };
        let table = layout(256 << 10, 8);
        let first = space.take(table, true).expect("room");
        assert_eq!(space.spare(layout(SPARE as usize + 1, 8)), None, "too large");
        let spared: Vec<usize> = std::iter::from_fn(|| space.spare(layout(1000, 8))).collect();
        assert!(spared.len() > 1000, "{}", spared.len());
        // A free block is handed out even if no new block is.
        space.give(spared[7], layout(1000, 8));
        assert_eq!(space.spare(layout(1000, 8)), Some(spared[7]));
        assert_eq!(space.spare(layout(1000, 8)), None);
        assert!(
            space.take(layout(1 << 20, 8), true).is_some(),
            "tables have their half"
        );
        space.give(first, table);
    }

    #[test]
    fn there_is_room_only_beside_the_reserve_which_other_blocks_do_not_enlarge() {
        let mut space = Space {
            bytes: LEAST_BYTES,
            map: Map::new(LEAST_BYTES, ALIGN).ok(),
            ..Space::new()
        };
        space.take(layout(1 << 20, 8), true).expect("a table");
        assert!(space.has_room(4 << 20), "from 1 to 5 of the first 8 MiB");
        assert!(!space.has_room(8 << 20));
        let other = space.take(layout(4 << 20, 8), false).expect("a block");
        assert!(!space.has_room(4 << 20), "from 5 to 9 MiB");
        assert!(space.has_room(2 << 20), "from 5 to 7 MiB");
        space.give(other, layout(4 << 20, 8));
        assert!(space.has_room(4 << 20), "a free block");
        space.take(layout(4 << 20, 8), true).expect("a table");
        assert!(!space.has_room(1), "the reserve of the table does not fit");
    }

    #[test]
    fn a_large_free_block_returns_its_memory_to_the_system() {
        let arena = Arena::new();
        let shape = layout(8 << 20, 8);
        let block = arena.take(shape);
        fill(block, shape.size(), 1);
        // SAFETY: the block was allocated with this layout, and is not used any more.
        unsafe { arena.give(NonNull::new(block).expect("a block"), shape) };
        let again = arena.take(shape);
        assert_eq!(again, block);
        // SAFETY: the byte is inside the block, which is ours, and returned memory reads as zero.
        let byte = unsafe { *again.wrapping_add(1 << 20) };
        assert_eq!(byte, 0);
    }
}
