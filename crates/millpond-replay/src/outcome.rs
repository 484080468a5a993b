//! The answer of a replay, in the shape of its JSON.
//!
//! Every figure but the times is a function of the file and the flags alone.

use crate::steps::{Solved, StepResult};
use serde::Serialize;

/// Version of the JSON; grows when a key changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// Peaks this close together, as a share, are told apart by what they cost.
pub const ALIKE: f64 = 0.01;

/// One recording on one device, under every policy asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Base name of the recording.
    pub trace: String,
    /// Device ordinal in the recorded process; -1 for the host.
    pub device: i32,
    /// Events of the recording that were replayed.
    pub events: u64,
    /// Allocations made, blocks that lived before the recording or the window included.
    pub allocations: u64,
    /// Of these, how many stand for such blocks.
    pub initial_blocks: u64,
    /// The most bytes requested and held at once.
    pub peak_requested_bytes: u64,
    /// What the recorded allocator itself did, where the recording tells.
    pub recorded: Option<Recorded>,
    /// The settings that were applied, and where each came from.
    pub settings: Vec<Applied>,
    /// What limits the conclusions, a sentence each.
    pub cautions: Vec<String>,
    /// One for each policy, in the order asked for.
    pub results: Vec<PolicyResult>,
    /// What to do, a sentence each.
    pub advice: Vec<String>,
}

impl Report {
    /// Index of the policy to recommend: of those that finish without making the host wait at more than one
    /// in a hundred allocations, the one with the least peak; among peaks that differ by less than
    /// [`ALIKE`], the one with the least driver time. None where no policy does.
    #[must_use]
    pub fn best(&self) -> Option<usize> {
        let usable = |r: &PolicyResult| {
            r.first_failure.is_none() && r.stalls.saturating_mul(100) <= self.allocations.max(100)
        };
        let candidates = || self.results.iter().enumerate().filter(|(_, r)| usable(r));
        let least = candidates().map(|(_, r)| r.peak_reserved_bytes).min()?;
        let alike = |r: &PolicyResult| r.peak_reserved_bytes as f64 <= least as f64 * (1.0 + ALIKE);
        let cheapest = candidates().filter(|(_, r)| alike(r));
        let cheapest =
            cheapest.min_by(|(_, a), (_, b)| a.modelled_driver_ms.total_cmp(&b.modelled_driver_ms));
        cheapest.map(|(index, _)| index)
    }
}

/// Settings that were applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The policies they configure.
    pub policies: Vec<String>,
    /// The settings as they were written.
    pub settings: String,
    /// The option or the environment variable that said so.
    pub from: &'static str,
}

/// What the recorded allocator itself did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recorded {
    /// The policy it followed, by its name here.
    pub policy: String,
    /// The most it held from the driver.
    pub peak_reserved_bytes: u64,
    /// Share of allocations for which a replay gives the recorded address; only after a verification.
    pub address_agreement: Option<f64>,
}

/// One policy's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyResult {
    /// The policy.
    pub policy: String,
    /// How true it is to its original.
    pub fidelity: String,
    /// The most bytes held from the device.
    pub peak_reserved_bytes: u64,
    /// The most bytes of blocks in the program's hands.
    pub peak_allocated_bytes: u64,
    /// Peak reserved over peak requested; of a policy that ran out of memory both as far as it came, so that it
    /// compares with no other.
    pub overhead: f64,
    /// Allocations served without calling the device over allocations.
    pub hit_rate: f64,
    /// The least device memory on which the program finishes; only if asked for.
    pub smallest_device_bytes: Option<u64>,
    /// What that costs.
    pub fit: Option<Fit>,
    /// Calls to the driver by kind.
    pub driver_calls: DriverCalls,
    /// Allocations and frees in which the host waited for the device.
    pub stalls: u64,
    /// Bytes of pages moved, or given back and taken again.
    pub moved_bytes: u64,
    /// Page handles created, mapped, made accessible, unmapped and released.
    pub handle_operations: u64,
    /// Reuses and moves across streams that made one wait for another.
    pub cross_stream_waits: u64,
    /// Modelled host time of all driver calls and stalls.
    pub modelled_driver_ms: f64,
    /// Host time of the policy itself; varies from run to run.
    pub ns_per_event: f64,
    /// What each step cost, if the program repeats one.
    pub steps: Vec<StepResult>,
    /// The plans solved for it, apart from the time above.
    pub plans: Vec<Solved>,
    /// The request at which it ran out of memory.
    pub first_failure: Option<Failure>,
}

/// The cost of running on the smallest device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Stalls there.
    pub stalls: u64,
    /// Stalls over allocations there.
    pub stalls_per_allocation: f64,
    /// Modelled host time of all driver calls and stalls there.
    pub modelled_driver_ms: f64,
    /// Bytes of pages moved there.
    pub moved_bytes: u64,
}

/// Driver calls by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DriverCalls {
    /// Plain allocations.
    pub malloc: u64,
    /// Plain frees.
    pub free: u64,
    /// Handles created.
    pub create: u64,
    /// Handles mapped.
    pub map: u64,
    /// Ranges made accessible.
    pub set_access: u64,
    /// Handles unmapped.
    pub unmap: u64,
    /// Handles released.
    pub release: u64,
    /// Address ranges reserved.
    pub reserve: u64,
    /// Events recorded.
    pub event_record: u64,
    /// Waits for events on the device.
    pub event_wait: u64,
}

impl From<&millpond_engine::Calls> for DriverCalls {
    fn from(calls: &millpond_engine::Calls) -> Self {
        Self {
            malloc: calls.malloc,
            free: calls.free,
            create: calls.create,
            map: calls.map,
            set_access: calls.set_access,
            unmap: calls.unmap,
            release: calls.release,
            reserve: calls.reserve,
            event_record: calls.event_record,
            event_wait: calls.event_wait,
        }
    }
}

/// The request at which a policy ran out of memory, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// Position of the event in the recording; none for a block that lived before it.
    pub event: Option<u32>,
    /// Bytes asked for.
    pub bytes: u64,
    /// The stream, as recorded.
    pub stream: u64,
    /// The tag or stack of the allocation.
    pub tag: String,
    /// Bytes requested and held at that moment.
    pub held_bytes: u64,
    /// Bytes the device still had.
    pub free_bytes: u64,
    /// The policy's largest contiguous free block.
    pub largest_hole_bytes: u64,
    /// Bytes the policy held and no block used.
    pub cached_bytes: u64,
    /// Who held the most, largest first.
    pub holders: Vec<Holder>,
    /// What would have made it fit, a sentence.
    pub remedy: String,
}

/// Bytes held under one tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The tag, layer numbers and innermost frames left out.
    pub tag: String,
    /// Bytes requested and held.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}
