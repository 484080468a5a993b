//! The result of a replay, in the shape of its JSON.
//!
//! Every figure except the times depends only on the file and the flags.

use crate::edit::AppliedEdit;
use crate::oom::{Failure, OutOfMemory};
use crate::options::Applied;
use crate::outcome::PolicyResult;
use crate::run::{seldom_stalls, stall_rate};
use serde::Serialize;

/// Version of the JSON. It increases when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 2;

/// The relative difference below which two peaks count as equal. Their cost then decides.
pub const ALIKE: f64 = 0.01;

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
    /// The explanation why the recorded program ran out of memory. If it did not, this explains a replay that
    /// runs out of memory on this device: that of the program's own allocator, or of the first failing policy
    /// if the own allocator was not replayed. `None` if no memory ran out.
    pub out_of_memory: Option<OutOfMemory>,
    /// One result for each policy, in the requested order.
    pub results: Vec<PolicyResult>,
    /// The answer in a few sentences, if requested.
    pub verdict: Option<Verdict>,
}

/// Returns the explanation of why memory ran out, and the verdict, as sentences.
pub(crate) fn answer(out_of_memory: Option<&OutOfMemory>, verdict: Option<&Verdict>) -> Vec<String> {
    let mut answer = out_of_memory.map_or_else(Vec::new, OutOfMemory::sentences);
    answer.extend(verdict.iter().flat_map(|verdict| verdict.sentences.clone()));
    answer
}

impl Report {
    /// Returns the answer as sentences: the explanation if memory ran out, and the verdict if there is one.
    #[must_use]
    pub fn answer(&self) -> Vec<String> {
        answer(self.out_of_memory.as_ref(), self.verdict.as_ref())
    }

    /// Returns the index of the policy to recommend. Candidates finish and make the host wait at no more than
    /// one in a hundred allocations. The one with the least peak wins. Among peaks that differ by less than
    /// [`ALIKE`], the one with the least driver time wins. Returns `None` if there is no candidate.
    #[must_use]
    pub fn best(&self) -> Option<usize> {
        let usable = |r: &PolicyResult| {
            r.first_failure.is_none() && seldom_stalls(r.stalls, stall_rate(r.stalls, self.allocations))
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
            let fit = r.fit.as_ref().filter(|fit| fit.seldom_stalls())?;
            Some((index, r.smallest_device_bytes?, fit.modelled_driver_ms))
        };
        let fits = self.results.iter().enumerate().filter_map(fit);
        let best = fits.min_by(|a, b| a.1.cmp(&b.1).then(a.2.total_cmp(&b.2)));
        best.map(|(index, ..)| index)
    }
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

/// The answer to a replay. Each figure in the sentences comes from a replay whose result is in this value, or
/// from the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// Two to four sentences.
    pub sentences: Vec<String>,
    /// The program's own allocator.
    pub own: Choice,
    /// Whether the recording or an option names this allocator. Otherwise it is the usual one of programs
    /// with recordings of this format.
    pub own_is_known: bool,
    /// The settings or the allocator to use instead. `None` if nothing that the program can use needs at
    /// least one per cent less memory.
    pub better: Option<Choice>,
}

/// An allocator with settings, and the memory that the program needs with it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The name of the allocator in plain words.
    pub name: String,
    /// The line to paste, or the call to make. `None` for the program's own allocator.
    pub apply: Option<String>,
    /// The replay on the device. `smallest_device_bytes` is the memory that the program needs. It is `None`
    /// if the program finishes on no device.
    pub result: PolicyResult,
    /// The smallest card on which a replay finishes. `None` for recordings of host memory.
    pub card: Option<FittingCard>,
    /// The failure on a device that is one page smaller than the smallest device.
    pub below: Option<Failure>,
}

/// A card on which a replay finishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FittingCard {
    /// The name of the preset.
    pub name: String,
    /// The bytes that it leaves for the program.
    pub bytes: u64,
}

impl Choice {
    /// Returns the bytes of device memory that the program needs.
    #[must_use]
    pub fn needs(&self) -> Option<u64> {
        self.result.smallest_device_bytes
    }
}

#[cfg(test)]
mod tests {
    use crate::outcome::Fit;
    use crate::{Options, replay};
    use millpond_trace::{ReadOptions, read_bytes};

    #[test]
    fn a_policy_that_stalls_at_every_allocation_is_not_the_best_fit() {
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
                stalls: 2,
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
