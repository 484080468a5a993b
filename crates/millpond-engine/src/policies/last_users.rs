//! Records which streams last used each free block, for free lists that serve several streams.

use crate::block::Stream;
use crate::space::BlockId;
use crate::supply::Supply;

/// Number of bits for streams. All streams beyond this number share the last bit.
const BITS: u32 = u64::BITS;

/// The streams whose work may still use each free block.
#[derive(Default)]
pub(super) struct LastUsers {
    /// The streams in order of first use. Their indices are the bits.
    streams: Vec<Stream>,
    /// The set of streams of each block.
    sets: Vec<u64>,
}

impl LastUsers {
    /// Returns the set of streams that a block waits for.
    pub(super) fn of(&self, id: BlockId) -> u64 {
        self.sets.get(id.index()).copied().unwrap_or(0)
    }

    /// Sets the streams that a block waits for.
    pub(super) fn set(&mut self, id: BlockId, users: u64) {
        if self.sets.len() <= id.index() {
            self.sets.resize(id.index() + 1, 0);
        }
        self.sets[id.index()] = users;
    }

    /// Returns the set with only this stream.
    pub(super) fn only(&mut self, stream: Stream) -> u64 {
        let at = self.streams.iter().position(|s| *s == stream).unwrap_or_else(|| {
            self.streams.push(stream);
            self.streams.len() - 1
        });
        1 << (at as u32).min(BITS - 1)
    }

    /// Makes a stream wait for all other streams of a set.
    pub(super) fn order(&self, supply: &mut Supply<'_>, users: u64, taker: Stream) {
        for (at, stream) in (0..).zip(&self.streams) {
            let bit = 1 << u32::min(at, BITS - 1);
            if users & bit != 0 && *stream != taker {
                supply.order_after(taker, *stream, None);
            }
        }
    }

    /// Clears all sets after the device was synchronised.
    pub(super) fn clear(&mut self) {
        self.sets.fill(0);
    }
}
