//! Records where one policy placed the blocks of a program, event by event, for pictures.

use crate::program::{Op, OpKind, Program};
use crate::ranges::Ranges;
use crate::run::Observer;
use millpond_engine::{Block, Engine, Simulated};

/// An address range that was backed by memory for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpan {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// The event at which the memory was taken.
    pub from_event: u32,
    /// The event at which the memory was released, or the number of events if it stayed.
    pub to_event: u32,
}

/// The address of every block of a replay, and the reserved bytes over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Address of each allocation by serial number. `u64::MAX` if it was never served.
    pub address: Vec<u64>,
    /// Bytes of the block. 0 if it was never served.
    pub block_bytes: Vec<u64>,
    /// Pairs of an event and the reserved bytes after it. Only changes are listed. Calls before the recording
    /// count as event 0.
    pub reserved: Vec<(u32, u64)>,
    /// The address ranges that were held, each with its time.
    pub segments: Vec<SegmentSpan>,
    /// The event at which the policy ran out of memory.
    pub stopped_at: Option<u32>,
}

/// Fills a [`Placement`] during a replay. The source must keep a log.
pub struct PlacementRecorder {
    placement: Placement,
    /// The event at which each range was mapped.
    mapped: Ranges<u32>,
    events: u32,
}

impl PlacementRecorder {
    /// Creates a recorder for one replay of a program.
    #[must_use]
    pub fn new(program: &Program) -> Self {
        let allocations = program.allocations as usize;
        Self {
            placement: Placement {
                address: vec![u64::MAX; allocations],
                block_bytes: vec![0; allocations],
                ..Placement::default()
            },
            mapped: Ranges::default(),
            // The last events may be refused requests that no replay makes.
            events: program
                .ops
                .iter()
                .filter_map(Op::event)
                .max()
                .map_or(0, |e| e + 1)
                .max(program.events as u32),
        }
    }

    /// Returns the finished placement.
    #[must_use]
    pub fn finish(mut self, stopped_at: Option<u32>) -> Placement {
        self.release(0, u64::MAX, stopped_at.unwrap_or(self.events));
        self.placement.segments.sort_by_key(|s| (s.from_event, s.address));
        self.placement.stopped_at = stopped_at;
        self.placement
    }

    fn release(&mut self, address: u64, bytes: u64, event: u32) {
        for (from, to, from_event) in self.mapped.remove(address, bytes) {
            self.placement.segments.push(SegmentSpan {
                address: from,
                bytes: to - from,
                from_event,
                to_event: event,
            });
        }
    }
}

impl Observer for PlacementRecorder {
    fn allocated(&mut self, op: &Op, block: &Block) {
        self.placement.address[op.allocation as usize] = block.address();
        self.placement.block_bytes[op.allocation as usize] = block.bytes();
    }

    fn stepped(&mut self, op: &Op, engine: &mut Engine<Simulated>) {
        if op.kind == OpKind::SegmentFree {
            return;
        }
        let event = op.event().unwrap_or(0);
        for change in engine.source_mut().take_log() {
            if change.mapped {
                self.mapped.add(change.address, change.bytes, event);
            } else {
                self.release(change.address, change.bytes, event);
            }
        }
        let reserved = engine.stats().reserved.current;
        match self.placement.reserved.last_mut() {
            Some((_, last)) if *last == reserved => {}
            Some((at, last)) if *at == event => *last = reserved,
            _ => self.placement.reserved.push((event, reserved)),
        }
    }
}
