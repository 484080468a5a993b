//! Runs one program under one policy on one simulated device.

use crate::{Policy, Program, Ranges};
use millpond_engine::{Costs, Engine, Meter, Settings, Simulated, Stats, policies};

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The statistics of the engine.
    pub stats: Stats,
    /// The calls to the device.
    pub meter: Meter,
    /// The calls to the device and the stalls up to the end of the first tenth of the program.
    pub early: (Meter, u64),
    /// Whether every allocation succeeded.
    pub finished: bool,
}

impl Outcome {
    /// Returns the peak of reserved bytes divided by the peak of requested bytes.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        self.stats.reserved.peak as f64 / self.stats.requested.peak as f64
    }

    /// Returns the modelled milliseconds of the creation of handles, and those of everything else after the first tenth of the
    /// program.
    #[must_use]
    pub fn creation_and_rest(&self, costs: &Costs) -> (f64, f64) {
        let created = |meter: &Meter| {
            let mut created = Meter::default();
            created.calls.create = meter.calls.create;
            created.handles.create = meter.handles.create;
            created.pages.create = meter.pages.create;
            costs.milliseconds(&created, 0)
        };
        let (early, stalls) = &self.early;
        let creation = created(&self.meter);
        let rest = costs.milliseconds(&self.meter, self.stats.stalls) - creation;
        let before = costs.milliseconds(early, *stalls) - created(early);
        (creation, rest - before)
    }
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
    let (first, rest) = program.ops.split_at(program.ops.len() / 10);
    let (_, started) = placed.run(first);
    let early = (*placed.engine.meter(), placed.engine.stats().stalls);
    let finished = started && placed.run(rest).1;
    Ok(Outcome {
        stats: *placed.engine.stats(),
        meter: *placed.engine.meter(),
        early,
        finished,
    })
}
