//! Blocks that a source hands out without a pool.
//!
//! From 256 KiB on, a block that grows to another place moves its pages instead of copying them. This is faster only if the target is
//! fresh memory, as it always is here: a copy to fresh memory takes 1,300 to 3,700 ns for each page, because of the page fault, and a move
//! takes 300 to 600 ns. A pool copies instead, because most of its free memory already has pages. Such a copy takes 30 to 480 ns for each
//! page, and the origin keeps its pages. The example `growth` measures all of these times.

use crate::memory::MemorySource;
use crate::pool::RawBlock;
use millpond_account::MemoryKind;
use millpond_account::error::AllocError;
use millpond_engine::Segment;
use std::collections::HashMap;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The unit that requests are rounded up to. The system maps whole pages, which have at least this size.
const PAGE: usize = 4 << 10;

/// From this number of bytes on, contents are moved with their pages instead of being copied.
const TRANSFERRED: usize = 256 << 10;

/// The source and its segments.
pub struct Direct {
    kind: MemoryKind,
    is_zero: bool,
    page: usize,
    held: Mutex<Held>,
}

struct Held {
    source: Box<dyn MemorySource + Send>,
    /// By the address of the block.
    segments: HashMap<usize, Segment>,
    pub bytes: u64,
}

impl Held {
    /// Takes a segment. Returns it, the first address in it that is a multiple of `align`, and the bytes from there.
    fn take(&mut self, bytes: usize, align: usize) -> Result<(Segment, usize, usize), AllocError> {
        let refused = |error| AllocError::Source(Box::new(error));
        let segment = self.source.take(bytes as u64).map_err(refused)?;
        let start = segment.address() as usize;
        let address = start.next_multiple_of(align);
        let room = (segment.bytes() as usize).saturating_sub(address - start);
        Ok((segment, address, room))
    }
}

impl Direct {
    pub(crate) fn new(source: Box<dyn MemorySource + Send>) -> Self {
        Self {
            kind: source.kind(),
            is_zero: source.fresh_is_zero(),
            page: usize::try_from(source.page_bytes()).unwrap_or(PAGE),
            held: Mutex::new(Held {
                source,
                segments: HashMap::new(),
                bytes: 0,
            }),
        }
    }

    /// Returns the bytes of the segments that blocks are in.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held().bytes
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Allocates a segment of whole pages for one block. All bytes are zero if `zeroed` is true.
    pub(crate) fn allocate(&self, bytes: usize, align: usize, zeroed: bool) -> Result<RawBlock, AllocError> {
        let bytes = bytes.checked_next_multiple_of(PAGE);
        let most = isize::MAX as usize;
        let bytes = bytes.filter(|bytes| *bytes <= most - align.min(most));
        let bytes = bytes.ok_or(AllocError::UNCOUNTABLE)?;
        let mut held = self.held();
        // A source aligns to at most its own page. For a larger alignment, the block is somewhere in a larger segment.
        let first = if align > self.page { bytes + align } else { bytes };
        let (mut segment, mut address, mut room) = held.take(first, align)?;
        if room < bytes {
            held.source.give(segment);
            (segment, address, room) = held.take(bytes + align, align)?;
        }
        held.bytes += segment.bytes();
        held.segments.insert(address, segment);
        drop(held);
        if zeroed && !self.is_zero {
            let pointer = ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: the segment was allocated just now, belongs to this function alone and has this room from there.
            unsafe { pointer.write_bytes(0, room) };
        }
        Ok(RawBlock { address, bytes: room })
    }

    /// Frees a block. Ignores addresses that are not those of its blocks.
    pub(crate) fn free(&self, pointer: NonNull<u8>) {
        let mut held = self.held();
        if let Some(segment) = held.segments.remove(&pointer.as_ptr().addr()) {
            held.bytes -= segment.bytes();
            held.source.give(segment);
        }
    }

    /// Moves the first `keep` bytes of a block to another block. The other bytes of that block do not change.
    ///
    /// # Safety
    /// Both are blocks of this source with at least `keep` bytes, and only the caller uses them.
    pub(crate) unsafe fn move_contents(&self, from: NonNull<u8>, to: NonNull<u8>, keep: usize) {
        let mut moved = 0;
        if keep >= TRANSFERRED {
            // Only whole pages are transferred. If only a part of the last page is kept, the target's bytes after that part may
            // have to stay zero.
            let whole = keep / PAGE * PAGE;
            let (origin, target) = (from.addr().get() as u64, to.addr().get() as u64);
            if self.held().source.transfer(origin, target, whole as u64) {
                moved = whole;
            }
        }
        // SAFETY: the block has at least `keep` bytes, and `moved` is at most `keep`.
        let rest = unsafe { from.add(moved) };
        // SAFETY: as above.
        let place = unsafe { to.add(moved) };
        // SAFETY: both blocks have `keep - moved` bytes from there, and two blocks do not overlap.
        unsafe { rest.copy_to_nonoverlapping(place, keep - moved) };
    }
}
