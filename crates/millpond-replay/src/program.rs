//! What a recording asks of an allocator, stripped of everything an allocator may not see.

use crate::error::{MOST_HELD, ReplayError};
use millpond_trace::{Action, Trace};

/// What one [`Op`] asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OpKind {
    /// Hand out a block.
    Alloc,
    /// Take it back; nothing uses it any more.
    Free,
    /// Take it back; another stream may still use it.
    FreeRequested,
    /// That stream has passed its last use.
    FreeCompleted,
    /// The recorded allocator gave this segment back; only a verification listens.
    SegmentFree,
}

/// One call, 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Bytes asked for.
    pub bytes: u64,
    /// Recorded address; 0 where unknown.
    pub address: u64,
    /// Serial number of the allocation.
    pub allocation: u32,
    /// Position of the event in the trace; `u32::MAX` for blocks that lived before it.
    pub event: u32,
    /// Index of the stream.
    pub stream: u16,
    /// Index of the private pool.
    pub pool: u16,
    /// What is asked.
    pub kind: OpKind,
}

/// The event number of blocks that lived before the recording.
pub const BEFORE: u32 = u32::MAX;

/// How a program is drawn from a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// All streams become one.
    pub merge_streams: bool,
    /// Only events between these times, in microseconds from the first event; what lived then comes first.
    pub window_us: Option<(u64, u64)>,
}

/// The calls of one recording on one device, ready to be replayed.
#[derive(Clone, Debug)]
pub struct Program {
    /// The calls in order.
    pub ops: Vec<Op>,
    /// One more than the largest allocation number.
    pub allocations: u32,
    /// Allocations made, blocks that lived before included.
    pub requests: u64,
    /// The most bytes requested and held at once.
    pub peak_requested: u64,
    /// Index into `ops` of the call that reached it.
    pub peak_op: usize,
    /// Events of the recording that were selected.
    pub events: u64,
    /// Streams that were merged into one; 0 where they were kept.
    pub merged_streams: usize,
    /// Blocks that lived before the first event.
    pub initial_blocks: u64,
}

impl Program {
    /// Draws the program from a recording, to be replayed.
    ///
    /// # Errors
    /// When the selection leaves nothing to replay, or holds more than [`MOST_HELD`] at once.
    pub fn new(trace: &Trace, selection: Selection) -> Result<Self, ReplayError> {
        let program = Self::as_recorded(trace, selection)?;
        if program.peak_requested > MOST_HELD {
            return Err(ReplayError::Beyond {
                trace: trace.origin.name.clone(),
                held: program.peak_requested,
                event: program.ops.get(program.peak_op).and_then(Op::event),
            });
        }
        Ok(program)
    }

    /// The same whatever it holds: for facts about it, and for replays that make it smaller.
    ///
    /// # Errors
    /// When the selection leaves nothing to replay.
    pub fn as_recorded(trace: &Trace, selection: Selection) -> Result<Self, ReplayError> {
        let mut ops = Vec::with_capacity(trace.events.len() + trace.initial_blocks.len());
        for block in &trace.initial_blocks {
            let op = Op {
                bytes: block.requested,
                address: block.address,
                allocation: block.allocation,
                event: BEFORE,
                stream: block.stream,
                pool: block.pool,
                kind: OpKind::Alloc,
            };
            ops.push(op);
            if block.pending {
                ops.push(Op {
                    kind: OpKind::FreeRequested,
                    ..op
                });
            }
        }
        for (event, at) in trace.events.iter().zip(0u32..) {
            let kind = match event.action {
                Action::Alloc => OpKind::Alloc,
                Action::Free => OpKind::Free,
                Action::FreeRequested => OpKind::FreeRequested,
                Action::FreeCompleted => OpKind::FreeCompleted,
                Action::SegmentFree => OpKind::SegmentFree,
                _ => continue,
            };
            ops.push(Op {
                bytes: event.bytes,
                address: event.address,
                allocation: event.allocation,
                event: at,
                stream: event.stream,
                pool: event.pool,
                kind,
            });
        }
        let mut events = trace.events.len() as u64;
        let mut initial_blocks = trace.initial_blocks.len() as u64;
        if let Some(window) = selection.window_us {
            (ops, initial_blocks) = cut(trace, &ops, window);
            events = ops.iter().filter(|op| op.event != BEFORE).count() as u64;
        }
        if !ops.iter().any(|op| op.kind == OpKind::Alloc) {
            return Err(ReplayError::NothingToReplay {
                trace: trace.origin.name.clone(),
                window: selection.window_us.is_some(),
            });
        }
        let mut merged_streams = 0;
        if selection.merge_streams {
            let mut seen = vec![false; trace.streams.len()];
            for op in &mut ops {
                if let Some(seen) = seen.get_mut(usize::from(op.stream)) {
                    *seen = true;
                }
                op.stream = 0;
            }
            merged_streams = seen.iter().filter(|s| **s).count();
        }
        let (peak_requested, peak_op) = peak(&ops);
        Ok(Self {
            requests: ops.iter().filter(|op| op.kind == OpKind::Alloc).count() as u64,
            allocations: trace.allocations,
            peak_requested,
            peak_op,
            events,
            merged_streams,
            initial_blocks,
            ops,
        })
    }

    /// The allocations held after the first `ops` calls, oldest first.
    #[must_use]
    pub fn held_after(&self, ops: usize) -> Vec<Op> {
        let mut held = vec![None; self.allocations as usize];
        for op in &self.ops[..ops.min(self.ops.len())] {
            let Some(slot) = held.get_mut(op.allocation as usize) else {
                continue;
            };
            match op.kind {
                OpKind::Alloc => *slot = Some(*op),
                OpKind::Free | OpKind::FreeRequested => *slot = None,
                OpKind::FreeCompleted | OpKind::SegmentFree => {}
            }
        }
        held.into_iter().flatten().collect()
    }
}

fn peak(ops: &[Op]) -> (u64, usize) {
    let (mut held, mut peak, mut at) = (0u64, 0, 0);
    for (index, op) in ops.iter().enumerate() {
        match op.kind {
            OpKind::Alloc => {
                held = held.saturating_add(op.bytes);
                if held > peak {
                    (peak, at) = (held, index);
                }
            }
            OpKind::Free | OpKind::FreeRequested => held = held.saturating_sub(op.bytes),
            OpKind::FreeCompleted | OpKind::SegmentFree => {}
        }
    }
    (peak, at)
}

/// Keeps the calls inside a window; what lived at its start is allocated first, oldest first.
fn cut(trace: &Trace, ops: &[Op], (from, to): (u64, u64)) -> (Vec<Op>, u64) {
    let start = trace.events.first().map_or(0, |event| event.time_us);
    let time = |op: &Op| {
        trace
            .events
            .get(op.event as usize)
            .map(|event| event.time_us.saturating_sub(start))
    };
    let first = ops
        .iter()
        .position(|op| time(op).is_some_and(|t| t >= from))
        .unwrap_or(ops.len());
    let mut before: Vec<Option<(usize, Op, bool)>> = vec![None; trace.allocations as usize];
    for (order, op) in ops[..first].iter().enumerate() {
        let Some(slot) = before.get_mut(op.allocation as usize) else {
            continue;
        };
        match op.kind {
            OpKind::Alloc => *slot = Some((order, *op, false)),
            OpKind::Free | OpKind::FreeCompleted => *slot = None,
            OpKind::FreeRequested => {
                if let Some(slot) = slot {
                    slot.2 = true;
                }
            }
            OpKind::SegmentFree => {}
        }
    }
    let mut lived: Vec<_> = before.into_iter().flatten().collect();
    lived.sort_by_key(|(order, _, _)| *order);
    let mut kept = Vec::new();
    for (_, op, pending) in &lived {
        kept.push(Op { event: BEFORE, ..*op });
        if *pending {
            kept.push(Op {
                event: BEFORE,
                kind: OpKind::FreeRequested,
                ..*op
            });
        }
    }
    let inside = ops[first..]
        .iter()
        .take_while(|op| time(op).is_none_or(|t| t <= to));
    kept.extend(inside.copied());
    (kept, lived.len() as u64)
}
