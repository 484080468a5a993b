//! Turns a part of a recording into a recording, so that the page shows the part that was replayed.

use crate::placement::{Placement, SegmentSpan};
use crate::program::{Op, OpKind, Program};
use millpond_trace::{Action, Event, InitialBlock, NO_ALLOCATION, Trace};

/// Returns the part of a recording from which a program was built with a time window. Also returns the
/// placements of its replays, with events and allocations numbered as in that part.
#[must_use]
pub fn window(trace: &Trace, program: &Program, placements: &[Placement]) -> (Trace, Vec<Placement>) {
    let events = || program.ops.iter().filter_map(Op::event);
    let first = events().min().unwrap_or(0);
    let end = events().max().map_or(first, |last| last + 1);
    let mut numbers = Numbers::new(trace);
    let initial_blocks = initial_blocks(trace, program, &mut numbers);
    let inside = trace.events.get(first as usize..end as usize).unwrap_or_default();
    let events: Vec<Event> = inside
        .iter()
        .map(|event| Event {
            allocation: match event.action {
                Action::Alloc => numbers.of(event.allocation),
                _ => numbers.known(event.allocation),
            },
            ..*event
        })
        .collect();
    let placements = placements
        .iter()
        .map(|placement| moved(placement, first, &numbers.old))
        .collect();
    let part = Trace {
        origin: trace.origin.clone(),
        events,
        allocations: numbers.old.len() as u32,
        tags: trace.tags.clone(),
        streams: trace.streams.clone(),
        pools: trace.pools.clone(),
        initial_segments: Vec::new(),
        initial_blocks,
        settings: trace.settings.clone(),
        final_reserved_bytes: None,
        recorded_peak_reserved: None,
        unlisted_bytes: 0,
        cautions: trace.cautions.clone(),
    };
    (part, placements)
}

/// Serial numbers of allocations in order of appearance in the part.
struct Numbers {
    /// New numbers by number in the whole recording. [`NO_ALLOCATION`] if the part does not contain the
    /// allocation.
    new: Vec<u32>,
    /// Numbers in the whole recording by new number.
    old: Vec<u32>,
}

impl Numbers {
    fn new(trace: &Trace) -> Self {
        Self {
            new: vec![NO_ALLOCATION; trace.allocations as usize],
            old: Vec::new(),
        }
    }

    /// Returns the new number of an allocation, and assigns one if it has none yet.
    fn of(&mut self, old: u32) -> u32 {
        let Some(new) = self.new.get_mut(old as usize) else {
            return NO_ALLOCATION;
        };
        if *new == NO_ALLOCATION {
            *new = self.old.len() as u32;
            self.old.push(old);
        }
        *new
    }

    /// Returns the new number of an allocation that may have none.
    fn known(&self, old: u32) -> u32 {
        self.new.get(old as usize).copied().unwrap_or(NO_ALLOCATION)
    }
}

/// Returns the blocks that lived when the part begins.
fn initial_blocks(trace: &Trace, program: &Program, numbers: &mut Numbers) -> Vec<InitialBlock> {
    let mut tags = vec![0; trace.allocations as usize];
    let older = trace
        .initial_blocks
        .iter()
        .map(|block| (block.allocation, block.tag));
    let allocated = trace.events.iter().filter(|event| event.action == Action::Alloc);
    for (allocation, tag) in older.chain(allocated.map(|event| (event.allocation, event.tag))) {
        if let Some(slot) = tags.get_mut(allocation as usize) {
            *slot = tag;
        }
    }
    let mut blocks: Vec<InitialBlock> = Vec::new();
    for op in program.ops.iter().take_while(|op| op.event().is_none()) {
        match (op.kind, blocks.last_mut()) {
            (OpKind::FreeRequested, Some(last)) => last.pending = true,
            _ => blocks.push(InitialBlock {
                address: op.address,
                requested: op.bytes,
                bytes: None,
                allocation: numbers.of(op.allocation),
                tag: tags.get(op.allocation as usize).copied().unwrap_or(0),
                stream: op.stream,
                pool: op.pool,
                pending: false,
            }),
        }
    }
    blocks
}

fn moved(placement: &Placement, first: u32, old: &[u32]) -> Placement {
    let of = |values: &[u64], absent: u64| -> Vec<u64> {
        old.iter()
            .map(|old| values.get(*old as usize).copied().unwrap_or(absent))
            .collect()
    };
    let mut reserved: Vec<(u32, u64)> = Vec::with_capacity(placement.reserved.len());
    for &(event, bytes) in &placement.reserved {
        let event = event.saturating_sub(first);
        match reserved.last_mut() {
            // The state before the part and the first event share one entry.
            Some((at, last)) if *at == event => *last = bytes,
            _ => reserved.push((event, bytes)),
        }
    }
    let segments = placement.segments.iter().map(|span| SegmentSpan {
        from_event: span.from_event.saturating_sub(first),
        to_event: span.to_event.saturating_sub(first),
        ..*span
    });
    Placement {
        address: of(&placement.address, u64::MAX),
        block_bytes: of(&placement.block_bytes, 0),
        reserved,
        segments: segments.collect(),
        stopped_at: placement.stopped_at.map(|event| event.saturating_sub(first)),
    }
}
