//! The layout of an allocator's memory at one moment.

use super::rules::Rules;
use crate::program::{Op, OpKind, Program};
use crate::run::Observer;
use millpond_engine::{Block, Engine, Piece, PieceState, Source};
use serde::Serialize;
use std::collections::HashMap;

/// The lower bounds of the size classes in which holes are counted: 0, then powers of four from 1 MiB.
const CLASSES: [u64; 7] = [0, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];

/// A free range, or a freed block that waits for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Index of the stream whose requests it serves. `None` if it serves all, or if the stream is unknown.
    pub(crate) stream: Option<u16>,
    /// Index of the private pool whose requests it serves. `None` if the pool is unknown.
    pub(crate) pool: Option<u16>,
    /// Whether it serves only small requests. `None` if it serves all, or if that is unknown.
    pub(crate) small: Option<bool>,
}

/// The memory of an allocator at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes taken from the device.
    pub(crate) reserved: u64,
    /// Requested bytes of the blocks that the program holds.
    pub(crate) held: u64,
    /// The free ranges.
    pub(crate) holes: Vec<Hole>,
    /// Freed blocks that wait for a stream.
    pub(crate) waiting: Vec<Hole>,
}

/// The sums of an allocator's memory at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheState {
    /// Bytes taken from the device.
    pub reserved_bytes: u64,
    /// Bytes of free ranges.
    pub free_bytes: u64,
    /// The number of free ranges.
    pub holes: u64,
    /// Bytes of the largest free range.
    pub largest_hole_bytes: u64,
    /// Bytes of freed blocks that wait for a stream.
    pub waiting_bytes: u64,
    /// Bytes of blocks beyond those that were requested.
    pub rounding_bytes: u64,
    /// The free ranges by size, the smallest first. Empty classes are left out.
    pub by_size: Vec<HoleClass>,
}

/// The free ranges in one class of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HoleClass {
    /// The smallest size of a range in the class.
    pub from_bytes: u64,
    /// The number of free ranges.
    pub holes: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Returns the bytes of the selected ranges. The sum saturates.
pub(crate) fn total(ranges: &[Hole], which: impl Fn(&Hole) -> bool) -> u64 {
    let ranges = ranges.iter().filter(|hole| which(hole));
    ranges.fold(0, |sum, hole| sum.saturating_add(hole.bytes))
}

/// Returns the bytes of the largest selected range.
pub(crate) fn largest(ranges: &[Hole], which: impl Fn(&Hole) -> bool) -> u64 {
    let ranges = ranges.iter().filter(|hole| which(hole));
    ranges.map(|hole| hole.bytes).max().unwrap_or(0)
}

impl Layout {
    /// Returns the sums.
    pub(crate) fn state(&self) -> CacheState {
        let free = total(&self.holes, |_| true);
        let waiting = total(&self.waiting, |_| true);
        let mut by_size = Vec::new();
        for (at, &from) in CLASSES.iter().enumerate() {
            let to = CLASSES.get(at + 1).copied().unwrap_or(u64::MAX);
            let is_in = |hole: &Hole| (from..to).contains(&hole.bytes);
            let holes = self.holes.iter().filter(|hole| is_in(hole)).count() as u64;
            if holes > 0 {
                by_size.push(HoleClass {
                    from_bytes: from,
                    holes,
                    bytes: total(&self.holes, is_in),
                });
            }
        }
        CacheState {
            reserved_bytes: self.reserved,
            free_bytes: free,
            holes: self.holes.len() as u64,
            largest_hole_bytes: largest(&self.holes, |_| true),
            waiting_bytes: waiting,
            rounding_bytes: self
                .reserved
                .saturating_sub(free)
                .saturating_sub(waiting)
                .saturating_sub(self.held),
            by_size,
        }
    }
}

/// Keeps the layout before one call of a replay, and the layout after the request that the policy refused.
pub(crate) struct Look<'a> {
    program: &'a Program,
    rules: &'a Rules,
    /// The number of calls after which the layout is kept.
    calls: usize,
    seen: usize,
    /// The layout before the call. The streams of its holes are unknown.
    pub(crate) before: Option<Layout>,
    /// The layout after the refusal.
    pub(crate) after: Option<Layout>,
}

impl<'a> Look<'a> {
    /// Creates an observer that keeps the layout before the call with this index. `None` keeps none.
    pub(crate) fn new(program: &'a Program, rules: &'a Rules, before: Option<usize>) -> Self {
        Self {
            program,
            rules,
            calls: before.unwrap_or(usize::MAX),
            seen: 0,
            before: None,
            after: None,
        }
    }

    /// Returns the rules of the policy.
    pub(crate) fn rules(&self) -> &'a Rules {
        self.rules
    }
}

impl<S: Source> Observer<S> for Look<'_> {
    fn stepped(&mut self, _op: &Op, engine: &mut Engine<S>) {
        self.seen += 1;
        if self.seen == self.calls {
            self.before = Some(of_engine(engine, &Owners::default()));
        }
    }

    fn refused(&mut self, at: usize, held: &[Option<Block>], engine: &Engine<S>) {
        let owners = Owners::new(self.program, at, held, self.rules);
        self.after = Some(of_engine(engine, &owners));
    }
}

/// The owner of each block that the program holds: its stream, its pool and its size class, by address.
#[derive(Default)]
struct Owners(HashMap<u64, (u16, u16, Option<bool>)>);

impl Owners {
    fn new(program: &Program, calls: usize, held: &[Option<Block>], rules: &Rules) -> Self {
        let mut owners = HashMap::new();
        for op in program.ops.iter().take(calls) {
            if op.kind != OpKind::Alloc {
                continue;
            }
            if let Some(Some(block)) = held.get(op.allocation as usize) {
                owners.insert(block.address(), (op.stream, op.pool, rules.is_small(op.bytes)));
            }
        }
        Self(owners)
    }
}

/// Returns the layout of an engine. A hole has the owner of the blocks in its segment.
fn of_engine<S: Source>(engine: &Engine<S>, owners: &Owners) -> Layout {
    let mut layout = Layout {
        reserved: engine.stats().reserved.current,
        held: engine.stats().requested.current,
        ..Layout::default()
    };
    let mut of_segment: HashMap<u32, (u16, u16, Option<bool>)> = HashMap::new();
    let mut found: Vec<(u32, u64)> = Vec::new();
    engine.policy().layout(&mut |piece: Piece| match piece.state {
        PieceState::Free => found.push((piece.segment, piece.bytes)),
        PieceState::Live => {
            if let Some(owner) = owners.0.get(&piece.address) {
                of_segment.insert(piece.segment, *owner);
            }
        }
        PieceState::Unmapped => {}
    });
    layout.holes = found
        .into_iter()
        .map(|(segment, bytes)| {
            let owner = of_segment.get(&segment);
            Hole {
                bytes,
                stream: owner.map(|owner| owner.0),
                pool: owner.map(|owner| owner.1),
                small: owner.and_then(|owner| owner.2),
            }
        })
        .collect();
    let waiting = engine.deferred().blocks();
    layout.waiting = waiting
        .map(|(_, bytes)| Hole {
            bytes,
            stream: None,
            pool: None,
            small: None,
        })
        .collect();
    layout
}
