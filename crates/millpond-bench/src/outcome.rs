//! Runs one program under one policy on one simulated device.

use crate::{Policy, Program, Ranges};
use millpond_engine::{Engine, Meter, Settings, Simulated, Stats, policies};

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
    let engine = Engine::new(policies::build(policy, settings)?, device);
    let mut placed = Policy::new(engine, program.slots);
    let (nanoseconds, finished) = placed.run(program);
    Ok(Outcome {
        stats: *placed.engine.stats(),
        meter: *placed.engine.meter(),
        nanoseconds,
        finished,
    })
}
