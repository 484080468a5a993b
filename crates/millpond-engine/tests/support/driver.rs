//! Runs programs on an engine and compares each result with independent records.

use super::contents::Stretch;
use super::program::Op;
use super::watch::Watch;
use millpond_engine::{
    AllocError, Block, Compaction, Engine, Gauge, Group, Mark, PieceState, Policy, Request, Settings,
    Simulated, Stream, policies,
};
use std::collections::BTreeMap;

/// An engine with a record of its calls.
pub(crate) struct Driver {
    pub(crate) engine: Engine<Watch>,
    pub(crate) live: Vec<Block>,
    /// Blocks that are held by callers or wait for a stream: start address to end address.
    taken: BTreeMap<u64, u64>,
    /// The contents of each of these blocks, and the number of changes when they were last checked.
    contents: BTreeMap<u64, Vec<Stretch>>,
    changes: u64,
    requested: Gauge,
    allocated: Gauge,
    active: Gauge,
    /// Whether the last block reused the memory of an earlier one.
    pub(crate) reused: bool,
}

/// Creates a request in short form.
pub(crate) fn request(bytes: u64, stream: u32, group: u32) -> Request {
    Request {
        bytes,
        align: 1,
        stream: Stream(stream),
        group: Group(group),
    }
}

impl Driver {
    pub(crate) fn new(policy: &str, device: Simulated) -> Self {
        Self::with(policy, &Settings::default(), device)
    }

    pub(crate) fn with(policy: &str, settings: &Settings, device: Simulated) -> Self {
        Self::with_policy(policies::build(policy, settings).expect("a policy"), device)
    }

    pub(crate) fn with_policy(policy: Box<dyn Policy>, device: Simulated) -> Self {
        Self {
            engine: Engine::new(policy, Watch::new(device)),
            live: Vec::new(),
            taken: BTreeMap::new(),
            contents: BTreeMap::new(),
            changes: 0,
            requested: Gauge::default(),
            allocated: Gauge::default(),
            active: Gauge::default(),
            reused: false,
        }
    }

    /// Allocates and keeps the block. Returns its address.
    pub(crate) fn allocate(&mut self, request: Request) -> Result<u64, AllocError> {
        let outcome = self.engine.allocate(request);
        self.forget_passed();
        if let Ok(block) = &outcome {
            let (address, end) = (block.address(), block.address() + block.bytes());
            assert!(block.bytes() >= request.bytes.max(1), "too small: {block:?}");
            assert_eq!(
                (block.requested(), block.stream()),
                (request.bytes, request.stream)
            );
            assert!(
                address.is_multiple_of(request.align.max(256)),
                "badly aligned: {block:?}"
            );
            let below = self.taken.range(..end).next_back();
            assert!(below.is_none_or(|(_, e)| *e <= address), "overlaps: {block:?}");
            self.taken.insert(address, end);
            let there = self.engine.source().contents.at(address, block.bytes());
            self.contents.insert(address, there);
            self.reused = self
                .engine
                .source_mut()
                .handed_out(address, block.bytes(), request.stream.0);
            self.requested.add(request.bytes);
            self.allocated.add(block.bytes());
        }
        self.agree();
        let block = outcome?;
        let address = block.address();
        self.live.push(block);
        Ok(address)
    }

    /// Frees the live block at this index.
    pub(crate) fn free(&mut self, index: usize, uses: &[u32]) {
        let block = self.live.remove(index);
        let (address, bytes) = (block.address(), block.bytes());
        let users = uses.iter().copied().chain([block.stream().0]);
        self.engine.source_mut().freed(address, bytes, users);
        self.requested.sub(block.requested());
        self.allocated.sub(bytes);
        let uses: Vec<Stream> = uses.iter().map(|s| Stream(*s)).collect();
        self.engine.free(block, &uses);
        if uses.is_empty() {
            self.taken.remove(&address);
        }
        self.forget_passed();
        self.agree();
    }

    pub(crate) fn free_all(&mut self) {
        while let Some(last) = self.live.len().checked_sub(1) {
            self.free(last, &[]);
        }
    }

    pub(crate) fn release(&mut self) {
        self.engine.release_cached();
        self.forget_passed();
        self.agree();
    }

    /// Compacts and compares the result with the state of the device.
    pub(crate) fn compact(&mut self) -> Compaction {
        let (held, waiting) = (self.engine.source().held, self.engine.deferred().bytes());
        let told = self.engine.compact();
        self.forget_passed();
        self.agree();
        let source = self.engine.source();
        assert_eq!((told.reserved_before, told.reserved_after), (held, source.held));
        assert_eq!(told.returned(), held - source.held);
        assert_eq!((told.waited, told.allocated), (waiting, self.allocated.current));
        assert_eq!(told.allocated + told.shared + told.kept, told.reserved_after);
        // The pages of rmm-arena represent one block of unknown size, which is only returned whole.
        if self.engine.policy().name() != "rmm-arena" {
            assert_eq!(told.kept, source.contents.unused(&self.taken), "{told}");
        }
        assert_eq!(told.largest_hole, self.engine.largest_hole());
        told
    }

    pub(crate) fn tick(&mut self, ticks: u32) {
        self.engine.mark(Mark::Ticks(ticks));
        self.forget_passed();
        self.agree();
    }

    pub(crate) fn collect(&mut self) {
        self.engine.collect();
        self.forget_passed();
        self.agree();
    }

    /// Runs one call. Returns the address of the allocated block, if any.
    pub(crate) fn step(&mut self, op: &Op) -> Option<u64> {
        match op {
            Op::Alloc { bytes, stream, group } => {
                return self.allocate(request(*bytes, *stream, *group)).ok();
            }
            Op::Free { index, uses } if !self.live.is_empty() => {
                self.free(index % self.live.len(), uses);
            }
            Op::Free { .. } => {}
            Op::Complete => {
                let device = &mut self.engine.source_mut().device;
                for event in 0..device.next_event().0 {
                    device.complete(millpond_engine::Event(event));
                }
                self.collect();
            }
            Op::Release => self.release(),
            Op::Compact => drop(self.compact()),
            Op::Tick(ticks) => self.tick(*ticks),
            Op::Step => {
                self.engine.mark(Mark::Step);
                self.agree();
            }
        }
        None
    }

    pub(crate) fn run(&mut self, program: &[Op]) -> Vec<Option<u64>> {
        program.iter().map(|op| self.step(op)).collect()
    }

    /// Removes the blocks that no longer wait for a stream, because they may be allocated again.
    fn forget_passed(&mut self) {
        let held = self.live.iter().map(|b| (b.address(), b.bytes()));
        let held = held.chain(self.engine.deferred().blocks());
        self.taken = held.map(|(address, bytes)| (address, address + bytes)).collect();
        self.contents
            .retain(|address, _| self.taken.contains_key(address));
    }

    /// Asserts that the engine's counts and the policy's layout match the allocated blocks.
    fn agree(&mut self) {
        self.engine.check();
        self.active
            .set(self.allocated.current + self.engine.deferred().bytes());
        let stats = self.engine.stats();
        assert_eq!(stats.requested, self.requested, "requested");
        assert_eq!(stats.allocated, self.allocated, "allocated");
        assert_eq!(stats.active, self.active, "active");
        let source = self.engine.source();
        let reserved = Gauge {
            current: source.held,
            peak: source.peak_held,
        };
        assert_eq!(stats.reserved, reserved, "reserved");
        self.keep_contents();
        let mut live: u64 = 0;
        self.engine.policy().layout(&mut |piece| {
            if piece.state == PieceState::Live {
                live += piece.bytes;
                let end = piece.address + piece.bytes;
                let mut at = piece.address;
                for (address, last) in self.taken.range(piece.address..end) {
                    assert_eq!(*address, at, "a live piece that is not a block");
                    at = *last;
                }
                assert_eq!(at, end, "a live piece that is not a block");
            }
        });
        assert_eq!(live, self.taken.iter().map(|(a, e)| e - a).sum::<u64>());
    }

    /// Asserts that no block has lost its contents.
    fn keep_contents(&mut self) {
        let source = self.engine.source();
        if source.contents.changes == self.changes {
            return;
        }
        self.changes = source.contents.changes;
        for (address, before) in &self.contents {
            let now = source.contents.at(*address, self.taken[address] - address);
            assert_eq!(now, *before, "what lay at {address:#x} is lost");
        }
    }
}
