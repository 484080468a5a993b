//! The result of a replay, in the shape of its JSON.
//!
//! Every figure except the times depends only on the file and the flags.

use crate::edit::AppliedEdit;
use crate::oom::{Cause, Holder, OutOfMemory};
use crate::steps::{Solved, StepResult};
use crate::verdict::Verdict;
use serde::{Serialize, Serializer};

pub use millpond_engine::Calls as DriverCalls;

/// Version of the JSON. It increases when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 2;

/// The relative difference below which two peaks count as equal. Their cost then decides.
pub const ALIKE: f64 = 0.01;

/// The most stalls for each allocation of a policy that is recommended for a device.
const MOST_STALLS: f64 = 0.01;

/// The replays of one recording on one device, one for each requested policy.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Base name of the recording.
    pub trace: String,
    /// The device ordinal in the recorded process, or -1 for the host.
    pub device: i32,
    /// Events of the recording that were replayed.
    pub events: u64,
    /// The number of allocations, including blocks that lived before the recording or the window.
    pub allocations: u64,
    /// The number of these that stand for such blocks.
    pub initial_blocks: u64,
    /// The most bytes that were requested and held at once.
    pub peak_requested_bytes: u64,
    /// The behaviour of the recorded allocator, if the recording contains it.
    pub recorded: Option<Recorded>,
    /// The settings that were applied, with the source of each.
    pub settings: Vec<Applied>,
    /// The edits that changed the recorded program, in the order in which they were applied.
    pub edits: Vec<AppliedEdit>,
    /// The limits of the conclusions, one sentence each.
    pub cautions: Vec<String>,
    /// Why the recorded program ran out of memory, or else why the policy in use does on this device. `None` if
    /// neither happens.
    pub out_of_memory: Option<OutOfMemory>,
    /// One result for each policy, in the requested order.
    pub results: Vec<PolicyResult>,
    /// The answer in a few sentences, if requested.
    pub verdict: Option<Verdict>,
}

impl Report {
    /// Returns the index of the policy to recommend. Candidates finish and make the host wait at no more than
    /// one in a hundred allocations. The one with the least peak wins. Among peaks that differ by less than
    /// [`ALIKE`], the one with the least driver time wins. Returns `None` if there is no candidate.
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

    /// Returns the index of the policy that finishes on the smallest device, among those that stall at no more
    /// than one in a hundred allocations there. Among equal devices, the one with the least driver time wins.
    /// Returns `None` if no smallest devices were found, or if every policy stalls more often.
    #[must_use]
    pub fn best_fit(&self) -> Option<usize> {
        let fit = |(index, r): (usize, &PolicyResult)| {
            let fit = r
                .fit
                .as_ref()
                .filter(|fit| fit.stalls_per_allocation <= MOST_STALLS)?;
            Some((index, r.smallest_device_bytes?, fit.modelled_driver_ms))
        };
        let fits = self.results.iter().enumerate().filter_map(fit);
        let best = fits.min_by(|a, b| a.1.cmp(&b.1).then(a.2.total_cmp(&b.2)));
        best.map(|(index, ..)| index)
    }
}

/// Settings that were applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The policies that they configure.
    pub policies: Vec<String>,
    /// The settings as the user wrote them.
    pub settings: String,
    /// The option or the environment variable that contained them.
    pub from: &'static str,
}

/// The behaviour of the recorded allocator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recorded {
    /// The policy that it followed, by its name in this crate.
    pub policy: String,
    /// The most bytes that it held from the driver.
    pub peak_reserved_bytes: u64,
    /// The share of allocations for which a replay gives the recorded address. Present only after a
    /// verification.
    pub address_agreement: Option<f64>,
}

/// The result of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyResult {
    /// The policy.
    pub policy: String,
    /// Settings of this result alone, as they are written in the environment. Empty if there are none beside
    /// those of the report.
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
    /// The plans that were solved for the policy. The time above does not include them.
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

fn by_name<S: Serializer>(calls: &DriverCalls, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(calls.by_name())
}

/// The request at which a policy ran out of memory, and the reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// Position of the event in the recording. `None` for a block that lived before it.
    pub event: Option<u32>,
    /// Requested bytes.
    pub bytes: u64,
    /// The stream, as recorded.
    pub stream: u64,
    /// The tag or stack of the allocation.
    pub tag: String,
    /// Bytes requested and held at that moment.
    pub held_bytes: u64,
    /// Bytes that the device still had free.
    pub free_bytes: u64,
    /// The policy's largest contiguous free block.
    pub largest_hole_bytes: u64,
    /// Bytes that the policy held from the device.
    pub reserved_bytes: u64,
    /// Bytes that the policy held and that no block used.
    pub cached_bytes: u64,
    /// The groups that held the most, the largest first.
    pub holders: Vec<Holder>,
    /// The reason.
    pub cause: Cause,
    /// The reason in one sentence, with its figures.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, replay};
    use millpond_trace::{ReadOptions, read_bytes};

    #[test]
    fn a_policy_that_stalls_at_every_allocation_is_no_best_fit() {
        let csv = b"time_us,action,id,bytes,stream,tag\n0,alloc,1,3000000,0,a\n1,free,1,3000000,0,\n";
        let recording = read_bytes(csv, "tiny", &ReadOptions::default()).expect("read");
        let options = Options {
            policies: vec![
                "torch-native".into(),
                "torch-expandable".into(),
                "millpond".into(),
            ],
            ..Options::default()
        };
        let mut report = replay(&recording.traces[0], &options, &|_, _| {})
            .expect("replayed")
            .report;
        assert_eq!(report.best_fit(), None, "no smallest device was looked for");
        let fits = [(10, 1.0, 5.0), (20, 0.01, 9.0), (20, 0.0, 7.0)];
        for (result, (bytes, stalls_per_allocation, modelled_driver_ms)) in
            report.results.iter_mut().zip(fits)
        {
            result.smallest_device_bytes = Some(bytes);
            result.fit = Some(Fit {
                stalls: 1,
                stalls_per_allocation,
                modelled_driver_ms,
                moved_bytes: 0,
            });
        }
        assert_eq!(report.best_fit(), Some(2));
        report.results.truncate(1);
        assert_eq!(report.best_fit(), None);
    }
}
