//! Loops from the documents of five tensor libraries, each as its document writes it.

use super::{Effort, Outcome, anchor, passes};
use crate::host::allocator::{Allocator, Block, Shape};
use crate::host::figures::{Figures, Time};
use crate::host::gauge::Timed;
use crate::measure::Clock;

/// One loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seed {
    /// TensorCore's monitoring loop: a temporary tensor, 1,000 times.
    TensorCore,
    /// The same loop, which also writes the tensor.
    TensorCoreFill,
    /// TensorCore's "large tensor", created repeatedly.
    TensorCoreLarge,
    /// tendo's "bad" loop: a temporary and a result.
    Tendo,
    /// tendo's "good" loop: the temporary is created once.
    TendoReuse,
    /// tendo's storage of 1,000 floats, which needs a driver call without its pool.
    TendoStorage,
    /// Genesis's pool: blocks of six sizes in equal shares of 64 MiB.
    GenesisPool,
    /// Genesis's loop to avoid: tensors of one number.
    GenesisSmall,
    /// GUDA's pool example.
    GudaBatch,
    /// GUDA's loop from the best practices.
    GudaHot,
    /// GUDA's loop to avoid: blocks that are allocated in it are freed at the end of the function.
    GudaDefer,
    /// GUDA's transfers: 64 MiB to the device and back.
    GudaCopy,
    /// DotCompute's 100 iterations.
    DotCompute { mib: usize, fill: bool },
    /// DotCompute's latency of `malloc`: separate calls.
    CallsSmall,
    /// DotCompute's latencies of a buffer: separate calls.
    CallsLarge,
}

const SIX: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

impl Seed {
    pub(crate) const ALL: [Self; 18] = [
        Self::TensorCore,
        Self::TensorCoreFill,
        Self::TensorCoreLarge,
        Self::Tendo,
        Self::TendoReuse,
        Self::TendoStorage,
        Self::GenesisPool,
        Self::GenesisSmall,
        Self::GudaBatch,
        Self::GudaHot,
        Self::GudaDefer,
        Self::GudaCopy,
        Self::DotCompute { mib: 1, fill: false },
        Self::DotCompute { mib: 1, fill: true },
        Self::DotCompute { mib: 64, fill: false },
        Self::DotCompute { mib: 64, fill: true },
        Self::CallsSmall,
        Self::CallsLarge,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TensorCore => "tensorcore",
            Self::TensorCoreFill => "tensorcore-fill",
            Self::TensorCoreLarge => "tensorcore-large",
            Self::Tendo => "tendo",
            Self::TendoReuse => "tendo-reuse",
            Self::TendoStorage => "tendo-storage",
            Self::GenesisPool => "genesis-pool",
            Self::GenesisSmall => "genesis-small",
            Self::GudaBatch => "guda-batch",
            Self::GudaHot => "guda-hot",
            Self::GudaDefer => "guda-defer",
            Self::GudaCopy => "guda-copy",
            Self::DotCompute { mib: 1, fill: false } => "dotcompute-1m",
            Self::DotCompute { mib: 1, fill: true } => "dotcompute-1m-fill",
            Self::DotCompute { fill: false, .. } => "dotcompute-64m",
            Self::DotCompute { fill: true, .. } => "dotcompute-64m-fill",
            Self::CallsSmall => "dotcompute-malloc",
            Self::CallsLarge => "dotcompute-buffer",
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::TensorCore => "TensorCore: 1,000 temporary 100 x 100 doubles, first byte written",
            Self::TensorCoreFill => "TensorCore: 1,000 temporary 100 x 100 doubles, every byte written",
            Self::TensorCoreLarge => "TensorCore: 100 times 1,000 x 1,000 doubles, pages touched",
            Self::Tendo => "tendo: 1,000 times 100 x 100 zeroed floats and a result of that size",
            Self::TendoReuse => "tendo: the same with one temporary for all: 1,000 results",
            Self::TendoStorage => "tendo: 1,000 times 1,000 floats, first byte written",
            Self::GenesisPool => "Genesis: 64 MiB in equal shares of six sizes, all allocated, all freed",
            Self::GenesisSmall => "Genesis: 1,000 tensors of one number",
            Self::GudaBatch => "GUDA: 100 buffers of 1 to 10 KiB, written, all freed, then 2 KiB once more",
            Self::GudaHot => "GUDA: 1,000 times 512 bytes",
            Self::GudaDefer => "GUDA: 1,000 times 256 bytes, all freed at the end, the last one first",
            Self::GudaCopy => "GUDA: 64 MiB copied into a buffer and back, 10 times",
            Self::DotCompute { mib: 1, fill: false } => "DotCompute: 100 times 1 MiB, pages touched",
            Self::DotCompute { mib: 1, fill: true } => "DotCompute: 100 times 1 MiB, every byte written",
            Self::DotCompute { fill: false, .. } => "DotCompute: 100 times 64 MiB, pages touched",
            Self::DotCompute { fill: true, .. } => "DotCompute: 100 times 64 MiB, every byte written",
            Self::CallsSmall => "DotCompute: 1,000 times 1 KiB, first byte written; then all freed",
            Self::CallsLarge => "DotCompute: 64 times 1 MiB, pages touched; then all freed",
        }
    }

    /// Returns the number of passes after the first. Passes of 64 MiB take seconds with some allocators.
    fn hot_passes(self) -> usize {
        match self {
            Self::DotCompute { mib: 64, .. } | Self::GudaCopy => 1,
            Self::DotCompute { .. } | Self::GenesisPool | Self::TensorCoreLarge | Self::CallsLarge => 9,
            _ => 99,
        }
    }

    /// Returns the bytes that a pair copies, or 0 if it does not copy.
    fn payload(self) -> u64 {
        match self {
            Self::GudaCopy => 2 * (64 << 20),
            _ => 0,
        }
    }

    /// Returns the blocks that are allocated before any is freed, for loops whose two halves are timed separately: their
    /// number, their size in bytes, and whether all pages or only the first one are touched.
    fn halves(self) -> Option<(usize, usize, bool)> {
        match self {
            Self::CallsSmall => Some((1_000, 1 << 10, false)),
            Self::CallsLarge => Some((64, 1 << 20, true)),
            _ => None,
        }
    }
}

pub(super) fn run<A: Allocator>(from: &A, seed: Seed, effort: Effort) -> Outcome<Figures> {
    let mut held = Held {
        blocks: Vec::with_capacity(16 << 10),
        anchor: None,
    };
    let times = passes(seed.hot_passes(), effort, |name| {
        if let Some(halves) = seed.halves() {
            return apart(from, halves, &mut held, name);
        }
        let timed = Timed::start(Clock::Thread);
        let pairs = once(from, seed, effort, &mut held)?;
        Ok(vec![timed.stop(name, pairs, seed.payload())])
    })?;
    Ok(Figures { times, memory: None })
}

/// Runs allocations and frees separately.
fn apart<'a, A: Allocator>(
    from: &'a A,
    (count, size, pages): (usize, usize, bool),
    held: &mut Held<'a, A>,
    name: &str,
) -> Outcome<Vec<Time>> {
    let timed = Timed::start(Clock::Thread);
    for _ in 0..count {
        let mut block = Block::new(from, Shape::new(size, 64))?;
        if pages {
            block.touch_pages();
        } else {
            block.put(0, 1);
        }
        held.blocks.push(block);
    }
    let allocated = timed.stop(&format!("{name}-alloc"), count as u64, 0);
    held.anchor.get_or_insert_with(anchor);
    let timed = Timed::start(Clock::Thread);
    held.blocks.clear();
    let freed = timed.stop(&format!("{name}-free"), count as u64, 0);
    let pair = Time {
        part: name.to_owned(),
        nanoseconds: allocated.nanoseconds + freed.nanoseconds,
        faults: allocated.faults + freed.faults,
        ..allocated
    };
    Ok(vec![pair, allocated, freed])
}

/// The blocks of a loop that frees none before all are allocated.
struct Held<'a, A: Allocator> {
    blocks: Vec<Block<'a, A>>,
    anchor: Option<Vec<u8>>,
}

impl<A: Allocator> Held<'_, A> {
    /// Frees all blocks and returns their number.
    fn clear(&mut self) -> u64 {
        self.anchor.get_or_insert_with(anchor);
        let count = self.blocks.len() as u64;
        self.blocks.clear();
        count
    }
}

/// Runs the loop once and returns the number of allocated blocks.
fn once<'a, A: Allocator>(from: &'a A, seed: Seed, effort: Effort, held: &mut Held<'a, A>) -> Outcome<u64> {
    let mut pairs = 0;
    match seed {
        Seed::TensorCore => {
            for _ in 0..1_000 {
                Block::new(from, Shape::new(100 * 100 * 8, 64))?.put(0, 1);
                pairs += 1;
            }
        }
        Seed::TensorCoreFill => {
            for _ in 0..1_000 {
                Block::new(from, Shape::new(100 * 100 * 8, 64))?.fill(1);
                pairs += 1;
            }
        }
        Seed::TensorCoreLarge => {
            for _ in 0..100 {
                Block::new(from, Shape::new(1_000 * 1_000 * 8, 64))?.touch_pages();
                pairs += 1;
            }
        }
        Seed::Tendo => {
            for _ in 0..1_000 {
                let shape = Shape::new(100 * 100 * 4, 64);
                let _temporary = Block::zeroed(from, shape)?;
                Block::new(from, shape)?.fill(1);
                pairs += 2;
            }
        }
        Seed::TendoReuse => {
            let shape = Shape::new(100 * 100 * 4, 64);
            let _temporary = Block::zeroed(from, shape)?;
            for _ in 0..1_000 {
                Block::new(from, shape)?.fill(1);
                pairs += 1;
            }
        }
        Seed::TendoStorage => {
            for _ in 0..1_000 {
                Block::new(from, Shape::new(1_000 * 4, 64))?.put(0, 1);
                pairs += 1;
            }
        }
        Seed::GenesisPool => {
            for size in SIX {
                for _ in 0..(64 << 20) / (size * SIX.len()) {
                    let mut block = Block::new(from, Shape::new(size, 64))?;
                    block.put(0, 1);
                    held.blocks.push(block);
                }
            }
            pairs += held.clear();
        }
        Seed::GenesisSmall => {
            for _ in 0..1_000 {
                Block::new(from, Shape::new(8, 64))?.put(0, 1);
                pairs += 1;
            }
        }
        Seed::GudaBatch => {
            for i in 0..100 {
                let mut block = Block::new(from, Shape::new(1024 * (i % 10 + 1), 64))?;
                block.fill(0);
                held.blocks.push(block);
            }
            pairs += held.clear() + 1;
            Block::new(from, Shape::new(2048, 64))?.put(0, 1);
        }
        Seed::GudaHot => {
            for _ in 0..1_000 {
                Block::new(from, Shape::new(512, 64))?.put(0, 1);
                pairs += 1;
            }
        }
        Seed::GudaDefer => {
            for _ in 0..1_000 {
                let mut block = Block::new(from, Shape::new(256, 64))?;
                block.put(0, 1);
                held.blocks.push(block);
            }
            held.anchor.get_or_insert_with(anchor);
            while held.blocks.pop().is_some() {
                pairs += 1;
            }
        }
        Seed::GudaCopy => {
            let shape = Shape::new(64 << 20, 64);
            let (mut host, mut device) = (Block::new(from, shape)?, Block::new(from, shape)?);
            host.fill(1);
            for _ in 0..10 {
                // SAFETY: one block was filled, and the other one is then a copy of it.
                unsafe { device.copy(&host) };
                // SAFETY: as above.
                unsafe { host.copy(&device) };
                pairs += 1;
            }
        }
        Seed::CallsSmall | Seed::CallsLarge => return Err("its halves are timed on their own".into()),
        Seed::DotCompute { mib, fill } => {
            // The turns are alike, and some take seconds in total.
            let times = if effort == Effort::Quick && mib > 1 {
                10
            } else {
                100
            };
            for _ in 0..times {
                let mut block = Block::new(from, Shape::new(mib << 20, 64))?;
                if fill {
                    block.fill(1);
                } else {
                    block.touch_pages();
                }
                pairs += 1;
            }
        }
    }
    Ok(pairs)
}
