//! The result of one policy, in the shape of its JSON.
//!
//! Every figure except the times depends only on the file and the flags.

use crate::oom::Failure;
use crate::run::{Run, seldom_stalls, stall_rate};
use crate::steps::{Solved, StepResult};
use millpond_engine::Costs;
use serde::{Serialize, Serializer};

pub use millpond_engine::Calls as DriverCalls;

/// The result of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyResult {
    /// The policy.
    pub policy: String,
    /// Settings of this result alone, as they are written in the environment. Empty if the result has only the
    /// settings of the report.
    pub conf: String,
    /// How faithfully the policy reproduces its original.
    pub fidelity: String,
    /// The most bytes held from the device.
    pub peak_reserved_bytes: u64,
    /// The most bytes in blocks that the program held.
    pub peak_allocated_bytes: u64,
    /// Peak reserved bytes over peak requested bytes. If the policy ran out of memory, both are taken up to
    /// that point, so the figure cannot be compared with that of another policy.
    pub overhead: f64,
    /// The share of allocations that were served without calling the device.
    pub hit_rate: f64,
    /// The least device memory on which the program finishes. Present only if requested.
    pub smallest_device_bytes: Option<u64>,
    /// The cost of running on that device.
    pub fit: Option<Fit>,
    /// Calls to the driver by kind.
    #[serde(serialize_with = "by_name")]
    pub driver_calls: DriverCalls,
    /// The number of allocations and frees in which the host waited for the device.
    pub stalls: u64,
    /// Bytes of pages that were moved, or released and allocated again.
    pub moved_bytes: u64,
    /// The number of page handles created, mapped, made accessible, unmapped and released.
    pub handle_operations: u64,
    /// The number of reuses and moves across streams that made one stream wait for another.
    pub cross_stream_waits: u64,
    /// Modelled host time of all driver calls and stalls.
    pub modelled_driver_ms: f64,
    /// Host time of the policy itself, in nanoseconds per event. It varies from run to run.
    pub ns_per_event: f64,
    /// The cost of each step, if the program repeats one.
    pub steps: Vec<StepResult>,
    /// The plans that were solved for the policy. `ns_per_event` does not include the time to solve them.
    pub plans: Vec<Solved>,
    /// The request at which the policy ran out of memory.
    pub first_failure: Option<Failure>,
}

impl PolicyResult {
    /// Returns the policy, and the settings of this result alone if there are any. No two results of a report have the
    /// same label.
    #[must_use]
    pub fn label(&self) -> String {
        match self.conf.as_str() {
            "" => self.policy.clone(),
            conf => format!("{} {conf}", self.policy),
        }
    }
}

/// The cost of running on the smallest device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The number of stalls on that device.
    pub stalls: u64,
    /// The stalls on that device over its allocations.
    pub stalls_per_allocation: f64,
    /// Modelled host time of all driver calls and stalls on that device.
    pub modelled_driver_ms: f64,
    /// Bytes of pages moved on that device.
    pub moved_bytes: u64,
}

impl Fit {
    /// Returns the cost of a run.
    pub(crate) fn new(run: &Run, costs: &Costs) -> Self {
        let stats = &run.stats;
        Self {
            stalls: stats.stalls,
            stalls_per_allocation: stall_rate(stats.stalls, stats.allocations),
            modelled_driver_ms: costs.milliseconds(&run.meter, stats.stalls),
            moved_bytes: run.meter.moved_bytes,
        }
    }

    /// Returns whether the policy stalls at no more than one in a hundred allocations, or at most one time.
    pub(crate) fn seldom_stalls(&self) -> bool {
        seldom_stalls(self.stalls, self.stalls_per_allocation)
    }
}

fn by_name<S: Serializer>(calls: &DriverCalls, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(calls.by_name())
}
