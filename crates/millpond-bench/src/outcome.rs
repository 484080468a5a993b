//! Runs one program under one policy on one simulated device.

use crate::measure::{Clock, Timer};
use crate::{Op, Program};
use millpond_engine::{Block, Engine, Meter, Request, Settings, Simulated, Stats, Stream, policies};

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The statistics of the engine.
    pub stats: Stats,
    /// The calls to the device.
    pub meter: Meter,
    /// Processor time of all calls.
    pub nanoseconds: f64,
    /// Whether every allocation was served.
    pub finished: bool,
}

/// Formats the number of allocations for one stall, or a dash without a stall.
#[must_use]
pub fn one_in(stalls: u64, allocations: u64) -> String {
    let rate = allocations.checked_div(stalls);
    rate.map_or_else(|| "-".to_owned(), |rate| rate.to_string())
}

/// Runs a program under a policy until its end, or until an allocation fails.
///
/// # Errors
/// Returns an error if no policy has this name.
pub fn run(
    program: &Program,
    policy: &str,
    settings: &Settings,
    device: Simulated,
) -> Result<Outcome, policies::UnknownPolicy> {
    let mut engine = Engine::new(policies::build(policy, settings)?, device);
    let mut slots: Vec<Option<Block>> = Vec::new();
    slots.resize_with(program.slots, || None);
    let timer = Timer::start(Clock::Thread);
    let mut finished = true;
    for op in &program.ops {
        match *op {
            Op::Alloc { slot, stream, bytes } => match engine.allocate(Request::new(bytes, Stream(stream))) {
                Ok(block) => slots[slot as usize] = Some(block),
                Err(_) => {
                    finished = false;
                    break;
                }
            },
            Op::Free { slot } => {
                if let Some(block) = slots[slot as usize].take() {
                    engine.free(block, &[]);
                }
            }
        }
    }
    Ok(Outcome {
        stats: *engine.stats(),
        meter: *engine.meter(),
        nanoseconds: timer.nanoseconds(),
        finished,
    })
}
