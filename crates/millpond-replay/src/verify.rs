//! Compares a replay with the addresses that a snapshot recorded. The same allocator with the same segment
//! addresses must place every block at its recorded address.
//!
//! The blocks that lived before the history are placed at their recorded addresses. [`first_state`] determines
//! their sizes.

mod first_state;

use self::first_state::{SizedSegment, first_state};
use crate::error::{MOST_HELD, ReplayError};
use crate::program::{BEFORE, Op, OpKind, Program, Selection};
use crate::run::{Blocks, Device, Run, request, run_from};
use millpond_engine::policies::TorchNative;
use millpond_engine::{Adopted, Engine, Group, RoundupDivisions, Simulated, Stream, TorchConf};
use millpond_trace::{Action, InitialBlock, Settings, Trace};

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// The number of allocations in the history.
    pub allocations: u64,
    /// The number of allocations that the replay placed at the recorded address.
    pub agreeing: u64,
    /// The first allocation that differs: event, recorded address, replayed address.
    pub first_disagreement: Option<(u32, u64, u64)>,
    /// The number of segments that the replay allocated when the recording did not.
    pub unscripted_segments: u64,
    /// The number of segments that the recording released and the replay could not.
    pub unreleased_segments: u64,
}

impl Verification {
    /// Returns the share of allocations at their recorded address, or 1 if there are none.
    #[must_use]
    pub fn agreement(&self) -> f64 {
        if self.allocations == 0 {
            1.0
        } else {
            self.agreeing as f64 / self.allocations as f64
        }
    }
}

/// Returns PyTorch's settings as a recording names them.
///
/// # Errors
/// Returns an error if the setting string cannot be parsed.
pub fn recorded_conf(settings: &Settings) -> Result<TorchConf, ReplayError> {
    let mut conf = match &settings.conf {
        Some(text) => TorchConf::parse(text)?,
        None => TorchConf::default(),
    };
    conf.max_split_size = settings.max_split_size.or(conf.max_split_size);
    if !settings.roundup_power2_divisions.is_empty() {
        conf.roundup_power2_divisions = RoundupDivisions::from_pairs(&settings.roundup_power2_divisions);
    }
    Ok(conf)
}

/// Replays a snapshot under its own settings with its own segment addresses.
///
/// # Errors
/// Returns an error if the recording has no addresses, or if it was made with expandable segments.
pub fn verify(trace: &Trace) -> Result<Verification, ReplayError> {
    let refuse = |why: &str| ReplayError::NotVerifiable {
        trace: trace.origin.name.clone(),
        why: why.to_owned(),
    };
    if !trace
        .events
        .iter()
        .any(|e| e.action == Action::Alloc && e.address != 0)
    {
        return Err(refuse(
            "it records no addresses; only PyTorch snapshots with a history do",
        ));
    }
    if trace.settings.expandable_segments == Some(true) || trace.initial_segments.iter().any(|s| s.expandable)
    {
        return Err(refuse(
            "it was made with expandable segments; only plain segments have recorded addresses",
        ));
    }
    let conf = recorded_conf(&trace.settings)?;
    let program = Program::as_recorded(trace, Selection::default())?;
    program.check(trace)?;
    let script = trace
        .events
        .iter()
        .filter(|e| e.action == Action::SegmentAlloc)
        .map(|e| (e.address, e.bytes));
    let mut replay = Replay {
        engine: Engine::new(
            Box::new(TorchNative::new(&conf)),
            Simulated::new().with_script(script),
        ),
        blocks: Blocks::new(&program),
        found: Verification::default(),
    };
    replay.adopt(first_state(trace, &program, &conf));
    for op in &program.ops {
        replay.step(op);
    }
    replay.found.unscripted_segments = replay.engine.source().unscripted();
    Ok(replay.found)
}

/// Replays a program under PyTorch's native allocator, from the segments and blocks that lived before the
/// recording, at their recorded addresses. The first settings are those of the recording, and the second are those
/// of the replay. Returns `None` if the recording starts without segments or contradicts itself.
pub(crate) fn run_from_recorded_state(
    trace: &Trace,
    program: &Program,
    [recorded, conf]: [&TorchConf; 2],
    device: Device,
) -> Option<Run> {
    if trace.initial_segments.is_empty() || !is_sound(trace) {
        return None;
    }
    let mut replay = Replay {
        engine: Engine::new(Box::new(TorchNative::new(conf)), device.source()),
        blocks: Blocks::new(program),
        found: Verification::default(),
    };
    replay.adopt(first_state(trace, program, recorded));
    Some(run_from(program, replay.engine, replay.blocks, true, &mut ()))
}

/// Returns whether the first state can be that of an allocator: at most [`MOST_HELD`] bytes, in plain segments
/// that contain all blocks and do not overlap.
fn is_sound(trace: &Trace) -> bool {
    let mut segments: Vec<_> = trace.initial_segments.iter().collect();
    segments.sort_by_key(|segment| segment.address);
    let (mut end, mut bytes) = (0, 0u64);
    for segment in &segments {
        if segment.expandable || segment.address < end {
            return false;
        }
        bytes = bytes.saturating_add(segment.bytes);
        end = segment.address.saturating_add(segment.bytes);
    }
    let inside = |block: &InitialBlock| {
        let at = segments.partition_point(|segment| segment.address <= block.address);
        let segment = at.checked_sub(1).and_then(|at| segments.get(at));
        segment.is_some_and(|of| block.address - of.address < of.bytes)
    };
    bytes <= MOST_HELD && trace.initial_blocks.iter().all(inside)
}

struct Replay {
    engine: Engine<Simulated>,
    blocks: Blocks,
    found: Verification,
}

impl Replay {
    /// Places the segments and blocks of the first state at their recorded addresses.
    fn adopt(&mut self, state: Vec<SizedSegment<'_>>) {
        for SizedSegment {
            segment,
            blocks,
            sized,
        } in state
        {
            let token = self.engine.source_mut().adopt(segment.address, segment.bytes);
            let adopted = self.engine.adopt(Adopted {
                segment: token,
                stream: Stream(u32::from(segment.stream)),
                group: Group(u32::from(segment.pool)),
                small: segment.small,
                blocks: &sized,
            });
            for (block, initial) in adopted.into_iter().flatten().zip(blocks) {
                self.blocks.hold(&Op::before(initial), block);
            }
        }
    }

    fn step(&mut self, op: &Op) {
        match op.kind {
            OpKind::Alloc if op.event == BEFORE => {}
            OpKind::Alloc => {
                self.found.allocations += 1;
                let Ok(block) = self.engine.allocate(request(op)) else {
                    return;
                };
                if block.address() == op.address {
                    self.found.agreeing += 1;
                } else if self.found.first_disagreement.is_none() {
                    self.found.first_disagreement = Some((op.event, op.address, block.address()));
                }
                self.blocks.hold(op, block);
            }
            OpKind::Free => {
                if let Some(block) = self.blocks.take(op) {
                    self.engine.free(block, &[]);
                }
            }
            OpKind::FreeRequested => self.blocks.request_free(op, &mut self.engine),
            OpKind::FreeCompleted => self.blocks.complete_free(op, &mut self.engine),
            OpKind::SegmentFree => {
                let released = self.engine.release_segment(op.address);
                self.found.unreleased_segments += u64::from(!released);
            }
        }
    }
}
