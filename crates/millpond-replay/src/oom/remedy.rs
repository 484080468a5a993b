//! Finds the settings and the policies that would have served a refused request. Each is replayed on a device of the
//! same size.

use super::explain::Own;
use crate::edit;
use crate::family::Family;
use crate::parallel::Threads;
use crate::program::{Program, Selection};
use crate::run::{Device, Run, run, seldom_stalls, stall_rate};
use crate::{parallel, verify};
use millpond_engine::{Policy, Settings, TorchBackend, TorchConf, policies};
use millpond_trace::Trace;
use serde::Serialize;
use std::cmp::Reverse;

/// The most candidates that are replayed.
const MOST_REPLAYS: usize = 16;

/// The most calls of all replays of candidates together.
const MOST_CALLS: usize = 16_000_000;

/// The most remedies of each kind.
const MOST_REMEDIES: usize = 3;

/// The spare bytes of two remedies count as equal if they differ by less than one part in this many of the device.
const ALIKE: u64 = 50;

/// How a remedy is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RemedyKind {
    /// A setting of the allocator in use.
    Setting,
    /// A change of the program, under the allocator in use.
    Change,
    /// Another allocator.
    Policy,
}

/// A setting, a change or a policy that serves a refused request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// How it is applied.
    pub kind: RemedyKind,
    /// The line for the environment, the change in words, or the name of the policy.
    pub text: String,
    /// The changes as `--edit` takes them. Empty for settings and policies.
    pub edits: Vec<String>,
    /// The policy that was replayed.
    pub policy: String,
    /// How faithfully the policy reproduces its original.
    pub fidelity: String,
    /// Bytes of the device that no block used when the program held the most.
    pub spare_bytes: u64,
    /// The most bytes held from the device.
    pub peak_reserved_bytes: u64,
    /// The number of allocations and frees in which the host waited for the device.
    pub stalls: u64,
}

impl Remedy {
    /// Returns whether the remedy leaves out a group that grows from step to step. Other changes only delay the error.
    pub(super) fn is_of_growing(&self) -> bool {
        self.edits.iter().any(|edit| edit.starts_with("without="))
    }
}

/// The result of all replays.
pub(super) struct Proved {
    /// Whether the allocator in use refuses the request in a replay too.
    pub(super) reproduced: bool,
    /// The number of settings, policies and changes that were replayed.
    pub(super) tried: u32,
    /// The candidates that serve the request, the best first.
    pub(super) remedies: Vec<Remedy>,
}

/// The program and the device on which candidates are tried.
pub(super) struct Trials<'a> {
    pub(super) trace: &'a Trace,
    /// The program, with the refused requests.
    pub(super) program: &'a Program,
    pub(super) device: Device,
    /// The events and the streams of the program.
    pub(super) selection: Selection,
    /// The allocator that refused the request.
    pub(super) own: &'a Own,
    /// The threads to use.
    pub(super) threads: Threads,
    /// The index of the request that the recorded allocator refused. `None` if a replay refused it. That replay
    /// is not repeated.
    pub(super) request: Option<usize>,
    /// Whether the program holds more than the device has, so that no allocator can serve the request.
    pub(super) is_too_large: bool,
}

struct Candidate {
    kind: RemedyKind,
    text: String,
    policy: &'static str,
    settings: Settings,
}

impl Trials<'_> {
    pub(super) fn prove(&self) -> Proved {
        let reproduced = self.request.is_none_or(|request| self.is_refused(request));
        if !reproduced {
            return Proved {
                reproduced,
                tried: 0,
                remedies: Vec::new(),
            };
        }
        let candidates = match self.is_too_large {
            true => Vec::new(),
            false => self.candidates(),
        };
        let (changes, changed) = self.changes();
        let results = parallel::map(&self.threads, candidates.len(), |index| {
            Some(self.serves(&candidates[index]))
        });
        let mut remedies: Vec<Remedy> = results.into_iter().flatten().chain(changes).collect();
        // The sort is stable. So of equal remedies, the one that was tried first stays first. It is simpler, or
        // its replay is exact.
        let step = (self.device.bytes.unwrap_or(u64::MAX) / ALIKE).max(1);
        remedies.sort_by_key(|remedy| {
            let needs_devices = edit::need_devices(remedy.edits.iter().map(String::as_str));
            let spare = remedy.spare_bytes / step;
            (
                remedy.kind,
                !remedy.is_of_growing(),
                needs_devices,
                Reverse(spare),
            )
        });
        Proved {
            reproduced,
            tried: (candidates.len() + changed) as u32,
            remedies: the_best(remedies),
        }
    }

    /// Returns whether the allocator in use refuses the request, or an earlier one.
    fn is_refused(&self, request: usize) -> bool {
        let outcome = self.replay(&self.own.policy, &self.own.settings);
        outcome.is_some_and(|run| run.stop.is_some_and(|stop| stop.op <= request))
    }

    /// Replays the program under a policy. PyTorch's native allocator starts from the recorded state, if there is
    /// one, because the holes of that state are part of the reason. Returns `None` if the policy does not exist.
    fn replay(&self, policy: &str, settings: &Settings) -> Option<Run> {
        let confs = [&self.own.settings.torch, &settings.torch];
        let is_late = self.request.is_some() && !self.trace.initial_segments.is_empty();
        if policy == "torch-native" && is_late && confs[0].max_split_size.is_none() {
            // Under a limit for splits, the allocator would never have made the recorded state.
            if confs[1].max_split_size.is_some() {
                return None;
            }
            let outcome = verify::run_from_recorded_state(self.trace, self.program, confs, self.device);
            if outcome.is_some() {
                return outcome;
            }
        }
        self.replay_from_start(self.program, policy, settings)
    }

    /// Replays a program on the device, which has no segments at the start.
    pub(super) fn replay_from_start(
        &self,
        program: &Program,
        policy: &str,
        settings: &Settings,
    ) -> Option<Run> {
        let policy = policies::build(policy, settings).ok()?;
        Some(run(program, policy, self.device.source(), &mut ()))
    }

    /// Returns the most candidates of a kind to replay.
    pub(super) fn most_replays(program: &Program) -> usize {
        MOST_REPLAYS.min((MOST_CALLS / program.ops.len().max(1)).max(2))
    }

    /// Returns whether a run finished and did not make the host wait too often.
    pub(super) fn is_useful(&self, program: &Program, run: &Run) -> bool {
        let stalls = run.stats.stalls;
        run.stop.is_none() && seldom_stalls(stalls, stall_rate(stalls, program.requests))
    }

    /// Returns the settings and the policies in the order in which they are tried.
    fn candidates(&self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let mut policies: Vec<&'static str> = vec!["millpond"];
        match self.own.policy.as_str() {
            "torch-native" | "torch-expandable" => {
                candidates.extend(self.settings(Family::Torch));
                let second = candidates.len().min(1);
                candidates.splice(second..second, self.driver());
            }
            "millpond" | "planned" => {
                candidates.extend(self.settings(Family::Millpond));
                let relocate = self.setting(Family::Millpond, "relocate:on");
                let second = candidates.len().min(1);
                candidates.splice(second..second, relocate);
                policies = vec!["millpond", "planned"];
            }
            _ => policies.extend(["rmm-arena", "cuda-async", "torch-expandable"]),
        }
        let others = policies.into_iter().filter(|name| *name != self.own.policy);
        let others = others.map(|policy| Candidate {
            kind: RemedyKind::Policy,
            text: policy.to_owned(),
            policy,
            settings: Settings::default(),
        });
        candidates.splice(0..0, others);
        let runs = |candidate: &Candidate| {
            let policy = policies::build(candidate.policy, &candidate.settings);
            policy.is_ok_and(|policy| self.device.paged || !policy.needs_pages())
        };
        candidates.retain(runs);
        candidates.truncate(Self::most_replays(self.program));
        candidates
    }

    /// Returns the setting with which PyTorch uses the driver's allocator. Returns `None` for a program with private pools: under this
    /// setting `MemPool` is refused, and the memory of a CUDA graph belongs to the graph, which no replay shows.
    fn driver(&self) -> Option<Candidate> {
        if self.program.ops.iter().any(|op| op.pool != 0) {
            return None;
        }
        let conf = TorchConf {
            backend: TorchBackend::CudaMallocAsync,
            ..TorchConf::default()
        };
        Some(Candidate {
            kind: RemedyKind::Setting,
            text: format!("{}=backend:cudaMallocAsync", Family::Torch.variable()),
            policy: "cuda-async",
            settings: Settings {
                torch: conf,
                ..Settings::default()
            },
        })
    }

    /// Returns the settings of a family to try, without those in use. Single settings come first.
    fn settings(&self, family: Family) -> Vec<Candidate> {
        let points = family.points(self.program, self.device);
        let points = points.iter().filter_map(|conf| self.setting(family, conf));
        points.collect()
    }

    /// Returns settings of a family to try, unless they cannot be parsed or are in use.
    fn setting(&self, family: Family, conf: &str) -> Option<Candidate> {
        let (policy, settings) = family.settings(conf)?;
        let is_own = policy == self.own.policy && settings == self.own.settings;
        (!is_own).then(|| Candidate {
            kind: RemedyKind::Setting,
            text: format!("{}={conf}", family.variable()),
            policy,
            settings,
        })
    }

    /// Replays a candidate. Returns `None` if it does not finish, or if it makes the host wait too often to be
    /// recommended.
    fn serves(&self, candidate: &Candidate) -> Option<Remedy> {
        let policy = policies::build(candidate.policy, &candidate.settings).ok()?;
        let run = self.replay(candidate.policy, &candidate.settings)?;
        let is_useful = self.is_useful(self.program, &run);
        is_useful.then(|| {
            self.remedy(
                candidate.kind,
                candidate.text.clone(),
                Vec::new(),
                policy.as_ref(),
                &run,
            )
        })
    }

    /// Returns a remedy with the figures of its run.
    pub(super) fn remedy(
        &self,
        kind: RemedyKind,
        text: String,
        edits: Vec<String>,
        policy: &dyn Policy,
        run: &Run,
    ) -> Remedy {
        let stats = &run.stats;
        Remedy {
            kind,
            text,
            edits,
            policy: policy.name().to_owned(),
            fidelity: policy.fidelity().as_str().to_owned(),
            spare_bytes: self
                .device
                .bytes
                .unwrap_or(u64::MAX)
                .saturating_sub(stats.active.peak),
            peak_reserved_bytes: stats.reserved.peak,
            stalls: stats.stalls,
        }
    }
}

/// Returns a few remedies of each kind. A setting that only adds something to another one, or only has another
/// value, is left out.
fn the_best(remedies: Vec<Remedy>) -> Vec<Remedy> {
    let keys = |text: &str| -> Vec<String> {
        let conf = text.split_once('=').map_or(text, |(_, conf)| conf);
        let key = |entry: &str| entry.split(':').next().unwrap_or(entry).to_owned();
        conf.split(',').map(key).collect()
    };
    let mut kept: Vec<Remedy> = Vec::new();
    for remedy in remedies {
        let own = keys(&remedy.text);
        let adds = |other: &Remedy| {
            other.kind == remedy.kind
                && remedy.edits.is_empty()
                && keys(&other.text).iter().all(|key| own.contains(key))
        };
        let of_kind = kept.iter().filter(|other| other.kind == remedy.kind).count();
        if of_kind < MOST_REMEDIES && !kept.iter().any(adds) {
            kept.push(remedy);
        }
    }
    kept
}
