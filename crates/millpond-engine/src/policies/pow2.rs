//! `pow2`: whole segments of power-of-two sizes, with one free list for each size.
//!
//! This is the pool of small tensor libraries (zoobzio/tendo, LynnColeArt/guda, mivertowski/DotCompute). The rules come
//! from their documentation:
//!
//! * A request is rounded up to a power of two, at least 256 bytes: [`size_class`].
//! * A free block of exactly that class is reused. The block freed last comes first, because it is most likely in a
//!   cache.
//! * Otherwise the driver allocates a block of the class. Blocks are never split or joined.
//! * Blocks stay cached until a caller requests their release.
//!
//! Two rules are added, because those pools handle neither streams nor a full device. Each stream and private pool has
//! its own lists. When memory runs out, the policy waits for the device and returns all cached memory. Two features are
//! not modelled: tendo counts elements instead of bytes; DotCompute limits a block to 256 MiB and a class to 100
//! blocks, and the first limit makes it return blocks that are too small.

use super::rounding::{LIMIT, UNIT};
use super::warm_lists::{ListKey, WarmLists};
use crate::block::{Block, Request};
use crate::policy::{Fidelity, Policy, Refusal};
use crate::space::Piece;
use crate::supply::Supply;

/// Returns the power of two that serves a request, at least 256, or `None` above 2^63.
///
/// ```
/// use millpond_engine::policies::pow2::size_class;
///
/// assert_eq!(size_class(1000), Some(1024));
/// assert_eq!(size_class(1024), Some(1024));
/// assert_eq!(size_class(0), Some(256));
/// assert_eq!(size_class(u64::MAX), None);
/// ```
#[must_use]
pub const fn size_class(bytes: u64) -> Option<u64> {
    if bytes <= UNIT {
        return Some(UNIT);
    }
    bytes.checked_next_power_of_two()
}

/// The `pow2` policy. The module describes its rules.
#[derive(Default)]
pub struct PowersOfTwo {
    lists: WarmLists,
}

impl PowersOfTwo {
    /// Creates the policy. It has no settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Policy for PowersOfTwo {
    fn name(&self) -> &'static str {
        "pow2"
    }

    fn fidelity(&self) -> Fidelity {
        Fidelity::PublishedRules
    }

    fn allocate(&mut self, supply: &mut Supply<'_>, request: &Request) -> Result<Block, Refusal> {
        let too_large = Refusal::TooLarge { limit: LIMIT };
        let class = size_class(request.bytes)
            .filter(|c| *c <= LIMIT)
            .ok_or(too_large)?;
        if request.align > UNIT {
            return Err(Refusal::Alignment { most: UNIT });
        }
        let key = ListKey {
            group: request.group,
            stream: request.stream,
            class,
        };
        let id = match self.lists.pop(key) {
            Some(id) => id,
            None => self.lists.grow(supply, key, |lists, supply| {
                let [id] = lists.add(supply.take(class)?, [(class, key)]);
                Ok(id)
            })?,
        };
        Ok(self.lists.hand_out(id, request))
    }

    fn free(&mut self, _supply: &mut Supply<'_>, block: Block) {
        self.lists.free(&block);
    }

    fn release_cached(&mut self, supply: &mut Supply<'_>) {
        self.lists.release_cached(supply);
    }

    fn layout(&self, visit: &mut dyn FnMut(Piece)) {
        self.lists.layout(visit);
    }

    fn check(&self) {
        self.lists.check();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_rounded_up_to_powers_of_two() {
        assert_eq!(
            [1, 256, 257, (1 << 40) - 1, 1 << 40].map(size_class),
            [256, 256, 512, 1 << 40, 1 << 40].map(Some)
        );
        assert_eq!(size_class(1 << 63), Some(1 << 63));
        assert_eq!(size_class((1 << 63) + 1), None);
    }
}
