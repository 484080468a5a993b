//! A recording under several policies: the whole of `millpond replay`, but for printing.

use crate::advice::advise;
use crate::error::ReplayError;
use crate::failure::explain;
use crate::fit::smallest_device;
use crate::outcome::{Applied, Fit, PolicyResult, Recorded, Report, SCHEMA};
use crate::placement::{Placement, PlacementRecorder};
use crate::program::{Program, Selection};
use crate::run::{Device, Run, run};
use crate::steps::{StepClock, Steps, Threaded, occurs};
use crate::ticks::{TickEvery, Ticks};
use crate::verify::verify;
use millpond_engine::{ConfError, Costs, Policy, Settings, Simulated, TorchBackend, display_size, policies};
use millpond_trace::{Caution, Trace};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What to replay, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of the policies, in the order of the report.
    pub policies: Vec<String>,
    /// Settings of the policies.
    pub settings: Settings,
    /// Where the settings came from, for the report.
    pub applied: Vec<Applied>,
    /// The device.
    pub device: Device,
    /// Which events, and which streams.
    pub selection: Selection,
    /// Find the smallest device for each policy.
    pub fit: bool,
    /// Hold a replay under the recorded settings against the recorded addresses.
    pub verify: bool,
    /// Keep where every block lay.
    pub placements: bool,
    /// What driver calls cost.
    pub costs: Costs,
    /// When time passes for the policies; none for never.
    pub tick: Option<TickEvery>,
    /// Threads to use; 0 means as many as the machine has.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policies: policies::names().map(str::to_owned).collect(),
            settings: Settings::default(),
            applied: Vec::new(),
            device: Device::UNLIMITED,
            selection: Selection::default(),
            fit: false,
            verify: false,
            placements: false,
            costs: Costs::default(),
            tick: None,
            threads: 0,
        }
    }
}

/// A report, and what a picture of it needs.
#[derive(Debug)]
pub struct Replayed {
    /// The answer.
    pub report: Report,
    /// Where every block lay, by policy, if it was asked for.
    pub placements: Vec<Placement>,
}

/// Replays one recording under every policy asked for, several at a time.
///
/// `progress` is called with (done, all) in thousandths of a policy, whenever a replay of one is done.
///
/// # Errors
/// When the recording holds nothing to replay, a policy is unknown, a setting contradicts it, or the plan is
/// of another program.
pub fn replay(
    trace: &Trace,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Replayed, ReplayError> {
    let program = Program::new(trace, options.selection)?;
    for name in &options.policies {
        check_settings(name, &options.settings)?;
    }
    if let Some(plan) = &options.settings.plan
        && !occurs(&program, &plan.step)
    {
        return Err(ReplayError::PlanElsewhere {
            trace: trace.origin.name.clone(),
            allocations: plan.step.period(),
        });
    }
    let recorded = recorded(trace, options.verify)?;
    let (names, pageless) = runnable(options)?;
    let steps = Steps::find(&program);
    let ticks = Ticks::new(options.tick, steps.as_ref(), &trace.origin.name)?;
    let count = names.len();
    let outcomes: Vec<Mutex<Option<(PolicyResult, Placement)>>> =
        (0..count).map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let tally = Tally::new(count, progress);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(name) = names.get(index) else {
                return;
            };
            let outcome = replay_one(
                trace,
                &program,
                (steps.as_ref(), ticks),
                name,
                options,
                &|to_come| {
                    tally.set(index, to_come);
                },
            );
            *outcomes[index].lock().unwrap_or_else(PoisonError::into_inner) = outcome.ok();
            tally.set(index, 0);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads(options.threads).min(count) {
            scope.spawn(work);
        }
        work();
    });
    let outcomes = outcomes
        .into_iter()
        .filter_map(|o| o.into_inner().unwrap_or_else(PoisonError::into_inner));
    let (results, placements): (Vec<_>, Vec<_>) = outcomes.unzip();
    let mut report = Report {
        schema: SCHEMA,
        trace: trace.origin.name.clone(),
        device: trace.origin.device,
        events: program.events,
        allocations: program.requests,
        initial_blocks: program.initial_blocks,
        peak_requested_bytes: program.peak_requested,
        recorded,
        settings: options.applied.clone(),
        cautions: cautions(trace, &program, options, &pageless),
        results,
        advice: Vec::new(),
    };
    report.advice = advise(&report, trace, options);
    Ok(Replayed { report, placements })
}

/// The policies that can run on the device, and those that cannot because they need one that maps pages.
///
/// # Errors
/// When none is left.
fn runnable(options: &Options) -> Result<(Vec<&str>, Vec<&str>), ReplayError> {
    let (mut names, mut pageless) = (Vec::new(), Vec::new());
    for name in &options.policies {
        let needs_pages = policies::build(name, &options.settings)?.needs_pages();
        let list = if needs_pages && !options.device.paged {
            &mut pageless
        } else {
            &mut names
        };
        list.push(name.as_str());
    }
    if names.is_empty() && !pageless.is_empty() {
        return Err(ReplayError::NeedsPages {
            policies: pageless.join(" and "),
        });
    }
    Ok((names, pageless))
}

fn threads(wanted: usize) -> usize {
    if wanted > 0 {
        wanted
    } else {
        std::thread::available_parallelism().map_or(1, usize::from)
    }
}

/// How far all policies are, for whoever watches.
struct Tally<'a> {
    policies: Vec<Share>,
    progress: &'a (dyn Fn(usize, usize) + Sync),
}

/// How far one policy is.
#[derive(Default)]
struct Share {
    /// The most replays that were to come after its first.
    most: AtomicUsize,
    /// Thousandths done.
    done: AtomicUsize,
}

impl<'a> Tally<'a> {
    const WHOLE: usize = 1000;

    fn new(policies: usize, progress: &'a (dyn Fn(usize, usize) + Sync)) -> Self {
        Self {
            policies: (0..policies).map(|_| Share::default()).collect(),
            progress,
        }
    }

    /// One policy has so many replays before it. It never goes back, though a search may turn out longer.
    fn set(&self, policy: usize, to_come: u32) {
        let share = &self.policies[policy];
        let to_come = to_come as usize;
        let all = 1 + share.most.fetch_max(to_come, Ordering::Relaxed).max(to_come);
        share
            .done
            .fetch_max((all - to_come) * Self::WHOLE / all, Ordering::Relaxed);
        let done = self
            .policies
            .iter()
            .map(|share| share.done.load(Ordering::Relaxed));
        (self.progress)(done.sum(), self.policies.len() * Self::WHOLE);
    }
}

/// Refuses an unknown policy, and a setting that contradicts the policy it would configure.
///
/// # Errors
/// In these two cases; each says what to write instead.
pub fn check_settings(name: &str, settings: &Settings) -> Result<(), ReplayError> {
    policies::build(name, settings)?;
    let conflict = match (name, settings.torch.expandable_segments) {
        ("torch-native", Some(true)) => Some(("expandable_segments:True", "torch-expandable")),
        ("torch-expandable", Some(false)) => Some(("expandable_segments:False", "torch-native")),
        _ => None,
    };
    match conflict {
        None => Ok(()),
        Some((setting, other)) => Err(ReplayError::Conf(ConfError::Conflict {
            setting: setting.to_owned(),
            policy: name.to_owned(),
            instead: format!("use --policy {other}, or leave the setting out"),
        })),
    }
}

fn replay_one(
    trace: &Trace,
    program: &Program,
    (steps, ticks): (Option<&Steps>, Ticks<'_>),
    name: &str,
    options: &Options,
    to_come: &dyn Fn(u32),
) -> Result<(PolicyResult, Placement), ReplayError> {
    let mut policy = policies::build(name, &options.settings)?;
    let planner = Threaded::default();
    let solved = planner.solved();
    policy.set_planner(Box::new(planner));
    let mut clock = StepClock::new(steps);
    let fidelity = policy.fidelity();
    let (outcome, placement) = if options.placements {
        let mut observers = (ticks.clock(), (PlacementRecorder::new(program), clock));
        let outcome = run(
            program,
            policy,
            options.device.source().with_log(),
            &mut observers,
        );
        let recorder = observers.1.0;
        clock = observers.1.1;
        let stopped_at = outcome
            .stop
            .as_ref()
            .map(|stop| program.ops[stop.op].event().unwrap_or(0));
        (outcome, recorder.finish(stopped_at))
    } else {
        let mut observers = (ticks.clock(), clock);
        let outcome = run(program, policy, options.device.source(), &mut observers);
        clock = observers.1;
        (outcome, Placement::default())
    };
    let plans = solved.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let waited: f64 = plans.iter().map(|p| p.waited_ms * 1e6).sum();
    let mut result = PolicyResult {
        policy: name.to_owned(),
        fidelity: fidelity.as_str().to_owned(),
        peak_reserved_bytes: outcome.stats.reserved.peak,
        peak_allocated_bytes: outcome.stats.allocated.peak,
        overhead: overhead(&outcome, program),
        hit_rate: outcome.stats.hit_rate(),
        smallest_device_bytes: None,
        fit: None,
        driver_calls: (&outcome.meter.calls).into(),
        stalls: outcome.stats.stalls,
        moved_bytes: outcome.meter.moved_bytes,
        handle_operations: outcome.meter.handle_operations,
        cross_stream_waits: outcome.meter.cross_stream_waits,
        modelled_driver_ms: options
            .costs
            .milliseconds(&outcome.meter.calls, outcome.stats.stalls),
        ns_per_event: (outcome.nanoseconds as f64 - waited).max(0.0) / outcome.calls.max(1) as f64,
        steps: clock.results,
        plans,
        first_failure: outcome
            .stop
            .as_ref()
            .map(|stop| explain(trace, program, stop, &outcome, options)),
    };
    if options.fit {
        let build = || -> Box<dyn Policy> {
            policies::build(name, &options.settings).unwrap_or_else(|_| unreachable!("the name was checked"))
        };
        let paged = options.device.paged;
        let unlimited = match options.device.bytes {
            None => outcome,
            Some(_) => run(
                program,
                build(),
                Device { bytes: None, paged }.source(),
                &mut ticks.clock(),
            ),
        };
        if let Some(smallest) = smallest_device(program, &unlimited, paged, ticks, &build, to_come) {
            let there = &smallest.run;
            result.smallest_device_bytes = Some(smallest.bytes);
            result.fit = Some(Fit {
                stalls: there.stats.stalls,
                stalls_per_allocation: there.stats.stalls as f64 / there.stats.allocations.max(1) as f64,
                modelled_driver_ms: options.costs.milliseconds(&there.meter.calls, there.stats.stalls),
                moved_bytes: there.meter.moved_bytes,
            });
        }
    }
    Ok((result, placement))
}

/// Peak reserved over peak requested, both as far as the program came.
fn overhead(outcome: &Run, program: &Program) -> f64 {
    let requested = match outcome.stop {
        None => program.peak_requested,
        Some(_) => outcome.stats.requested.peak,
    };
    if requested == 0 {
        0.0
    } else {
        outcome.stats.reserved.peak as f64 / requested as f64
    }
}

fn recorded(trace: &Trace, with_verification: bool) -> Result<Option<Recorded>, ReplayError> {
    let agreement = if with_verification {
        Some(verify(trace)?.agreement())
    } else {
        None
    };
    let Some(peak_reserved_bytes) = trace.recorded_peak_reserved else {
        return Ok(None);
    };
    let expandable = trace.settings.expandable_segments.unwrap_or(false);
    let policy = if expandable {
        "torch-expandable"
    } else {
        "torch-native"
    };
    Ok(Some(Recorded {
        policy: policy.to_owned(),
        peak_reserved_bytes,
        address_agreement: agreement,
    }))
}

fn cautions(trace: &Trace, program: &Program, options: &Options, pageless: &[&str]) -> Vec<String> {
    let mut found: Vec<String> = trace.cautions.iter().flat_map(Caution::sentences).collect();
    if program.merged_streams > 1 {
        found.push(format!(
            "{} streams were merged into one: reuse across them is free here and would need waits on a device",
            program.merged_streams
        ));
    }
    if !pageless.is_empty() {
        found.push(format!(
            "left out, because they map pages into reserved addresses and this device cannot: {}",
            pageless.join(", ")
        ));
    }
    found.extend(backend(options));
    if program.peak_requested < Simulated::PAGE {
        found.push(format!(
            "the program never holds more than {}, less than most policies take from a device at once: their overheads \
             tell of that step, not of waste that would grow with a program",
            display_size(program.peak_requested)
        ));
    }
    found
}

/// What to know when the settings name an allocator that the policies named are not.
fn backend(options: &Options) -> Option<String> {
    let has = |name: &str| options.policies.iter().any(|policy| policy == name);
    let native: Vec<&str> = ["torch-native", "torch-expandable"]
        .into_iter()
        .filter(|name| has(name))
        .collect();
    if options.settings.torch.backend != TorchBackend::CudaMallocAsync || native.is_empty() {
        return None;
    }
    let instead = if has("cuda-async") {
        "the figures of cuda-async are those to read"
    } else {
        "replay it with --policy cuda-async"
    };
    let native = native.join(" and ");
    Some(format!(
        "under backend:cudaMallocAsync PyTorch hands all allocations to the driver's pool: {instead}; {native} would not \
         run, and the driver ignores max_split_size_mb, roundup_power2_divisions, garbage_collection_threshold and \
         expandable_segments"
    ))
}
