//! The sizes that PyTorch's caching allocator uses.
//!
//! They follow its published behaviour. Requests are rounded to 512 bytes. Requests of up to 1 MiB have a pool of their
//! own. Segments have 2 MiB for the small pool and 20 MiB for requests below 10 MiB. A larger request gets a segment of
//! its own size, rounded to 2 MiB.

use crate::block::Request;
use crate::conf::TorchConf;
use crate::error::SourceError;
use crate::policy::Refusal;
use crate::supply::Supply;

pub(super) const MIN_BLOCK: u64 = 512;
/// Largest request of the small pool.
pub(super) const SMALL: u64 = 1 << 20;
pub(super) const SMALL_SEGMENT: u64 = 2 << 20;
const MIN_LARGE: u64 = 10 << 20;
const ROUND_LARGE: u64 = 2 << 20;
/// No device can serve a request above this size.
const LIMIT: u64 = 1 << 60;

/// Returns the size of the block for a request, in bytes.
#[inline]
pub(super) fn block_bytes(request: &Request, conf: &TorchConf) -> Result<u64, Refusal> {
    if request.bytes > LIMIT {
        return Err(Refusal::TooLarge { limit: LIMIT });
    }
    if request.align > MIN_BLOCK {
        return Err(Refusal::Alignment { most: MIN_BLOCK });
    }
    if request.bytes < MIN_BLOCK {
        return Ok(MIN_BLOCK);
    }
    let divisions = conf.roundup_power2_divisions.of(request.bytes);
    if divisions > 1 && request.bytes > MIN_BLOCK * divisions {
        return Ok(round_to_division(request.bytes, divisions));
    }
    Ok(request.bytes.next_multiple_of(MIN_BLOCK))
}

/// Rounds up to the next of `divisions` equal steps between two powers of two.
fn round_to_division(bytes: u64, divisions: u64) -> u64 {
    if bytes.is_power_of_two() {
        return bytes;
    }
    let floor = 1u64 << bytes.ilog2();
    match floor / divisions {
        0 => floor << 1,
        step => bytes.next_multiple_of(step),
    }
}

/// Returns the bytes taken from the driver for a block that no free block serves.
pub(super) fn segment_bytes(block: u64, conf: &TorchConf) -> u64 {
    match block {
        0..=SMALL => SMALL_SEGMENT,
        _ if block < MIN_LARGE => conf.large_segment,
        _ => block.next_multiple_of(ROUND_LARGE),
    }
}

/// Returns whether a free block of `found` bytes is too large for a block of `bytes`: it would waste an oversize block on
/// a small request or round up too far.
#[inline]
pub(super) fn is_wasted(conf: &TorchConf, bytes: u64, found: u64) -> bool {
    let max_split = conf.max_split_size.unwrap_or(u64::MAX);
    if bytes < max_split {
        found >= max_split
    } else {
        found >= bytes.saturating_add(conf.max_non_split_rounding)
    }
}

/// Refuses growth beyond the memory fraction, in the same way as the driver refuses growth beyond its memory.
pub(super) fn allowed_bytes(conf: &TorchConf, supply: &Supply<'_>, bytes: u64) -> Result<(), SourceError> {
    let Some((fraction, capacity)) = conf.memory_fraction.zip(supply.capacity()) else {
        return Ok(());
    };
    let allowed = (fraction * capacity as f64) as u64;
    if supply.reserved() + bytes <= allowed {
        return Ok(());
    }
    let free = allowed.saturating_sub(supply.reserved());
    Err(SourceError::OutOfMemory {
        requested: bytes,
        free,
        capacity: allowed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Stream;
    use crate::conf::RoundupDivisions;

    #[test]
    fn sizes_follow_the_published_rules() {
        let conf = TorchConf::default();
        let rounded = |bytes| block_bytes(&Request::new(bytes, Stream::DEFAULT), &conf);
        assert_eq!(rounded(0), Ok(512));
        assert_eq!(rounded(513), Ok(1024));
        assert_eq!(rounded(u64::MAX), Err(Refusal::TooLarge { limit: LIMIT }));
        let segment = |bytes| segment_bytes(bytes, &conf);
        assert_eq!(
            [
                segment(SMALL),
                segment(SMALL + 512),
                segment(MIN_LARGE),
                segment(MIN_LARGE + 512)
            ],
            [2 << 20, 20 << 20, 10 << 20, 12 << 20]
        );
    }

    #[test]
    fn divisions_step_between_powers_of_two() {
        let conf = TorchConf {
            roundup_power2_divisions: RoundupDivisions::uniform(4),
            ..TorchConf::default()
        };
        let rounded = |bytes| block_bytes(&Request::new(bytes, Stream::DEFAULT), &conf);
        // An example of PyTorch's documentation rounds 1200 with 4 divisions to 1280. The rule applies only above 2,048
        // bytes, which is 512 times the number of divisions.
        assert_eq!(rounded(1200), Ok(1536));
        assert_eq!(rounded(2 << 20), Ok(2 << 20));
        assert_eq!(rounded((2 << 20) + 1), Ok((2 << 20) + (512 << 10)));
    }
}
