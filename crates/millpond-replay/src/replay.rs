//! Replays a recording under several policies. This is all of `millpond replay` except the printing.

use crate::allocator::Setup;
use crate::error::ReplayError;
use crate::fit::smallest_device;
use crate::oom::{self, OutOfMemory};
use crate::options::Options;
use crate::outcome::{Fit, PolicyResult};
use crate::parallel;
use crate::placement::{Placement, PlacementRecorder};
use crate::prepared::Prepared;
use crate::report::{Report, Verdict};
use crate::run::{Device, run};
use crate::verdict::{Candidates, candidates, verdict};
use millpond_engine::{Policy, policies};
use millpond_trace::Trace;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A report, and the data that a picture of it needs.
#[derive(Debug)]
pub struct Replayed {
    /// The report.
    pub report: Report,
    /// The address of every block, one entry for each policy, if requested.
    pub placements: Vec<Placement>,
}

/// Replays one recording under every requested policy, several at a time.
///
/// `progress` is called with the work done and the total, in thousandths of a policy, after each replay.
///
/// # Errors
/// Returns an error if the recording contains nothing to replay, a policy is unknown, a setting contradicts
/// its policy, the plan belongs to another program, or the replay was interrupted.
pub fn replay(
    trace: &Trace,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Replayed, ReplayError> {
    let prepared = Prepared::new(trace, options)?;
    let setups = prepared.setups();
    let progress = Progress::new(setups.len() + usize::from(options.verdict), progress);
    let outcomes = parallel::map(&options.threads, setups.len(), |index| {
        let outcome = replay_one(&prepared, &setups[index], fits(options), &|to_come| {
            progress.set(index, to_come);
        });
        progress.set(index, 0);
        outcome.ok()
    });
    options.threads.check()?;
    let (mut results, mut placements): (Vec<_>, Vec<_>) = outcomes.into_iter().unzip();
    let mut verdict = None;
    if options.verdict {
        let share = |done: usize, all: usize| progress.set(setups.len(), (all.saturating_sub(done)) as u32);
        let (answer, row) = answer(&prepared, &results, &candidates(&prepared, &share)?)?;
        if let (true, Some((result, placement))) = (options.policies.is_empty(), row) {
            results.insert(1.min(results.len()), result);
            placements.insert(1.min(placements.len()), placement);
        }
        progress.set(setups.len(), 0);
        verdict = Some(answer);
    }
    let mut report = prepared.report(results);
    report.verdict = verdict;
    if report.out_of_memory.is_none() {
        report.out_of_memory = out_of_memory(&prepared, &report);
    }
    options.threads.check()?;
    Ok(Replayed { report, placements })
}

/// Explains why the program's own allocator ran out of memory. If it was not replayed, explains the first policy that
/// did.
fn out_of_memory(prepared: &Prepared<'_>, report: &Report) -> Option<OutOfMemory> {
    let (options, setup) = (prepared.options(), &prepared.own().setup);
    let is_own = |result: &&PolicyResult| result.policy == setup.policy && result.conf == setup.conf;
    let (result, settings) = match report.results.iter().find(is_own) {
        Some(own) => (own, &setup.settings),
        None => {
            let failed = |result: &&PolicyResult| result.first_failure.is_some();
            (report.results.iter().find(failed)?, &options.settings)
        }
    };
    let failure = result.first_failure.as_ref()?;
    let own = oom::Own {
        policy: result.policy.clone(),
        settings: settings.clone(),
    };
    let ticks = prepared.ticks().ok()?;
    OutOfMemory::replayed(
        prepared.trace(),
        prepared.program(),
        options,
        ticks,
        &own,
        failure,
    )
}

/// Returns whether the smallest device is found for each policy of the report.
fn fits(options: &Options) -> bool {
    options.fit || (options.verdict && options.policies.is_empty())
}

/// A policy's result, and its placement of the blocks.
pub(crate) type Row = (PolicyResult, Placement);

impl Verdict {
    /// The most allocations of a recording that a report or a page replays without an explicit request. A longer
    /// recording takes minutes.
    pub const MOST_ALLOCATIONS: u64 = 1_000_000;

    /// Replays one recording under the program's own allocator and its most promising settings. [`replay`] does the
    /// same and more if [`Options::verdict`] is set. `options.policies` is not read.
    ///
    /// `progress` is called with the number of settings that were tried and the number of all settings.
    ///
    /// # Errors
    /// Returns the same errors as [`replay`].
    pub fn of(
        trace: &Trace,
        options: &Options,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self, ReplayError> {
        let prepared = Prepared::new(trace, options)?;
        let (verdict, _) = answer(&prepared, &[], &candidates(&prepared, progress)?)?;
        options.threads.check()?;
        Ok(verdict)
    }
}

/// Returns the verdict, and the row of better settings. `results` has the replays that were done.
pub(crate) fn answer(
    prepared: &Prepared<'_>,
    results: &[PolicyResult],
    candidates: &Candidates,
) -> Result<(Verdict, Option<Row>), ReplayError> {
    let own = prepared.own();
    let replay = |setup: &Setup| replay_one(prepared, setup, true, &|_| {});
    let is_own = |result: &&PolicyResult| result.policy == own.setup.policy && result.conf == own.setup.conf;
    let done = results.iter().find(is_own).filter(|_| fits(prepared.options()));
    let own_result = match done {
        Some(result) => result.clone(),
        None => replay(&own.setup)?.0,
    };
    let replay = |setup: &Setup| {
        let row = replay(setup)?;
        Ok((row.0.clone(), row))
    };
    verdict(prepared, own_result, candidates, &replay)
}

/// The progress of all policies.
struct Progress<'a> {
    policies: Vec<Share>,
    report: &'a (dyn Fn(usize, usize) + Sync),
}

/// The progress of one policy.
#[derive(Default)]
struct Share {
    /// The most replays that were still to come after the first.
    most: AtomicUsize,
    /// Finished work in thousandths.
    done: AtomicUsize,
}

impl<'a> Progress<'a> {
    const WHOLE: usize = 1000;

    fn new(policies: usize, report: &'a (dyn Fn(usize, usize) + Sync)) -> Self {
        Self {
            policies: (0..policies).map(|_| Share::default()).collect(),
            report,
        }
    }

    /// Sets the number of replays that one policy still needs. Progress never decreases, though a search may
    /// take longer than expected.
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
        (self.report)(done.sum(), self.policies.len() * Self::WHOLE);
    }
}

fn replay_one(
    prepared: &Prepared<'_>,
    setup: &Setup,
    fit: bool,
    to_come: &dyn Fn(u32),
) -> Result<Row, ReplayError> {
    let (program, options) = (prepared.program(), prepared.options());
    options.threads.check()?;
    let source = options.device.source();
    let (mut result, outcome, placement) = if options.placements {
        let mut recorder = PlacementRecorder::new(program);
        let (result, outcome) = prepared.run_with(setup, source.with_log(), &mut recorder)?;
        let stopped_at = outcome
            .stop
            .as_ref()
            .map(|stop| program.ops[stop.op].event().unwrap_or(0));
        (result, outcome, recorder.finish(stopped_at))
    } else {
        let (result, outcome) = prepared.run_with(setup, source, &mut ())?;
        (result, outcome, Placement::default())
    };
    if fit {
        let ticks = prepared.ticks()?;
        let build = || -> Box<dyn Policy> {
            policies::build(&setup.policy, &setup.settings)
                .unwrap_or_else(|_| unreachable!("the policy has run"))
        };
        let paged = options.device.paged;
        let unlimited = match options.device.bytes {
            None => outcome,
            Some(_) => run(
                program,
                build(),
                Device {
                    paged,
                    ..Device::UNLIMITED
                }
                .source(),
                &mut ticks.clock(),
            ),
        };
        if let Some(smallest) = smallest_device(
            program,
            &unlimited,
            paged,
            ticks,
            &options.threads,
            &build,
            to_come,
        ) {
            result.smallest_device_bytes = Some(smallest.bytes);
            result.fit = Some(Fit::new(&smallest.run, &options.costs));
        }
    }
    Ok((result, placement))
}
