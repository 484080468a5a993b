//! `rmm-arena`: RAPIDS RMM's arena memory resource.
//!
//! The rules come from its documentation and source:
//!
//! * Sizes are rounded to 256 bytes. Every search is first fit in address order.
//! * A global arena takes one block from upstream, half of the device's free memory, and divides it into superblocks of
//!   at least 1 MiB. It joins adjacent empty superblocks.
//! * A request of more than 1 MiB takes a superblock of the global arena. The superblock is split if the remainder is
//!   large enough for a superblock. The free of such a block waits for the stream, so it is a stall.
//! * Smaller requests are served by one arena for each stream, which acquires superblocks as needed.
//! * If nothing fits, the policy waits for the device, moves all superblocks of all arenas to the global one, used or
//!   not, and searches once more.
//! * Memory is never returned upstream, and no more memory is ever taken.
//!
//! If the device has no limit, half of its memory is not defined. The arena then has 1 TiB of addresses, the maximum
//! size of a superblock, and backs them with pages up to the highest address that it has used. The reserved bytes are
//! then those that an arena would have needed. This requires a paged source.
//!
//! One rule is added: each private pool is an arena of its own. Arenas of threads, the optional size classes and a
//! user-defined size are not modelled. A wait for one stream counts as a wait for the device.

mod first_fit;
mod superblocks;

use self::superblocks::{GLOBAL, MIN_SUPERBLOCK, Superblocks};
use super::rounding::{UNIT, whole_units};
use crate::block::{Block, Group, Request, Stream};
use crate::error::SourceError;
use crate::policy::{Fidelity, Policy, Refusal};
use crate::source::{Range, Segment};
use crate::space::{BlockId, Piece, PieceState};
use crate::supply::Supply;
use std::collections::BTreeMap;

/// Bytes of the arena on a device without a limit, and maximum bytes of a superblock.
const MAX_ARENA: u64 = 1 << 40;

/// The memory of an arena.
enum Upstream {
    Whole(Segment),
    /// The first `committed` bytes of the range are backed.
    Growing {
        range: Range,
        committed: u64,
    },
}

impl Upstream {
    fn new(supply: &mut Supply<'_>) -> Result<Self, SourceError> {
        let Some(free) = supply.free_bytes() else {
            let range = supply.reserve(MAX_ARENA)?;
            return Ok(Self::Growing { range, committed: 0 });
        };
        let half = (free / 2).min(MAX_ARENA) / UNIT * UNIT;
        if half < MIN_SUPERBLOCK {
            return Err(SourceError::OutOfMemory {
                requested: 2 * MIN_SUPERBLOCK,
                free,
                capacity: supply.capacity().unwrap_or(free),
            });
        }
        supply.take(half).map(Self::Whole)
    }

    fn address(&self) -> u64 {
        match self {
            Self::Whole(segment) => segment.address(),
            Self::Growing { range, .. } => range.address(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Whole(segment) => segment.bytes(),
            Self::Growing { range, .. } => range.bytes(),
        }
    }

    /// Returns the first address that is not backed by memory.
    fn backed_end(&self) -> u64 {
        match self {
            Self::Whole(segment) => segment.address() + segment.bytes(),
            Self::Growing { range, committed } => range.address() + committed,
        }
    }

    /// Backs everything below an address.
    fn back(&mut self, supply: &mut Supply<'_>, end: u64) -> Result<(), SourceError> {
        let Self::Growing { range, committed } = self else {
            return Ok(());
        };
        let page = supply.page_bytes();
        let wanted = (end - range.address()).next_multiple_of(page);
        if let Some(missing) = wanted.checked_sub(*committed).filter(|m| *m > 0) {
            supply.commit(range, *committed, missing, page)?;
            *committed = wanted;
        }
        Ok(())
    }
}

/// The global arena of one private pool, with the arenas of its streams.
struct Arena {
    upstream: Upstream,
    superblocks: Superblocks,
    streams: BTreeMap<Stream, usize>,
}

impl Arena {
    fn new(upstream: Upstream, segment: u32) -> Self {
        let superblocks = Superblocks::new(upstream.address(), upstream.bytes(), segment);
        Self {
            upstream,
            superblocks,
            streams: BTreeMap::new(),
        }
    }

    fn stream(&mut self, stream: Stream) -> usize {
        let superblocks = &mut self.superblocks;
        *self
            .streams
            .entry(stream)
            .or_insert_with(|| superblocks.add_arena())
    }

    fn allocate(&mut self, bytes: u64, request: &Request) -> Option<Block> {
        if bytes > MIN_SUPERBLOCK {
            return self.superblocks.acquire(GLOBAL, bytes, request);
        }
        let arena = self.stream(request.stream);
        let found = self.superblocks.allocate(arena, bytes, request);
        found.or_else(|| self.superblocks.acquire(arena, bytes, request))
    }

    /// Returns whether a free changes superblocks that other streams use.
    fn free_waits(&mut self, id: BlockId, bytes: u64, stream: Stream) -> bool {
        bytes > MIN_SUPERBLOCK || self.superblocks.arena_of(id) != self.stream(stream)
    }
}

/// The `rmm-arena` policy. The module describes its rules.
#[derive(Default)]
pub struct RmmArena {
    arenas: BTreeMap<Group, Arena>,
    /// The private pool of each live block, by address.
    groups: BTreeMap<u64, Group>,
}

impl RmmArena {
    /// Creates the policy. It has no settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Frees a block without a wait.
    fn put_back(&mut self, block: &Block) {
        let group = self.groups.remove(&block.address());
        if let Some(arena) = group.and_then(|group| self.arenas.get_mut(&group)) {
            arena.superblocks.free(block.key());
        }
    }

    fn synchronize(&mut self, supply: &mut Supply<'_>) {
        for block in supply.synchronize() {
            self.put_back(&block);
        }
    }

    /// Returns a block from the arena of a private pool, or `None` if nothing fits.
    fn find(
        &mut self,
        supply: &mut Supply<'_>,
        request: &Request,
        bytes: u64,
    ) -> Result<Option<Block>, SourceError> {
        let Some(arena) = self.arenas.get_mut(&request.group) else {
            return Ok(None);
        };
        let Some(block) = arena.allocate(bytes, request) else {
            return Ok(None);
        };
        if let Err(error) = arena.upstream.back(supply, block.address() + block.bytes()) {
            arena.superblocks.free(block.key());
            return Err(error);
        }
        self.groups.insert(block.address(), request.group);
        Ok(Some(block))
    }
}

impl Policy for RmmArena {
    fn name(&self) -> &'static str {
        "rmm-arena"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::PublishedRules
    }

    fn needs_pages(&self) -> bool {
        true
    }

    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let bytes = whole_units(request)?;
        if !self.arenas.contains_key(&request.group) {
            let upstream = Upstream::new(supply)?;
            let segment = self.arenas.len() as u32;
            self.arenas.insert(request.group, Arena::new(upstream, segment));
        }
        let limit = self.arenas.get(&request.group).map_or(0, |a| a.upstream.bytes());
        if bytes > limit {
            return Err(Refusal::TooLarge { limit });
        }
        if let Some(block) = self.find(supply, request, bytes)? {
            return Ok(block);
        }
        if !supply.can_wait() {
            let requested = bytes;
            return Err(SourceError::Held { requested }.into());
        }
        self.synchronize(supply);
        for arena in self.arenas.values_mut() {
            arena.superblocks.defragment();
        }
        let exhausted = SourceError::OutOfMemory {
            requested: bytes,
            free: 0,
            capacity: supply.capacity().unwrap_or(limit),
        };
        Ok(self.find(supply, request, bytes)?.ok_or(exhausted)?)
    }

    fn free(&mut self, supply: &mut Supply<'_>, block: Block) {
        let group = self.groups.get(&block.address());
        let arena = group.and_then(|group| self.arenas.get_mut(group));
        if arena.is_some_and(|a| a.free_waits(block.key(), block.bytes(), block.stream())) {
            self.synchronize(supply);
        }
        self.put_back(&block);
    }

    /// Does nothing, because the original cannot return memory.
    fn release_cached(&mut self, _supply: &mut Supply<'_>) {}

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        for arena in self.arenas.values() {
            let end = arena.upstream.backed_end();
            arena.superblocks.layout(&mut |piece| {
                if piece.state != PieceState::Free || piece.address + piece.bytes <= end {
                    return visit(piece);
                }
                let backed = end.saturating_sub(piece.address);
                if backed > 0 {
                    visit(Piece {
                        bytes: backed,
                        ..piece
                    });
                }
                visit(Piece {
                    address: piece.address + backed,
                    bytes: piece.bytes - backed,
                    state: PieceState::Unmapped,
                    ..piece
                });
            });
        }
    }

    fn check(&self) {
        for arena in self.arenas.values() {
            arena.superblocks.check();
        }
    }
}
