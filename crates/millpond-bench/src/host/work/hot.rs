//! W1: blocks of one size are allocated and freed repeatedly.

use super::{Effort, Outcome, median_times};
use crate::host::allocator::{Allocator, Block, Refused, Shape};
use crate::host::figures::Figures;
use crate::host::gauge::Timed;
use crate::host::spec::Use;
use crate::measure::Clock;

/// The number of batches, of which the median counts.
const BATCHES: usize = 7;
/// The number of pairs before the first batch.
const WARM: usize = 8;

/// Returns the number of pairs in a batch. Pairs that touch memory touch 512 MiB in total, within limits.
fn pairs(size: usize, usage: Use) -> usize {
    match usage {
        Use::Nothing => 20_000,
        Use::Touch | Use::Fill => ((512 << 20) / size).clamp(8, 20_000),
    }
}

pub(super) fn run<A: Allocator>(
    from: &A,
    size: usize,
    align: usize,
    usage: Use,
    effort: Effort,
) -> Outcome<Figures> {
    let shape = Shape::new(size, align);
    let pairs = pairs(size, usage);
    let batches = if effort == Effort::Full { BATCHES } else { 1 };
    batch(from, shape, usage, WARM)?;
    let mut times = Vec::with_capacity(batches);
    for _ in 0..batches {
        let timed = Timed::start(Clock::Thread);
        batch(from, shape, usage, pairs)?;
        times.push(vec![timed.stop("pair", pairs as u64, 0)]);
    }
    Ok(Figures {
        times: median_times(times),
        memory: None,
    })
}

fn batch<A: Allocator>(from: &A, shape: Shape, usage: Use, pairs: usize) -> Result<(), Refused> {
    // Each use has its own loop, because a check within the loop would cost as much as the fastest pair.
    match usage {
        Use::Nothing => {
            for _ in 0..pairs {
                Block::new(from, shape)?;
            }
        }
        Use::Touch => {
            for _ in 0..pairs {
                Block::new(from, shape)?.touch_pages();
            }
        }
        Use::Fill => {
            for _ in 0..pairs {
                Block::new(from, shape)?.fill(1);
            }
        }
    }
    Ok(())
}
