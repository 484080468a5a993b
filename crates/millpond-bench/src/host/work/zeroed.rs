//! W6: zeroed memory that is read completely, written and freed.

use super::{Effort, Outcome, median_times};
use crate::host::allocator::{Allocator, Block, Shape};
use crate::host::figures::Figures;
use crate::host::gauge::Timed;
use crate::measure::Clock;

const BATCHES: usize = 7;

pub(super) fn run<A: Allocator>(from: &A, size: usize, align: usize, effort: Effort) -> Outcome<Figures> {
    let shape = Shape::new(size, align);
    let rounds = ((256 << 20) / size).clamp(4, 20_000);
    let batches = if effort == Effort::Full { BATCHES } else { 1 };
    let mut times = Vec::with_capacity(batches);
    // The first block dirties the memory that the others get.
    for batch in 0..=batches {
        let rounds = if batch == 0 { 1 } else { rounds };
        let timed = Timed::start(Clock::Thread);
        for _ in 0..rounds {
            let mut block = Block::zeroed(from, shape)?;
            // SAFETY: the block was allocated as zeroed.
            let bytes = unsafe { block.bytes() };
            if !is_zero(bytes) {
                return Err("zeroed memory contains a byte that is not zero".into());
            }
            block.touch_pages();
        }
        if batch > 0 {
            times.push(vec![timed.stop("round", rounds as u64, size as u64)]);
        }
    }
    Ok(Figures {
        times: median_times(times),
        memory: None,
    })
}

/// Reads all bytes in any case, so that each allocator pays the same.
fn is_zero(bytes: &[u8]) -> bool {
    let mut seen = [0u64; 8];
    let blocks = bytes.chunks_exact(64);
    let rest = blocks.remainder().iter().fold(0, |all, byte| all | byte);
    for block in blocks {
        for (word, eight) in seen.iter_mut().zip(block.chunks_exact(8)) {
            *word |= eight.try_into().map_or(1, u64::from_ne_bytes);
        }
    }
    rest == 0 && seen == [0; 8]
}

#[cfg(test)]
mod tests {
    use super::is_zero;

    #[test]
    fn a_byte_that_is_not_zero_is_found_at_every_offset() {
        let mut bytes = [0; 200];
        assert!(is_zero(&bytes));
        for at in 0..200 {
            bytes[at] = 1;
            assert!(!is_zero(&bytes), "byte {at}");
            bytes[at] = 0;
        }
    }
}
