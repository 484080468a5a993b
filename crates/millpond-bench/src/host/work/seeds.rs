//! Loops from the documents of five tensor libraries, each as its document writes it.

use super::{Effort, Outcome, anchor, passes};
use crate::host::allocator::{Allocator, Block, Shape};
use crate::host::figures::Figures;
use crate::host::gauge::{Clock, Timed};

/// One loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seed {
    /// TensorCore's monitoring loop: a temporary tensor, 1,000 times.
    TensorCore,
    /// The same, with the tensor written.
    TensorCoreFill,
    /// tendo's "bad" loop: a temporary and a result.
    Tendo,
    /// Genesis's pool: blocks of six sizes in equal shares of 64 MiB.
    GenesisPool,
    /// Genesis's loop to avoid: tensors of one number.
    GenesisSmall,
    /// GUDA's pool: 100 buffers of ten sizes, written, returned, and one more.
    GudaBatch,
    /// GUDA's good loop: 512 bytes, 1,000 times.
    GudaHot,
    /// DotCompute's 100 iterations.
    DotCompute { mib: usize, fill: bool },
}

const SIX: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

impl Seed {
    pub(crate) const ALL: [Self; 11] = [
        Self::TensorCore,
        Self::TensorCoreFill,
        Self::Tendo,
        Self::GenesisPool,
        Self::GenesisSmall,
        Self::GudaBatch,
        Self::GudaHot,
        Self::DotCompute { mib: 1, fill: false },
        Self::DotCompute { mib: 1, fill: true },
        Self::DotCompute { mib: 64, fill: false },
        Self::DotCompute { mib: 64, fill: true },
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TensorCore => "tensorcore",
            Self::TensorCoreFill => "tensorcore-fill",
            Self::Tendo => "tendo",
            Self::GenesisPool => "genesis-pool",
            Self::GenesisSmall => "genesis-small",
            Self::GudaBatch => "guda-batch",
            Self::GudaHot => "guda-hot",
            Self::DotCompute { mib: 1, fill: false } => "dotcompute-1m",
            Self::DotCompute { mib: 1, fill: true } => "dotcompute-1m-fill",
            Self::DotCompute { fill: false, .. } => "dotcompute-64m",
            Self::DotCompute { fill: true, .. } => "dotcompute-64m-fill",
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::TensorCore => "TensorCore: 1,000 temporary 100 x 100 doubles, first byte written",
            Self::TensorCoreFill => "TensorCore: 1,000 temporary 100 x 100 doubles, every byte written",
            Self::Tendo => "tendo: 1,000 times 100 x 100 zeroed floats and a result of that size",
            Self::GenesisPool => "Genesis: 64 MiB in equal shares of six sizes, all allocated, all freed",
            Self::GenesisSmall => "Genesis: 1,000 tensors of one number",
            Self::GudaBatch => "GUDA: 100 buffers of 1 to 10 KiB, written, all freed, then 2 KiB once more",
            Self::GudaHot => "GUDA: 1,000 times 512 bytes",
            Self::DotCompute { mib: 1, fill: false } => "DotCompute: 100 times 1 MiB, pages touched",
            Self::DotCompute { mib: 1, fill: true } => "DotCompute: 100 times 1 MiB, every byte written",
            Self::DotCompute { fill: false, .. } => "DotCompute: 100 times 64 MiB, pages touched",
            Self::DotCompute { fill: true, .. } => "DotCompute: 100 times 64 MiB, every byte written",
        }
    }

    /// Passes after the first: those of 64 MiB take seconds with some.
    fn hot_passes(self) -> usize {
        match self {
            Self::DotCompute { mib: 64, .. } => 1,
            Self::DotCompute { .. } | Self::GenesisPool => 9,
            _ => 99,
        }
    }
}

pub(super) fn run<A: Allocator>(from: &A, seed: Seed, effort: Effort) -> Outcome<Figures> {
    let mut held = Held {
        blocks: Vec::with_capacity(16 << 10),
        anchor: None,
    };
    let times = passes(seed.hot_passes(), effort, |name| {
        let timed = Timed::start(Clock::Thread);
        let pairs = once(from, seed, &mut held)?;
        Ok(vec![timed.stop(name, pairs, 0)])
    })?;
    Ok(Figures { times, memory: None })
}

/// The blocks of a loop that frees none before all are allocated.
struct Held<'a, A: Allocator> {
    blocks: Vec<Block<'a, A>>,
    anchor: Option<Vec<u8>>,
}

impl<A: Allocator> Held<'_, A> {
    /// Frees them all; answers how many there were.
    fn clear(&mut self) -> u64 {
        self.anchor.get_or_insert_with(anchor);
        let count = self.blocks.len() as u64;
        self.blocks.clear();
        count
    }
}

/// The loop as it stands; answers how many blocks were allocated.
fn once<'a, A: Allocator>(from: &'a A, seed: Seed, held: &mut Held<'a, A>) -> Outcome<u64> {
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
        Seed::Tendo => {
            for _ in 0..1_000 {
                let shape = Shape::new(100 * 100 * 4, 64);
                let _temporary = Block::zeroed(from, shape)?;
                Block::new(from, shape)?.fill(1);
                pairs += 2;
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
        Seed::DotCompute { mib, fill } => {
            for _ in 0..100 {
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
