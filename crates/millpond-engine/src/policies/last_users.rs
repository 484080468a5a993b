//! Which streams used a free block last, where one free list serves several streams.

use crate::block::Stream;
use crate::space::BlockId;
use crate::supply::Supply;

/// Streams told apart; those beyond share the last bit and are waited for together.
const BITS: u32 = u64::BITS;

/// For each free block, the streams whose work may still touch it.
#[derive(Default)]
pub(super) struct LastUsers {
    /// In order of first use; their positions are the bits.
    streams: Vec<Stream>,
    /// By block.
    sets: Vec<u64>,
}

impl LastUsers {
    /// The streams a block waits for, as one value.
    pub(super) fn of(&self, id: BlockId) -> u64 {
        self.sets.get(id.index()).copied().unwrap_or(0)
    }

    /// Says which streams a block waits for.
    pub(super) fn set(&mut self, id: BlockId, users: u64) {
        if self.sets.len() <= id.index() {
            self.sets.resize(id.index() + 1, 0);
        }
        self.sets[id.index()] = users;
    }

    /// The set of one stream.
    pub(super) fn only(&mut self, stream: Stream) -> u64 {
        let at = self.streams.iter().position(|s| *s == stream).unwrap_or_else(|| {
            self.streams.push(stream);
            self.streams.len() - 1
        });
        1 << (at as u32).min(BITS - 1)
    }

    /// Makes a stream wait for all others that used a block.
    pub(super) fn order(&self, supply: &mut Supply<'_>, users: u64, taker: Stream) {
        for (at, stream) in (0..).zip(&self.streams) {
            let bit = 1 << u32::min(at, BITS - 1);
            if users & bit != 0 && *stream != taker {
                supply.order_after(taker, *stream, None);
            }
        }
    }

    /// The device was synchronised: no free block waits for anything.
    pub(super) fn clear(&mut self) {
        self.sets.fill(0);
    }
}
