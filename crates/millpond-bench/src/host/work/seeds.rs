//! Loops from the documents of five tensor libraries, each as its document writes it.

use super::batch::Batch;
use super::{Effort, Outcome, hot, passes};
use crate::host::allocator::{Allocator, Block, Refused, Shape, Touch};
use crate::host::figures::Figures;
use crate::host::gauge::Timed;
use crate::measure::Clock;
use Script::{Copy, Held, Repeat, Reuse, Temporaries};
use Then::{Again, Halves, Nothing, Reverse};
use Touch::{First, Full, Page};
use millpond_engine::display_size;

/// A measured loop. It allocates as the documents of a tensor library do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) name: &'static str,
    /// The number of passes after the first. Passes of 64 MiB take seconds with some allocators.
    hot_passes: usize,
    script: Script,
}

/// The calls of a loop.
#[derive(Debug, PartialEq, Eq)]
enum Script {
    /// Allocates and frees blocks of one size, one at a time.
    Repeat(usize, usize, Touch),
    /// Allocates blocks, given by count and size, and then frees all.
    Held(&'static [(usize, usize)], Touch, Then),
    /// Creates a zeroed tensor and a result, 1,000 times.
    Temporaries,
    /// Does the same with one zeroed tensor for all results.
    Reuse,
    /// Copies a block into another one and back, 10 times.
    Copy,
}

/// The special property of a batch, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Nothing,
    /// The last block is freed first.
    Reverse,
    /// The list of blocks is repeated ten times, and another block is allocated and freed after them.
    Again(usize),
    /// The allocations and the frees are also timed separately.
    Halves,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The bytes of 100 x 100 floats, and of the same number of doubles.
const FLOATS: usize = 100 * 100 * 4;
const DOUBLES: usize = 2 * FLOATS;

/// Genesis's six sizes, in equal shares of 64 MiB.
const SHARES: [(usize, usize); 6] = [
    (10_922, KIB),
    (2_730, 4 * KIB),
    (682, 16 * KIB),
    (170, 64 * KIB),
    (42, 256 * KIB),
    (10, MIB),
];

/// GUDA's sizes, from 1 to 10 KiB.
const STEPS: [(usize, usize); 10] = {
    let mut steps = [(1, KIB); 10];
    let mut at = 0;
    while at < steps.len() {
        steps[at].1 = (at + 1) * KIB;
        at += 1;
    }
    steps
};

const fn seed(name: &'static str, hot_passes: usize, script: Script) -> Seed {
    Seed {
        name,
        hot_passes,
        script,
    }
}

/// All loops. The headlines name the document of each.
pub(crate) static SEEDS: [Seed; 18] = [
    seed("tensorcore", 99, Repeat(1_000, DOUBLES, First)),
    seed("tensorcore-fill", 99, Repeat(1_000, DOUBLES, Full)),
    seed("tensorcore-large", 9, Repeat(100, 8_000_000, Page)),
    seed("tendo", 99, Temporaries),
    seed("tendo-reuse", 99, Reuse),
    seed("tendo-storage", 99, Repeat(1_000, 4_000, First)),
    seed("genesis-pool", 9, Held(&SHARES, First, Nothing)),
    seed("genesis-small", 99, Repeat(1_000, 8, First)),
    seed("guda-batch", 99, Held(&STEPS, Full, Again(2 * KIB))),
    seed("guda-hot", 99, Repeat(1_000, 512, First)),
    seed("guda-defer", 99, Held(&[(1_000, 256)], First, Reverse)),
    seed("guda-copy", 1, Copy),
    seed("dotcompute-1m", 9, Repeat(100, MIB, Page)),
    seed("dotcompute-1m-fill", 9, Repeat(100, MIB, Full)),
    seed("dotcompute-64m", 1, Repeat(100, 64 * MIB, Page)),
    seed("dotcompute-64m-fill", 1, Repeat(100, 64 * MIB, Full)),
    seed("dotcompute-malloc", 99, Held(&[(1_000, KIB)], First, Halves)),
    seed("dotcompute-buffer", 9, Held(&[(64, MIB)], Page, Halves)),
];

impl Seed {
    /// Returns the number of pairs of an allocation and a free, or of copies.
    pub(crate) fn pairs(&self) -> u64 {
        let pairs = match self.script {
            Repeat(times, ..) => times,
            Held(_, _, then) => self.sizes().count() + usize::from(matches!(then, Again(_))),
            Temporaries => 2_000,
            Reuse => 1_000,
            Copy => 10,
        };
        pairs as u64
    }

    /// Returns a description.
    pub(crate) fn describe(&self) -> String {
        let size = |bytes: usize| display_size(bytes as u64);
        match self.script {
            Repeat(times, bytes, touch) => format!("{times} times {}, {}", size(bytes), touch.describe()),
            Held(_, touch, then) => {
                let total: usize = self.sizes().sum();
                let frees = match then {
                    Nothing | Halves => "all freed".to_owned(),
                    Reverse => "all freed, the last one first".to_owned(),
                    Again(bytes) => format!("all freed, then {} once more", size(bytes)),
                };
                let [count, bytes] = [self.sizes().count(), total];
                format!(
                    "{count} blocks of {} in total, {}, {frees}",
                    size(bytes),
                    touch.describe()
                )
            }
            Temporaries => "1,000 times 100 x 100 zeroed floats and a result of that size".to_owned(),
            Reuse => "1,000 results of 100 x 100 floats, with one zeroed temporary for all".to_owned(),
            Copy => "64 MiB copied into a buffer and back, 10 times".to_owned(),
        }
    }

    /// Returns the sizes of a batch.
    fn sizes(&self) -> impl Iterator<Item = usize> {
        let (blocks, turns) = match self.script {
            Held(blocks, _, Again(_)) => (blocks, 10),
            Held(blocks, ..) => (blocks, 1),
            _ => (&[][..], 0),
        };
        let turn = move |_| {
            blocks
                .iter()
                .flat_map(|&(count, size)| std::iter::repeat_n(size, count))
        };
        (0..turns).flat_map(turn)
    }

    fn batch<'a, A: Allocator>(&self, from: &'a A, touch: Touch, then: Then) -> Batch<'a, A> {
        let shapes = self.sizes().map(|size| Shape::new(size, 64)).collect();
        let mut batch = Batch::new(from, shapes, touch);
        batch.reverse = then == Reverse;
        if let Again(size) = then {
            batch.then = Some(Shape::new(size, 64));
        }
        batch
    }
}

pub(super) fn run<A: Allocator>(from: &A, seed: &Seed, effort: Effort) -> Outcome<Figures> {
    let mut batch = None;
    let times = passes(seed.hot_passes, effort, |name| {
        let (mut pairs, mut bytes) = (seed.pairs(), 0);
        let timed = Timed::start(Clock::Thread);
        match seed.script {
            Held(_, touch, then) => {
                let batch = batch.get_or_insert_with(|| seed.batch(from, touch, then));
                let mut times = batch.pass(Clock::Thread, name)?;
                if then != Halves {
                    times.truncate(1);
                }
                return Ok(times);
            }
            Repeat(times, size, touch) => {
                // All turns are equal, and those with large blocks take seconds in total.
                let quick = effort == Effort::Quick && size == 64 * MIB;
                let times = if quick { 10 } else { times };
                pairs = times as u64;
                hot::repeat(from, Shape::new(size, 64), touch, times)?;
            }
            Temporaries => temporaries(from, 1_000, 1)?,
            Reuse => temporaries(from, 1, 1_000)?,
            Copy => {
                bytes = 2 * 64 * MIB as u64;
                copies(from)?;
            }
        }
        Ok(vec![timed.stop(name, pairs, bytes)])
    })?;
    Ok(Figures { times, memory: None })
}

fn temporaries<A: Allocator>(from: &A, temporaries: usize, results: usize) -> Result<(), Refused> {
    let shape = Shape::new(FLOATS, 64);
    for _ in 0..temporaries {
        let _temporary = Block::zeroed(from, shape)?;
        hot::repeat(from, shape, Full, results)?;
    }
    Ok(())
}

fn copies<A: Allocator>(from: &A) -> Result<(), Refused> {
    let shape = Shape::new(64 * MIB, 64);
    let (mut host, mut device) = (Block::new(from, shape)?, Block::new(from, shape)?);
    host.fill(1);
    for _ in 0..10 {
        // SAFETY: one block was filled, and the other one is then a copy of it.
        unsafe { device.copy(&host) };
        // SAFETY: as above.
        unsafe { host.copy(&device) };
    }
    Ok(())
}
