//! W1: blocks of one size are allocated and freed repeatedly.

use super::{Effort, Outcome, median_times};
use crate::host::allocator::{Allocator, Block, Refused, Shape, Touch};
use crate::host::figures::Figures;
use crate::host::gauge::Timed;
use crate::measure::Clock;

/// The number of batches. The result is the median.
const BATCHES: usize = 7;
/// The number of pairs before the first batch.
const WARM: usize = 8;

/// Returns the number of pairs in a batch. Pairs that touch memory touch 512 MiB in total, within limits.
fn pairs(size: usize, touch: Touch) -> usize {
    match touch {
        Touch::None => 20_000,
        _ => ((512 << 20) / size).clamp(8, 20_000),
    }
}

pub(super) fn run<A: Allocator>(
    from: &A,
    size: usize,
    align: usize,
    touch: Touch,
    effort: Effort,
) -> Outcome<Figures> {
    let shape = Shape::new(size, align);
    let pairs = pairs(size, touch);
    let batches = if effort == Effort::Full { BATCHES } else { 1 };
    repeat(from, shape, touch, WARM)?;
    let mut times = Vec::with_capacity(batches);
    for _ in 0..batches {
        let timed = Timed::start(Clock::Thread);
        repeat(from, shape, touch, pairs)?;
        times.push(vec![timed.stop("pair", pairs as u64, 0)]);
    }
    Ok(Figures {
        times: median_times(times),
        memory: None,
    })
}

/// Allocates and frees one block at a time.
pub(super) fn repeat<A: Allocator>(
    from: &A,
    shape: Shape,
    touch: Touch,
    pairs: usize,
) -> Result<(), Refused> {
    // Each way to touch a block has its own loop, because a check within the loop would cost as much as the fastest pair.
    match touch {
        Touch::None => each(from, shape, pairs, |_| {}),
        Touch::First => each(from, shape, pairs, |block| block.put(0, 1)),
        Touch::Page => each(from, shape, pairs, Block::touch_pages),
        Touch::Full => each(from, shape, pairs, |block| block.fill(1)),
    }
}

#[inline]
fn each<'a, A: Allocator>(
    from: &'a A,
    shape: Shape,
    pairs: usize,
    mut touch: impl FnMut(&mut Block<'a, A>),
) -> Result<(), Refused> {
    for _ in 0..pairs {
        touch(&mut Block::new(from, shape)?);
    }
    Ok(())
}
