//! The list of live blocks, with which pools are compared.

use millpond::Buffer;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Mutex;

/// All live ranges: first address and end. A range is inserted after it was allocated and removed before it is freed,
/// so two ranges that overlap here were live at once.
#[derive(Debug, Default)]
pub(crate) struct Live(Mutex<BTreeMap<usize, usize>>);

impl Live {
    pub(crate) fn add(&self, start: usize, bytes: usize) {
        let mut ranges = self.0.lock().expect("no panic");
        let before = ranges.range(..=start).next_back();
        assert!(
            before.is_none_or(|(_, end)| *end <= start),
            "overlap at {start:x}"
        );
        let after = ranges.range(start..).next();
        assert!(
            after.is_none_or(|(next, _)| start + bytes <= *next),
            "overlap at {start:x}"
        );
        ranges.insert(start, start + bytes);
    }

    pub(crate) fn remove(&self, start: usize, bytes: usize) {
        let end = self.0.lock().expect("no panic").remove(&start);
        assert_eq!(end, Some(start + bytes), "not live: {start:x}");
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().expect("no panic").len()
    }
}

/// A raw block.
#[derive(Debug)]
pub(crate) struct Raw(pub(crate) NonNull<[u8]>);

// SAFETY: the block belongs to its holder alone, on any thread.
unsafe impl Send for Raw {}

impl Raw {
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.0.cast()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// A block that a thread holds.
#[derive(Debug)]
pub(crate) enum Block {
    Raw(Raw),
    Buffer(Buffer<u8>),
}

/// A block, its stamp, its accounted size, and its owner.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) block: Block,
    pub(crate) stamp: u64,
    pub(crate) requested: usize,
    /// The tenant to which it is charged.
    pub(crate) tenant: Option<usize>,
}

/// Returns the positions of a range that are written: some in every part of it, the first and the last.
fn places(bytes: usize) -> impl Iterator<Item = usize> {
    let step = if bytes <= 4096 { 8 } else { 1000 };
    (0..bytes).step_by(step).chain(bytes.checked_sub(1))
}

fn value(stamp: u64, place: usize) -> u8 {
    (stamp ^ (place as u64).wrapping_mul(0x9e37_79b9)) as u8
}

impl Held {
    /// Returns the first address and the number of usable bytes.
    pub(crate) fn range(&self) -> (usize, usize) {
        match &self.block {
            Block::Raw(raw) => (raw.pointer().as_ptr().expose_provenance(), raw.bytes()),
            Block::Buffer(buffer) => (buffer.as_ptr().expose_provenance(), buffer.capacity()),
        }
    }

    fn pointer(&self) -> *mut u8 {
        match &self.block {
            Block::Raw(raw) => raw.pointer().as_ptr(),
            Block::Buffer(buffer) => buffer.as_ptr().cast_mut(),
        }
    }

    fn byte(&self, place: usize) -> u8 {
        // SAFETY: the place is inside the block, which is ours alone and was written or came as zero.
        unsafe { self.pointer().wrapping_add(place).read() }
    }

    /// Writes to the holder's bytes: all of a raw block, or a buffer's elements.
    pub(crate) fn fill(&mut self) {
        let bytes = self.bytes();
        let (pointer, stamp) = (self.pointer(), self.stamp);
        for place in places(bytes) {
            // SAFETY: the place is inside the block, which is ours alone.
            unsafe { pointer.wrapping_add(place).write(value(stamp, place)) };
        }
    }

    pub(crate) fn check(&self, bytes: usize) {
        for place in places(bytes) {
            assert_eq!(
                self.byte(place),
                value(self.stamp, place),
                "place {place} of {self:?}"
            );
        }
    }

    /// Checks that the bytes of a range are zero.
    pub(crate) fn assert_zero(&self, from: usize, to: usize) {
        let step = if to - from <= 1 << 18 { 1 } else { 509 };
        for place in (from..to).step_by(step) {
            assert_eq!(self.byte(place), 0, "place {place} of {self:?}");
        }
    }

    /// Returns the number of filled bytes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.block {
            Block::Raw(raw) => raw.bytes(),
            Block::Buffer(buffer) => buffer.len(),
        }
    }
}
