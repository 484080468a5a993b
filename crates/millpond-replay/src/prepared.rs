//! Prepares a recording for replays: the state that the runs of all policies share, and the report of all
//! runs.

use crate::allocator::{Own, Setup, own, usual_policy};
use crate::error::ReplayError;
use crate::oom::{self, Failure, Look, OutOfMemory, Rules};
use crate::options::{Options, check_settings};
use crate::outcome::PolicyResult;
use crate::paced::Paced;
use crate::program::Program;
use crate::report::{Recorded, Report, SCHEMA};
use crate::run::{Device, Observer, Run, run};
use crate::steps::{StepClock, Steps, Threaded, occurs};
use crate::ticks::Ticks;
use crate::verify::verify;
use millpond_engine::{Simulated, TorchBackend, display_size, policies};
use millpond_trace::{Caution, Format, Trace};
use std::sync::PoisonError;

/// A recording with options that were checked against it.
#[derive(Debug)]
pub struct Prepared<'a> {
    trace: &'a Trace,
    options: &'a Options,
    program: Program,
    steps: Option<Steps>,
    recorded: Option<Recorded>,
    own: Own,
    setups: Vec<Setup>,
    /// Policies that the device cannot run.
    pageless: Vec<String>,
    /// The device on which settings are compared.
    limited: Device,
}

impl<'a> Prepared<'a> {
    /// Builds the program from a recording, and checks the options.
    ///
    /// # Errors
    /// Returns the same errors as [`replay`](crate::replay), which calls this first.
    pub fn new(trace: &'a Trace, options: &'a Options) -> Result<Self, ReplayError> {
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
        let own = own(
            trace,
            recorded.as_ref().map(|recorded| recorded.policy.as_str()),
            options,
        );
        let (setups, pageless) = runnable(options, &own)?;
        let prepared = Self {
            steps: Steps::find(&program),
            trace,
            options,
            program,
            recorded,
            own,
            setups,
            pageless,
            limited: Device {
                bytes: options
                    .device
                    .bytes
                    .or_else(|| oom::recorded_device(trace, options)),
                ..options.device
            },
        };
        prepared.ticks()?;
        Ok(prepared)
    }

    /// Returns the policies that can run on the device, in the order of the report.
    #[must_use]
    pub fn policies(&self) -> Vec<&str> {
        self.setups.iter().map(|setup| setup.policy.as_str()).collect()
    }

    /// Returns the same policies with their settings.
    pub(crate) fn setups(&self) -> &[Setup] {
        &self.setups
    }

    /// Returns the program's own allocator.
    pub(crate) fn own(&self) -> &Own {
        &self.own
    }

    /// Returns the program that is replayed.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the recording.
    pub(crate) fn trace(&self) -> &'a Trace {
        self.trace
    }

    /// Returns the options.
    pub(crate) fn options(&self) -> &'a Options {
        self.options
    }

    /// Returns the device on which settings are compared. If the options set no limit, it has the bytes that the recorded program
    /// could have when it ran out of memory.
    pub(crate) fn limited(&self) -> Device {
        self.limited
    }

    /// Returns whether the program finishes with these settings on the [limited](Self::limited) device. `result` is its replay on the
    /// device of the options.
    pub(crate) fn finishes(&self, setup: &Setup, result: &PolicyResult) -> bool {
        let limit = self.limited.bytes;
        result.first_failure.is_none()
            && (limit == self.options.device.bytes || matches!(self.failure_on(setup, limit), Ok(None)))
    }

    /// Returns the calls at which ticks are sent.
    pub(crate) fn ticks(&self) -> Result<Ticks<'_>, ReplayError> {
        Ticks::new(self.options.tick, self.steps.as_ref(), &self.trace.origin.name)
    }

    /// Replays the program under one policy on a source. [`replay`](crate::replay) does the same on a
    /// simulated device.
    ///
    /// # Errors
    /// Returns an error if the policy does not exist.
    pub fn run_on<S: Paced, O: Observer<S>>(
        &self,
        name: &str,
        source: S,
        observer: &mut O,
    ) -> Result<(PolicyResult, Run), ReplayError> {
        let setup = Setup {
            policy: name.to_owned(),
            settings: self.options.settings.clone(),
            conf: String::new(),
        };
        self.run_with(&setup, source, observer)
    }

    /// Replays the program like [`run_on`](Self::run_on), with settings of its own.
    pub(crate) fn run_with<S: Paced, O: Observer<S>>(
        &self,
        setup: &Setup,
        source: S,
        observer: &mut O,
    ) -> Result<(PolicyResult, Run), ReplayError> {
        let options = self.options;
        let mut policy = policies::build(&setup.policy, &setup.settings)?;
        let planner = Threaded::default();
        let solved = planner.solved();
        policy.set_planner(Box::new(planner));
        let fidelity = policy.fidelity();
        let clock = StepClock::new(self.steps.as_ref());
        let rules = Rules::of(&setup.policy, &setup.settings);
        let mut look = Look::new(&self.program, &rules, None);
        let mut observers = ((self.ticks()?.clock(), &mut look), (observer, clock));
        let outcome = run(&self.program, policy, source, &mut observers);
        let clock = observers.1.1;
        let plans = solved.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let waited: f64 = plans.iter().map(|p| p.waited_ms * 1e6).sum();
        let result = PolicyResult {
            policy: setup.policy.clone(),
            conf: setup.conf.clone(),
            fidelity: fidelity.as_str().to_owned(),
            peak_reserved_bytes: outcome.stats.reserved.peak,
            peak_allocated_bytes: outcome.stats.allocated.peak,
            overhead: outcome.overhead(&self.program),
            hit_rate: outcome.stats.hit_rate(),
            smallest_device_bytes: None,
            fit: None,
            driver_calls: outcome.meter.calls,
            stalls: outcome.stats.stalls,
            moved_bytes: outcome.meter.moved_bytes,
            handle_operations: outcome.meter.handle_operations,
            cross_stream_waits: outcome.meter.cross_stream_waits,
            modelled_driver_ms: options.costs.milliseconds(&outcome.meter, outcome.stats.stalls),
            ns_per_event: (outcome.nanoseconds as f64 - waited).max(0.0) / outcome.calls.max(1) as f64,
            steps: clock.results,
            plans,
            first_failure: outcome.stop.as_ref().map(|stop| {
                oom::failure(
                    self.trace,
                    &self.program,
                    stop,
                    &outcome,
                    &look,
                    options.device.bytes,
                )
            }),
        };
        Ok((result, outcome))
    }

    /// Replays the program on a device of another size. Returns the failure, or `None` if the program finishes.
    pub(crate) fn failure_on(
        &self,
        setup: &Setup,
        bytes: Option<u64>,
    ) -> Result<Option<Failure>, ReplayError> {
        let policy = policies::build(&setup.policy, &setup.settings)?;
        let device = Device {
            bytes,
            ..self.options.device
        };
        let source = device.source();
        let rules = Rules::of(&setup.policy, &setup.settings);
        let mut look = Look::new(&self.program, &rules, None);
        let outcome = run(
            &self.program,
            policy,
            source,
            &mut (self.ticks()?.clock(), &mut look),
        );
        let stop = outcome.stop.as_ref();
        Ok(stop.map(|stop| oom::failure(self.trace, &self.program, stop, &outcome, &look, bytes)))
    }

    /// Builds the report of these results.
    #[must_use]
    pub fn report(&self, results: Vec<PolicyResult>) -> Report {
        let (trace, program, options) = (self.trace, &self.program, self.options);
        let ran = |name: &String| results.iter().any(|result| result.policy == *name);
        // Settings that no replayed policy reads were not applied.
        let mut settings = options.applied.clone();
        for one in &mut settings {
            one.policies.retain(ran);
        }
        settings.retain(|one| !one.policies.is_empty());
        Report {
            schema: SCHEMA,
            trace: trace.origin.name.clone(),
            device: trace.origin.device,
            events: program.events,
            allocations: program.requests,
            initial_blocks: program.initial_blocks,
            peak_requested_bytes: program.peak_requested,
            recorded: self.recorded.clone(),
            settings,
            edits: Vec::new(),
            cautions: cautions(trace, program, options, &self.pageless),
            out_of_memory: OutOfMemory::recorded(trace, options),
            results,
            verdict: None,
        }
    }
}

/// Returns the policies that can run on the device with their settings, and the names of those that cannot because
/// they need a device that maps pages.
///
/// # Errors
/// Returns an error if no policy can run.
fn runnable(options: &Options, own: &Own) -> Result<(Vec<Setup>, Vec<String>), ReplayError> {
    let of = |name: &str| Setup {
        policy: name.to_owned(),
        settings: options.settings.clone(),
        conf: String::new(),
    };
    let mut asked: Vec<Setup> = options.policies.iter().map(|name| of(name)).collect();
    if asked.is_empty() {
        asked.push(own.setup.clone());
        let others = COMPARED.into_iter().filter(|name| *name != own.setup.policy);
        asked.extend(others.map(of));
    }
    let (mut setups, mut pageless) = (Vec::new(), Vec::new());
    for setup in asked {
        if policies::build(&setup.policy, &setup.settings)?.needs_pages() && !options.device.paged {
            pageless.push(setup.policy);
        } else {
            setups.push(setup);
        }
    }
    if setups.is_empty() && !pageless.is_empty() {
        return Err(ReplayError::NeedsPages {
            policies: pageless.join(" and "),
        });
    }
    Ok((setups, pageless))
}

/// The policies that a program's own allocator is compared with.
const COMPARED: [&str; 2] = ["millpond", "planned"];

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
    let policy = match (&trace.settings.policy, trace.origin.format) {
        (Some(policy), _) => policy,
        (None, Format::MillpondRecording) => usual_policy(Format::MillpondRecording),
        _ if expandable => "torch-expandable",
        _ => "torch-native",
    };
    Ok(Some(Recorded {
        policy: policy.to_owned(),
        peak_reserved_bytes,
        address_agreement: agreement,
    }))
}

/// Returns whether a pool of host memory of this library was recorded.
///
/// Such a pool cuts small blocks from spans, and its threads keep freed blocks. A replay has neither.
pub(crate) fn is_of_host_pool(trace: &Trace) -> bool {
    trace.origin.device < 0 && trace.settings.policy.is_some()
}

fn cautions(trace: &Trace, program: &Program, options: &Options, pageless: &[String]) -> Vec<String> {
    let mut found: Vec<String> = trace.cautions.iter().flat_map(Caution::sentences).collect();
    if program.merged_streams > 1 {
        found.push(format!(
            "{} streams were merged into one: reuse across them is free here and would need waits on a device",
            program.merged_streams
        ));
    }
    if is_of_host_pool(trace) {
        found.push(
            "the recorded pool cuts blocks of at most 64 KiB from spans, and its threads keep freed blocks, but a replay \
             places every block by itself: the policies can be compared with each other, but not with that pool"
                .to_owned(),
        );
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
            "the program never holds more than {}, less than most policies request from a device at once: their \
             overheads are due to that minimum and do not grow with the program",
            display_size(program.peak_requested)
        ));
    }
    found
}

/// Returns a caution if the settings name an allocator that is not among the policies.
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
        "read the figures of cuda-async"
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
