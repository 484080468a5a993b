//! The calls of a recording, without the information that an allocator cannot see.

use crate::error::{MOST_HELD, ReplayError};
use millpond_trace::{Action, Event, InitialBlock, Trace};

/// The kind of an [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OpKind {
    /// Allocates a block.
    Alloc,
    /// Frees a block that nothing uses any more.
    Free,
    /// Frees a block that another stream may still use.
    FreeRequested,
    /// Reports that the other stream has passed the last use of the block.
    FreeCompleted,
    /// Reports that the recorded allocator released this segment. Only a verification uses it.
    SegmentFree,
}

impl OpKind {
    /// Returns the bytes that a program holds after a call, if it held `held` before.
    fn held(self, held: u64, bytes: u64) -> u64 {
        match self {
            Self::Alloc => held.saturating_add(bytes),
            Self::Free | Self::FreeRequested => held.saturating_sub(bytes),
            Self::FreeCompleted | Self::SegmentFree => held,
        }
    }
}

/// One call. It takes 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Requested bytes.
    pub bytes: u64,
    /// Recorded address, or 0 if unknown.
    pub address: u64,
    /// Serial number of the allocation.
    pub allocation: u32,
    /// Position of the event in the trace. [`BEFORE`] for blocks that lived before it.
    pub event: u32,
    /// Index of the stream.
    pub stream: u16,
    /// Index of the private pool.
    pub pool: u16,
    /// The kind of the call.
    pub kind: OpKind,
}

/// A request, as an allocator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Requested bytes.
    pub(crate) bytes: u64,
    /// Index of the stream.
    pub(crate) stream: u16,
    /// Index of the private pool.
    pub(crate) pool: u16,
}

/// The event number of blocks that lived before the recording.
pub const BEFORE: u32 = u32::MAX;

impl Op {
    /// Returns the allocation of a block that lived before the recording.
    pub(crate) fn before(block: &InitialBlock) -> Self {
        Self {
            bytes: block.requested,
            address: block.address,
            allocation: block.allocation,
            event: BEFORE,
            stream: block.stream,
            pool: block.pool,
            kind: OpKind::Alloc,
        }
    }

    /// Returns the position of the call's event in the trace, if it has one.
    #[must_use]
    pub fn event(&self) -> Option<u32> {
        (self.event != BEFORE).then_some(self.event)
    }
}

/// A program that makes this many allocations after a refused request has handled the refusal, such as a search for the largest
/// batch.
const HANDLED: usize = 256;

/// A program that makes this many allocations between two refused requests has handled the first refusal. An error that ends the
/// program can be followed by another one, but not by so many allocations.
const BETWEEN: usize = 16;

/// Returns the position of the event before which the program has handled all refusals.
pub(crate) fn handled_before(trace: &Trace) -> usize {
    let events = trace.events.iter().enumerate();
    let mut allocations = events
        .clone()
        .rev()
        .filter(|(_, event)| event.action == Action::Alloc);
    let few = allocations.nth(HANDLED - 1).map_or(0, |(at, _)| at);
    let (mut from, mut since) = (few, 0);
    let mut refused = None;
    for (at, event) in events {
        match event.action {
            Action::Alloc => since += 1,
            Action::OutOfMemory => {
                if let Some(before) = refused.replace(at).filter(|_| since >= BETWEEN) {
                    from = from.max(before + 1);
                }
                since = 0;
            }
            _ => {}
        }
    }
    from
}

/// The part of a recording that becomes a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Whether all streams become one.
    pub merge_streams: bool,
    /// Selects only events between these times, in microseconds from the first event. Blocks that lived at
    /// its start are allocated first.
    pub window_us: Option<(u64, u64)>,
}

impl Selection {
    /// Returns the selected requests that the recorded allocator refused, with the position of their event.
    pub(crate) fn refused(self, trace: &Trace) -> impl Iterator<Item = (u32, &Event)> {
        let start = trace.events.first().map_or(0, |event| event.time_us);
        let is_inside = move |event: &Event| {
            let time = event.time_us.saturating_sub(start);
            self.window_us
                .is_none_or(|(from, to)| (from..=to).contains(&time))
        };
        let events = (0u32..).zip(&trace.events);
        events.filter(move |(_, event)| event.action == Action::OutOfMemory && is_inside(event))
    }

    /// Returns the selected requests that were refused and that the program did not handle, with the position of their event.
    pub(crate) fn fatal(self, trace: &Trace) -> impl Iterator<Item = (u32, &Event)> {
        let from = handled_before(trace);
        self.refused(trace).filter(move |(at, _)| *at as usize >= from)
    }
}

/// The calls of one recording on one device, ready to be replayed.
#[derive(Clone, Debug)]
pub struct Program {
    /// The calls in order.
    pub ops: Vec<Op>,
    /// One more than the largest allocation number.
    pub allocations: u32,
    /// The number of allocations, including blocks that lived before the first event.
    pub requests: u64,
    /// The most bytes that were requested and held at once.
    pub peak_requested: u64,
    /// Index into `ops` of the call that reached this peak.
    pub peak_op: usize,
    /// The number of events of the recording that were selected.
    pub events: u64,
    /// The number of streams that were merged into one, or 0 if they were kept.
    pub merged_streams: usize,
    /// The number of blocks that lived before the first event.
    pub initial_blocks: u64,
    /// The number of requests that the recorded allocator refused and that a replay makes again.
    pub refused: u64,
}

impl Program {
    /// Builds a program from a recording for a replay.
    ///
    /// A request that the recorded allocator refused becomes an allocation, and its block is freed at once, because
    /// the recording does not say how long the program would have held it. A request is left out if no device can serve it, or if
    /// the program has handled the refusal.
    ///
    /// # Errors
    /// Returns an error if the selection leaves nothing to replay, or if it holds more than [`MOST_HELD`] at
    /// once.
    pub fn new(trace: &Trace, selection: Selection) -> Result<Self, ReplayError> {
        let mut program = Self::as_recorded(trace, selection)?;
        program.check(trace)?;
        program.add_refused(trace, selection);
        Ok(program)
    }

    /// Returns an error if the program holds more than [`MOST_HELD`] at once.
    pub(crate) fn check(&self, trace: &Trace) -> Result<(), ReplayError> {
        if self.peak_requested > MOST_HELD {
            return Err(ReplayError::Beyond {
                trace: trace.origin.name.clone(),
                held: self.peak_requested,
                event: self.ops.get(self.peak_op).and_then(Op::event),
            });
        }
        Ok(())
    }

    /// Builds a program of the calls that succeeded, without a limit on the bytes held. Use this to inspect a
    /// program, and for replays that make it smaller.
    ///
    /// # Errors
    /// Returns an error if the selection leaves nothing to replay.
    pub fn as_recorded(trace: &Trace, selection: Selection) -> Result<Self, ReplayError> {
        let mut ops = Vec::with_capacity(trace.events.len() + trace.initial_blocks.len());
        for block in &trace.initial_blocks {
            let op = Op::before(block);
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
            refused: 0,
            ops,
        })
    }

    /// Returns the index of the first call of an event of the recording, or of a later one.
    pub(crate) fn position(&self, event: u32) -> usize {
        let is_earlier = |op: &Op| op.event == BEFORE || op.event < event;
        self.ops.partition_point(is_earlier)
    }

    /// Adds the requests that the recorded allocator refused. Each block is freed at once.
    fn add_refused(&mut self, trace: &Trace, selection: Selection) {
        let refused = selection.fatal(trace);
        let mut ops = Vec::new();
        let (mut done, mut held) = (0, 0);
        for (at, event) in refused {
            let next = self.position(at);
            for op in &self.ops[done..next] {
                held = op.kind.held(held, op.bytes);
            }
            ops.extend_from_slice(&self.ops[done..next]);
            done = next;
            let Some(allocations) = self
                .allocations
                .checked_add(1)
                .filter(|_| is_servable(held, event.bytes))
            else {
                continue;
            };
            let op = Op {
                bytes: event.bytes,
                address: 0,
                allocation: self.allocations,
                event: at,
                stream: if selection.merge_streams { 0 } else { event.stream },
                pool: event.pool,
                kind: OpKind::Alloc,
            };
            let kind = OpKind::Free;
            ops.extend([op, Op { kind, ..op }]);
            self.allocations = allocations;
            self.refused += 1;
        }
        if self.refused > 0 {
            ops.extend_from_slice(&self.ops[done..]);
            self.ops = ops;
            self.requests += self.refused;
            (self.peak_requested, self.peak_op) = peak(&self.ops);
        }
    }

    /// Returns the allocations that are held after the first `ops` calls, the oldest first.
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

/// Returns whether a device can serve a request of a program that holds `held` bytes.
pub(crate) fn is_servable(held: u64, bytes: u64) -> bool {
    held.saturating_add(bytes) <= MOST_HELD
}

fn peak(ops: &[Op]) -> (u64, usize) {
    let (mut held, mut peak, mut at) = (0u64, 0, 0);
    for (index, op) in ops.iter().enumerate() {
        held = op.kind.held(held, op.bytes);
        if held > peak {
            (peak, at) = (held, index);
        }
    }
    (peak, at)
}

/// Keeps the calls inside a window. Blocks that lived at its start are allocated first, the oldest first.
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
