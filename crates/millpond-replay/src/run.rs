//! One program under one policy.

use crate::paced::Paced;
use crate::program::{BEFORE, Op, OpKind, Program};
use millpond_engine::{
    AllocError, Block, Engine, Event, Group, Meter, Policy, Request, Simulated, Source, Stats, Stream,
};
use std::time::Instant;

/// The device a program is replayed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Bytes for the program; none for no limit.
    pub bytes: Option<u64>,
    /// Whether it can commit and move pages.
    pub paged: bool,
}

impl Device {
    /// A paged device without a limit.
    pub const UNLIMITED: Self = Self {
        bytes: None,
        paged: true,
    };

    /// The simulated source that stands for it.
    #[must_use]
    pub fn source(&self) -> Simulated {
        Simulated::new().with_capacity(self.bytes).with_paging(self.paged)
    }
}

/// Sees a replay on a source as it goes. All methods do nothing by default.
pub trait Observer<S: Source = Simulated> {
    /// A block was handed out.
    fn allocated(&mut self, _op: &Op, _block: &Block) {}
    /// Called before a block is freed, or its free is requested.
    fn freeing(&mut self, _op: &Op, _block: &Block) {}
    /// A call is done.
    fn stepped(&mut self, _op: &Op, _engine: &mut Engine<S>) {}
}

/// Two watch.
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
}

/// Watches nothing.
impl<S: Source> Observer<S> for () {}

/// Where a policy could not go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// Index of the call into [`Program::ops`].
    pub op: usize,
    /// What was refused.
    pub error: AllocError,
    /// Bytes the device still had.
    pub device_free: u64,
    /// Largest contiguous free block of the policy, among all its pools.
    pub largest_hole: u64,
}

/// What a replay came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The account at the end.
    pub stats: Stats,
    /// What was asked of the device.
    pub meter: Meter,
    /// Where it ran out of memory, if it did.
    pub stop: Option<Stop>,
    /// Index into [`Program::ops`] of the call at which the most was held from the device, first.
    pub peak_op: usize,
    /// Host nanoseconds of the whole replay.
    pub nanoseconds: u64,
    /// Calls made.
    pub calls: u64,
}

/// Replays a program on a source until its end or the first refusal, as the program itself would stop.
///
/// The source is a simulated device or, as [`Real`](crate::Real), any other. One that is lent is as it was left when this
/// returns: with what the program still held.
pub fn run<S: Paced, O: Observer<S>>(
    program: &Program,
    policy: Box<dyn Policy>,
    source: S,
    observer: &mut O,
) -> Run {
    let mut engine = Engine::new(policy, source);
    let mut blocks = Blocks::new(program);
    let start = Instant::now();
    let mut stop = None;
    let mut calls = 0;
    let (mut peak, mut peak_op) = (0, 0);
    for (index, op) in program.ops.iter().enumerate() {
        calls += 1;
        match op.kind {
            OpKind::Alloc => match engine.allocate(request(op)) {
                Ok(block) => {
                    observer.allocated(op, &block);
                    blocks.hold(op, block);
                }
                Err(error) => {
                    let device_free = free_bytes(&engine);
                    let largest_hole = engine.largest_hole();
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

/// The request of a call.
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

/// The blocks a replayed program holds, and those it gave back that still wait for a stream.
pub(crate) struct Blocks {
    held: Vec<Option<Block>>,
    waiting: Vec<(u32, Event)>,
    /// Recordings say that another stream used a block, not which: one of its own stands for it.
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

impl Op {
    /// Position of its event in the trace, if it has one.
    #[must_use]
    pub fn event(&self) -> Option<u32> {
        (self.event != BEFORE).then_some(self.event)
    }
}
