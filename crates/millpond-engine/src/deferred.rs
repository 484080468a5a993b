//! Blocks that were freed while another stream may still use them, and old mappings of pages.
//!
//! A freed block is reused at once only on the stream for which it was allocated. An event is recorded on every other
//! stream that used it. The block is free when all its events have completed.

use crate::block::{Block, Stream};
use crate::meter::Meter;
use crate::source::{Event, Source};
use crate::stale::Stale;

struct Waiting {
    block: Block,
    events: Vec<Event>,
}

/// The queue of blocks that wait for streams, oldest first.
#[derive(Default)]
pub struct Deferred {
    waiting: Vec<Waiting>,
    bytes: u64,
    pub(crate) stale: Stale,
}

impl Deferred {
    /// Returns the bytes of the waiting blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether no block waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the address and bytes of each waiting block.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.waiting.iter().map(|w| (w.block.address(), w.block.bytes()))
    }

    /// Queues a block until the streams that used it have finished their present work.
    pub(crate) fn push(&mut self, block: Block, uses: &[Stream], source: &mut dyn Source, meter: &mut Meter) {
        let mut events = Vec::with_capacity(uses.len());
        for stream in uses {
            meter.calls.event_record += 1;
            events.push(source.record_event(stream.0));
        }
        self.bytes += block.bytes();
        self.waiting.push(Waiting { block, events });
    }

    /// Removes the blocks whose events have all completed. Returns them oldest first.
    pub(crate) fn ready(&mut self, source: &dyn Source) -> Vec<Block> {
        let mut ready = Vec::new();
        let mut index = 0;
        while index < self.waiting.len() {
            self.waiting[index]
                .events
                .retain(|event| !source.is_complete(*event));
            if self.waiting[index].events.is_empty() {
                let block = self.waiting.remove(index).block;
                self.bytes -= block.bytes();
                ready.push(block);
            } else {
                index += 1;
            }
        }
        ready
    }
}
