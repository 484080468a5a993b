//! `rmm-arena`: RAPIDS RMM's arena memory resource.
//!
//! The rules, as its documentation and source publish them:
//!
//! * sizes are rounded to 256 bytes, and every search is first fit in address order;
//! * a global arena takes one block upstream, half of the device's free memory, and tiles it with
//!   superblocks of at least 1 MiB; empty neighbours among those it has join;
//! * a request of more than 1 MiB takes a superblock of the global arena, split to its size where the
//!   rest makes a superblock too; its free waits for the stream, so it is a stall;
//! * smaller ones are served by an arena for each stream, which acquires superblocks as it needs them;
//! * when nothing fits, the device is waited for, all arenas give all superblocks back to the global
//!   one, used or not, and the search is made once more;
//! * nothing goes back upstream, and nothing more is ever taken.
//!
//! Where the device has no limit there is no half of it. The arena then spans 1 TiB of addresses, the
//! most a superblock may have, and backs them with pages up to the highest address it ever used: what is
//! reserved is what an arena would have needed. This needs a paged source.
//!
//! Added here: each private pool is an arena of its own. Not modelled: arenas of threads, the optional
//! size classes, and a size given by the user. Waiting for one stream counts as waiting for the device.

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

/// Bytes of the arena where the device has no limit, and the most of a superblock.
const MAX_ARENA: u64 = 1 << 40;

/// What lies under an arena.
enum Upstream {
    Whole(Segment),
    /// Backed from the start of the range on.
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

    /// First address that no memory lies behind.
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

/// The global arena of one private pool with the arenas of its streams.
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

    /// Whether a free touches superblocks that other streams use.
    fn free_waits(&mut self, id: BlockId, bytes: u64, stream: Stream) -> bool {
        bytes > MIN_SUPERBLOCK || self.superblocks.arena_of(id) != self.stream(stream)
    }
}

/// See the module.
#[derive(Default)]
pub struct RmmArena {
    arenas: BTreeMap<Group, Arena>,
    /// Live blocks by address, with their private pool.
    groups: BTreeMap<u64, Group>,
}

impl RmmArena {
    /// There is nothing to set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a block back without waiting for anyone.
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

    /// A block from the arena of a private pool; none where nothing fits.
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

    /// The original cannot.
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
