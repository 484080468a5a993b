//! Runs one program under one policy.

use crate::paced::Paced;
use crate::program::{BEFORE, Op, OpKind, Program};
use millpond_engine::{
    AllocError, Block, Engine, Event, Group, Meter, Policy, Request, Simulated, Source, Stats, Stream,
};
use std::time::Instant;

/// The device on which a program is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Bytes for the program. `None` sets no limit.
    pub bytes: Option<u64>,
    /// Bytes of the whole device, of which the program may have only a part. `None` means that they are unknown.
    pub total: Option<u64>,
    /// Whether the device can commit and move pages.
    pub paged: bool,
}

impl Device {
    /// A paged device without a limit.
    pub const UNLIMITED: Self = Self {
        bytes: None,
        total: None,
        paged: true,
    };

    /// Returns the simulated source for this device.
    #[must_use]
    pub fn source(&self) -> Simulated {
        Simulated::new()
            .with_capacity(self.bytes)
            .with_device_bytes(self.total)
            .with_paging(self.paged)
    }
}

/// The largest share of the allocations at which a recommended policy stalls.
const MOST_STALLS: f64 = 0.01;

/// Returns the number of stalls over the number of allocations.
pub(crate) fn stall_rate(stalls: u64, allocations: u64) -> f64 {
    stalls as f64 / allocations.max(1) as f64
}

/// Returns whether a policy stalls seldom enough to be recommended: at most one time, or at no more than one in a hundred allocations.
pub(crate) fn seldom_stalls(stalls: u64, stall_rate: f64) -> bool {
    stalls <= 1 || stall_rate <= MOST_STALLS
}

/// Observes a replay on a source. All methods do nothing by default.
pub trait Observer<S: Source = Simulated> {
    /// Called after a block is allocated.
    fn allocated(&mut self, _op: &Op, _block: &Block) {}
    /// Called before a block is freed, or its free is requested.
    fn freeing(&mut self, _op: &Op, _block: &Block) {}
    /// Called after each call.
    fn stepped(&mut self, _op: &Op, _engine: &mut Engine<S>) {}
    /// Called when a request is refused, with the index of the call and the blocks that the program holds, by
    /// allocation.
    fn refused(&mut self, _at: usize, _held: &[Option<Block>], _engine: &Engine<S>) {}
}

/// Calls two observers in turn.
impl<S: Source, A: Observer<S>, B: Observer<S>> Observer<S> for (A, B) {
    fn allocated(&mut self, op: &Op, block: &Block) {
        self.0.allocated(op, block);
        self.1.allocated(op, block);
    }

    fn freeing(&mut self, op: &Op, block: &Block) {
        self.0.freeing(op, block);
        self.1.freeing(op, block);
    }

    fn stepped(&mut self, op: &Op, engine: &mut Engine<S>) {
        self.0.stepped(op, engine);
        self.1.stepped(op, engine);
    }

    fn refused(&mut self, at: usize, held: &[Option<Block>], engine: &Engine<S>) {
        self.0.refused(at, held, engine);
        self.1.refused(at, held, engine);
    }
}

impl<S: Source, O: Observer<S> + ?Sized> Observer<S> for &mut O {
    fn allocated(&mut self, op: &Op, block: &Block) {
        (**self).allocated(op, block);
    }

    fn freeing(&mut self, op: &Op, block: &Block) {
        (**self).freeing(op, block);
    }

    fn stepped(&mut self, op: &Op, engine: &mut Engine<S>) {
        (**self).stepped(op, engine);
    }

    fn refused(&mut self, at: usize, held: &[Option<Block>], engine: &Engine<S>) {
        (**self).refused(at, held, engine);
    }
}

/// An observer that does nothing.
impl<S: Source> Observer<S> for () {}

/// The call at which a policy could not continue.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// Index of the call into [`Program::ops`].
    pub op: usize,
    /// The error of the refused request.
    pub error: AllocError,
    /// Bytes that the device still had free.
    pub device_free: u64,
    /// Largest contiguous free block of the policy, among all its pools.
    pub largest_hole: u64,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The statistics at the end.
    pub stats: Stats,
    /// The calls to the device.
    pub meter: Meter,
    /// The call at which the policy ran out of memory, if it did.
    pub stop: Option<Stop>,
    /// Index into [`Program::ops`] of the first call at which the most was held from the device.
    pub peak_op: usize,
    /// Host nanoseconds of the whole replay.
    pub nanoseconds: u64,
    /// The number of calls made.
    pub calls: u64,
}

impl Run {
    /// Returns peak reserved bytes over peak requested bytes, both up to the point that the program reached.
    #[must_use]
    pub fn overhead(&self, program: &Program) -> f64 {
        let requested = match self.stop {
            None => program.peak_requested,
            Some(_) => self.stats.requested.peak,
        };
        if requested == 0 {
            0.0
        } else {
            self.stats.reserved.peak as f64 / requested as f64
        }
    }
}

/// Replays a program on a source until its end, or until the first refusal, at which the program itself would stop.
///
/// The source is a simulated device or, through [`Real`](crate::Real), any other. A borrowed source keeps the
/// blocks that the program still held when this returns.
pub fn run<S: Paced, O: Observer<S>>(
    program: &Program,
    policy: Box<dyn Policy>,
    source: S,
    observer: &mut O,
) -> Run {
    run_from(
        program,
        Engine::new(policy, source),
        Blocks::new(program),
        false,
        observer,
    )
}

/// Replays a program like [`run`], on an engine that may already hold `blocks`. If `adopted` is true, these are
/// all blocks that lived before the recording.
pub(crate) fn run_from<S: Paced, O: Observer<S>>(
    program: &Program,
    mut engine: Engine<S>,
    mut blocks: Blocks,
    adopted: bool,
    observer: &mut O,
) -> Run {
    let start = Instant::now();
    let mut stop = None;
    let mut calls = 0;
    let (mut peak, mut peak_op) = (0, 0);
    for (index, op) in program.ops.iter().enumerate() {
        calls += 1;
        match op.kind {
            OpKind::Alloc if adopted && op.event == BEFORE => {}
            OpKind::Alloc => match engine.allocate(request(op)) {
                Ok(block) => {
                    observer.allocated(op, &block);
                    blocks.hold(op, block);
                }
                Err(error) => {
                    let device_free = free_bytes(&engine);
                    let largest_hole = engine.largest_hole();
                    observer.refused(index, &blocks.held, &engine);
                    stop = Some(Stop {
                        op: index,
                        error,
                        device_free,
                        largest_hole,
                    });
                    break;
                }
            },
            OpKind::Free => {
                if let Some(block) = blocks.take(op) {
                    observer.freeing(op, &block);
                    engine.free(block, &[]);
                }
            }
            OpKind::FreeRequested => {
                if let Some(block) = blocks.get(op) {
                    observer.freeing(op, block);
                }
                blocks.request_free(op, &mut engine);
            }
            OpKind::FreeCompleted => blocks.complete_free(op, &mut engine),
            OpKind::SegmentFree => {}
        }
        if engine.stats().reserved.peak > peak {
            (peak, peak_op) = (engine.stats().reserved.peak, index);
        }
        observer.stepped(op, &mut engine);
    }
    let nanoseconds = start.elapsed().as_nanos() as u64;
    Run {
        stats: *engine.stats(),
        meter: *engine.meter(),
        stop,
        peak_op,
        nanoseconds,
        calls,
    }
}

fn free_bytes<S: Source>(engine: &Engine<S>) -> u64 {
    engine.source().free_bytes().unwrap_or(u64::MAX)
}

/// Returns the request of a call.
#[inline]
#[must_use]
pub fn request(op: &Op) -> Request {
    Request {
        bytes: op.bytes,
        align: 1,
        stream: Stream(u32::from(op.stream)),
        group: Group(u32::from(op.pool)),
    }
}

/// The blocks that a replayed program holds, and the freed blocks that still wait for a stream.
pub(crate) struct Blocks {
    held: Vec<Option<Block>>,
    waiting: Vec<(u32, Event)>,
    /// Stands for every other stream. A recording says that another stream used a block, but not which one.
    elsewhere: Stream,
}

impl Blocks {
    pub(crate) fn new(program: &Program) -> Self {
        let mut held = Vec::new();
        held.resize_with(program.allocations as usize, || None);
        Self {
            held,
            waiting: Vec::new(),
            elsewhere: Stream(u32::from(u16::MAX) + 1),
        }
    }

    #[inline]
    pub(crate) fn hold(&mut self, op: &Op, block: Block) {
        if let Some(slot) = self.held.get_mut(op.allocation as usize) {
            *slot = Some(block);
        }
    }

    fn get(&self, op: &Op) -> Option<&Block> {
        self.held.get(op.allocation as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn take(&mut self, op: &Op) -> Option<Block> {
        self.held.get_mut(op.allocation as usize).and_then(Option::take)
    }

    pub(crate) fn request_free<S: Paced>(&mut self, op: &Op, engine: &mut Engine<S>) {
        let Some(block) = self.take(op) else { return };
        engine.source_mut().set_holding(true);
        engine.free(block, &[self.elsewhere]);
        engine.source_mut().set_holding(false);
        if let Some(event) = engine.source().last_event() {
            self.waiting.push((op.allocation, event));
        }
    }

    pub(crate) fn complete_free<S: Paced>(&mut self, op: &Op, engine: &mut Engine<S>) {
        let Some(at) = self
            .waiting
            .iter()
            .position(|(allocation, _)| *allocation == op.allocation)
        else {
            return;
        };
        let (_, event) = self.waiting.remove(at);
        engine.source_mut().complete(event);
        engine.collect();
    }
}
