//! Range allocators behind a common interface: the engine, the offset-allocator crate, and a plain best fit.

use crate::Op;
use crate::measure::{Clock, Timer};
use millpond_engine::{Block, Engine, Request, Simulated, Stream};
use offset_allocator::{Allocation, Allocator};
use std::collections::{BTreeMap, BTreeSet};

/// An allocator of ranges that are identified by slot numbers. Each implementation keeps its blocks in a table of slots.
pub trait Ranges {
    /// Allocates into a slot. Returns whether there was room.
    fn allocate(&mut self, slot: u32, stream: u32, bytes: u64) -> bool;
    /// Frees the block in a slot.
    fn free(&mut self, slot: u32);

    /// Makes the calls in order, up to the first allocation that fails. Returns the nanoseconds of the thread's processor time,
    /// and whether every allocation succeeded.
    fn run(&mut self, ops: &[Op]) -> (f64, bool) {
        let timer = Timer::start(Clock::Thread);
        let finished = ops.iter().all(|op| match *op {
            Op::Alloc { slot, stream, bytes } => self.allocate(slot, stream, bytes),
            Op::Free { slot } => {
                self.free(slot);
                true
            }
        });
        (timer.nanoseconds(), finished)
    }
}

/// A policy in an engine over a simulated device.
pub struct Policy {
    /// The engine.
    pub engine: Engine<Simulated>,
    slots: Vec<Option<Block>>,
}

impl Policy {
    /// Creates an allocator with room for this many blocks at once.
    #[must_use]
    pub fn new(engine: Engine<Simulated>, slots: usize) -> Self {
        let slots = std::iter::repeat_with(|| None).take(slots).collect();
        Self { engine, slots }
    }
}

impl Ranges for Policy {
    #[inline]
    fn allocate(&mut self, slot: u32, stream: u32, bytes: u64) -> bool {
        let held = &mut self.slots[slot as usize];
        *held = self.engine.allocate(Request::new(bytes, Stream(stream))).ok();
        held.is_some()
    }

    #[inline]
    fn free(&mut self, slot: u32) {
        if let Some(block) = self.slots[slot as usize].take() {
            self.engine.free(block, &[]);
        }
    }
}

/// The offset-allocator crate over 1 TiB in units of 256 bytes, because its offsets have 32 bits.
pub struct OffsetAllocator {
    allocator: Allocator,
    slots: Vec<Option<Allocation>>,
}

impl OffsetAllocator {
    const UNIT: u64 = 256;

    /// Returns the number of records to create in advance for this many live blocks. Each block has a record, and so has each
    /// free range between two blocks.
    #[must_use]
    pub fn blocks(slots: usize) -> usize {
        2 * slots + 1024
    }

    /// Creates an allocator with room for this many blocks at once.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            allocator: Allocator::with_max_allocs(u32::MAX, Self::blocks(slots) as u32),
            slots: vec![None; slots],
        }
    }
}

impl Ranges for OffsetAllocator {
    #[inline]
    fn allocate(&mut self, slot: u32, _stream: u32, bytes: u64) -> bool {
        let held = &mut self.slots[slot as usize];
        *held = self.allocator.allocate(bytes.div_ceil(Self::UNIT).max(1) as u32);
        held.is_some()
    }

    #[inline]
    fn free(&mut self, slot: u32) {
        if let Some(allocation) = self.slots[slot as usize].take() {
            self.allocator.free(allocation);
        }
    }
}

/// Best fit over two ordered trees: free ranges by size and by address, in units of 256 bytes.
pub struct Trees {
    by_size: BTreeSet<(u64, u64)>,
    by_address: BTreeMap<u64, u64>,
    slots: Vec<(u64, u64)>,
}

impl Trees {
    /// Creates an allocator with room for this many blocks at once.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let everything = 1 << 50;
        Self {
            by_size: BTreeSet::from([(everything, 0)]),
            by_address: BTreeMap::from([(0, everything)]),
            slots: vec![(0, 0); slots],
        }
    }
}

impl Ranges for Trees {
    fn allocate(&mut self, slot: u32, _stream: u32, bytes: u64) -> bool {
        let bytes = bytes.max(1).next_multiple_of(256);
        let Some(&(size, address)) = self.by_size.range((bytes, 0)..).next() else {
            return false;
        };
        self.by_size.remove(&(size, address));
        self.by_address.remove(&address);
        if size > bytes {
            self.by_size.insert((size - bytes, address + bytes));
            self.by_address.insert(address + bytes, size - bytes);
        }
        self.slots[slot as usize] = (address, bytes);
        true
    }

    fn free(&mut self, slot: u32) {
        let (mut address, mut bytes) = std::mem::take(&mut self.slots[slot as usize]);
        if let Some((&before, &size)) = self.by_address.range(..address).next_back()
            && before + size == address
        {
            self.by_size.remove(&(size, before));
            self.by_address.remove(&before);
            address = before;
            bytes += size;
        }
        if let Some(size) = self.by_address.remove(&(address + bytes)) {
            self.by_size.remove(&(size, address + bytes));
            bytes += size;
        }
        self.by_size.insert((bytes, address));
        self.by_address.insert(address, bytes);
    }
}
