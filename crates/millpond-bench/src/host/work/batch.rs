//! Blocks that are all allocated and then all freed. W2: TensorCore's 10,000 blocks of mixed sizes, alone and in two threads.

use super::{Effort, Outcome, ResidentMemory, anchor, passes};
use crate::host::allocator::{Allocator, Block, Shape, Touch};
use crate::host::figures::{Figures, Time};
use crate::host::gauge::Timed;
use crate::host::random::Random;
use crate::measure::Clock;
use std::sync::Barrier;

pub(crate) const BLOCKS: usize = 10_000;
const PASSES: usize = 9;

/// A batch of blocks, which are allocated during a pass.
pub(super) struct Batch<'a, A: Allocator> {
    from: &'a A,
    shapes: Vec<Shape>,
    pub(super) touch: Touch,
    /// Whether the last block is freed first.
    pub(super) reverse: bool,
    /// A block that is allocated and freed after the others.
    pub(super) then: Option<Shape>,
    held: Vec<Block<'a, A>>,
    anchor: Option<Vec<u8>>,
}

impl<'a, A: Allocator> Batch<'a, A> {
    pub(super) fn new(from: &'a A, shapes: Vec<Shape>, touch: Touch) -> Self {
        Self {
            from,
            held: Vec::with_capacity(shapes.len()),
            shapes,
            touch,
            reverse: false,
            then: None,
            anchor: None,
        }
    }

    fn mixed(from: &'a A, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let shapes = (0..BLOCKS).map(|_| Shape::new(random.size(64, 64 << 10), 64));
        Self::new(from, shapes.collect(), Touch::First)
    }

    fn bytes(&self) -> u64 {
        self.shapes.iter().map(|shape| shape.size() as u64).sum()
    }

    /// Runs one pass and returns the times of the whole pair and of its halves.
    pub(super) fn pass(&mut self, clock: Clock, name: &str) -> Outcome<Vec<Time>> {
        let count = self.shapes.len() as u64 + u64::from(self.then.is_some());
        let half = Timed::start(clock);
        for &shape in &self.shapes {
            let mut block = Block::new(self.from, shape)?;
            block.touch(self.touch);
            self.held.push(block);
        }
        let allocated = half.stop(&format!("{name}-alloc"), count, 0);
        self.anchor.get_or_insert_with(anchor);
        let half = Timed::start(clock);
        if self.reverse {
            while self.held.pop().is_some() {}
        }
        self.held.clear();
        if let Some(shape) = self.then {
            Block::new(self.from, shape)?.put(0, 1);
        }
        let freed = half.stop(&format!("{name}-free"), count, 0);
        let pair = Time {
            part: name.to_owned(),
            nanoseconds: allocated.nanoseconds + freed.nanoseconds,
            faults: allocated.faults + freed.faults,
            ..allocated
        };
        Ok(vec![pair, allocated, freed])
    }
}

pub(super) fn run<A: Allocator>(from: &A, effort: Effort) -> Outcome<Figures> {
    let mut batch = Batch::mixed(from, 1);
    let live = batch.bytes();
    let resident_memory = ResidentMemory::start();
    let times = passes(PASSES, effort, |name| batch.pass(Clock::Thread, name))?;
    drop(batch);
    Ok(Figures {
        times,
        memory: Some(resident_memory.end(from, live, 0)),
    })
}

/// Measures wall-clock time: the first batch alone, then both at once, each with its own blocks.
pub(super) fn run_twice<A: Allocator + Send>(from: [A; 2], effort: Effort) -> Outcome<Figures> {
    let alone = hot(&from[0], 1, effort)?;
    let start = Barrier::new(from.len());
    let both = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..)
            .zip(from)
            .map(|(seed, from)| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    hot(&from, seed, effort)
                })
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|r| r.unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect::<Outcome<Vec<_>>>()
    })?;
    let mut mean = alone.clone();
    mean.part = "both".to_owned();
    mean.nanoseconds = both.iter().map(|time| time.nanoseconds).sum::<f64>() / both.len() as f64;
    mean.operations = both.iter().map(|time| time.operations).sum();
    // Faults belong to the process, so each thread has also counted those of the other.
    mean.faults = both.iter().map(|time| time.faults).sum::<f64>() / (both.len() * both.len()) as f64;
    Ok(Figures {
        times: vec![
            Time {
                part: "alone".to_owned(),
                ..alone
            },
            mean,
        ],
        memory: None,
    })
}

/// Returns the hot time of the pair.
fn hot<A: Allocator>(from: &A, seed: u64, effort: Effort) -> Outcome<Time> {
    let mut batch = Batch::mixed(from, seed);
    let mut times = passes(PASSES, effort, |name| batch.pass(Clock::Wall, name))?;
    Ok(times.swap_remove(0))
}
