//! Collects the explanation of an out-of-memory event.

use super::cause::{Cause, Shortage};
use super::event::{device_free, pool, request, time_us};
use super::holders::{Holder, Holding, holders};
use super::layout::{Layout, Look};
use super::recorded::{AtEvent, at_event};
use super::remedy::Trials;
use super::rules::Rules;
use super::{Failure, OomOrigin, OutOfMemory, RefusedRequest};
use crate::allocator::usual_policy;
use crate::edit;
use crate::options::Options;
use crate::program::{Program, Wanted};
use crate::run::{Device, Run, Stop, run};
use crate::steps::Steps;
use crate::ticks::Ticks;
use crate::verify::recorded_conf;
use millpond_engine::{Settings, display_size, policies};
use millpond_trace::{Action, Format, Trace};

/// The most groups of each list.
const HOLDERS: usize = 8;

/// Returns the bytes that were available to the recorded program when it last ran out of memory, if they are recorded.
pub(crate) fn recorded_device(trace: &Trace, options: &Options) -> Option<u64> {
    let (last, _) = options.selection.refused(trace).last()?;
    let own = Own::recorded(trace);
    let at = at_event(trace, last as usize, &Rules::of(&own.policy, &own.settings));
    let free = device_free(trace, trace.events.get(last as usize)?)?;
    Some(at.reserved?.saturating_add(free))
}

/// Returns the bytes that the pool of an event had taken from its source just before, and the requested bytes that the program held in
/// this pool. Returns `None` if the recording has no other pool.
fn of_one_pool(trace: &Trace, at: usize) -> Option<(u64, u64)> {
    let pool = trace.events.get(at)?.pool;
    if trace.events.iter().all(|event| event.pool == pool) {
        return None;
    }
    let older = trace
        .initial_blocks
        .iter()
        .filter(|block| block.pool == pool && !block.pending);
    let mut held = older.fold(0, |sum: u64, block| sum.saturating_add(block.requested));
    let mut taken = 0_u64;
    for event in trace.events[..at].iter().filter(|event| event.pool == pool) {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => taken = taken.saturating_add(event.bytes),
            Action::SegmentFree | Action::SegmentUnmap => taken = taken.saturating_sub(event.bytes),
            Action::Alloc => held = held.saturating_add(event.bytes),
            Action::Free | Action::FreeRequested => held = held.saturating_sub(event.bytes),
            Action::FreeCompleted | Action::OutOfMemory => {}
        }
    }
    Some((taken, held))
}

impl OutOfMemory {
    /// Explains the last request that the recorded allocator refused. Returns `None` if there is none among the
    /// selected events.
    #[must_use]
    pub fn recorded(trace: &Trace, options: &Options) -> Option<Self> {
        let refused: Vec<u32> = options.selection.refused(trace).map(|(at, _)| at).collect();
        let fatal = options.selection.fatal(trace).map(|(at, _)| at).last();
        let last = fatal.or(refused.last().copied())?;
        let event = trace.events.get(last as usize)?;
        let own = Own::recorded(trace);
        let rules = Rules::of(&own.policy, &own.settings);
        let AtEvent {
            reserved,
            mut before,
            mut after,
        } = at_event(trace, last as usize, &rules);
        let mut free = device_free(trace, event);
        // The allocator may have had a limit that the recording does not contain. If the named device has less than the bytes
        // available to the program, but no less than the reserved bytes, its size is used as that limit.
        let left = reserved.zip(options.device.bytes);
        if let Some(left) = left.and_then(|(reserved, named)| named.checked_sub(reserved)) {
            free = free.map(|free| free.min(left));
        }
        // A pool could have taken more, up to its limit, which its recording does not contain.
        let is_pool = trace.origin.format == Format::MillpondRecording;
        let known = match free {
            None if is_pool => None,
            _ => reserved.map(|reserved| reserved.saturating_add(free.unwrap_or(0))),
        };
        let others = known.zip(options.device.bytes);
        let others = others.map(|(known, named)| named.saturating_sub(known));
        // A recording without segments contains nothing about the device.
        let device = Device {
            bytes: known.or(options.device.bytes),
            ..options.device
        };

        let program = Program::new(trace, options.selection).ok();
        let wanted = Wanted {
            bytes: event.bytes,
            stream: if options.selection.merge_streams {
                0
            } else {
                event.stream
            },
            pool: event.pool,
        };
        let at = program.as_ref().map_or(0, |program| program.position(last));
        let held = Held::new(trace, program.as_ref(), at, Some(last));
        let is_made = |program: &Program| program.ops.get(at).is_some_and(|op| op.event == last);
        let program = program.filter(|program| device.bytes.is_some() && is_made(program));
        if let (None, Some(program)) = (&after, &program) {
            // If the recording does not contain the layout, a replay of the same allocator provides it.
            (before, after, free) = own
                .imitate(program, at, &rules, device)
                .unwrap_or((None, None, free));
        }
        let shortage = Shortage {
            wanted,
            held: held.bytes,
            free,
            others,
            layout: after.as_ref(),
            rules: &rules,
        };
        let (cause, mut why) = shortage.explain();
        if let (Cause::Unknown, true, Some(taken)) = (cause, is_pool, trace.recorded_peak_reserved) {
            let all = (taken, held.bytes.saturating_add(trace.unlisted_bytes));
            let (taken, held) = of_one_pool(trace, last as usize).unwrap_or(all);
            why = format!(
                "Its pool had taken {} from its source, of which the program held {}, and could not take more: a limit was reached, or \
                 the memory of the machine.",
                display_size(taken),
                display_size(held)
            );
        }
        let mut told = Self {
            origin: OomOrigin::Recorded,
            device: trace.origin.device,
            was_handled: fatal.is_none(),
            policy: own.policy.clone(),
            refused: refused.len() as u64,
            first: refused
                .first()
                .filter(|first| **first != last)
                .and_then(|first| request(trace, *first)),
            request: request(trace, last)?,
            error: None,
            device_bytes: device.bytes,
            device_free_bytes: free,
            others_bytes: others,
            held_bytes: held.bytes,
            held_blocks: held.blocks,
            before: before.map(|layout| layout.state()),
            after: after.map(|layout| layout.state()),
            holders: held.by_tag,
            sites: held.by_site,
            oldest: held.oldest,
            growing: edit::growing_at(trace, last as usize),
            cause,
            why,
            reproduced: None,
            tried: 0,
            remedies: Vec::new(),
        };
        if let Some(program) = program {
            told.prove(&Trials {
                trace,
                program: &program,
                device,
                selection: options.selection,
                own: &own,
                threads: options.threads.clone(),
                request: Some(at),
                is_too_large: cause == Cause::NothingFree,
            });
        }
        Some(told)
    }

    /// Explains why a policy ran out of memory in a replay.
    pub(crate) fn replayed(
        trace: &Trace,
        program: &Program,
        options: &Options,
        ticks: Ticks<'_>,
        own: &Own,
        failure: &Failure,
    ) -> Option<Self> {
        let rules = Rules::of(&own.policy, &own.settings);
        let policy = policies::build(&own.policy, &own.settings).ok()?;
        // The replay is made again to look at the moment before the refused call.
        let at = failure.event.map_or(0, |event| program.position(event));
        let mut look = Look::new(program, &rules, Some(at));
        let mut observers = (ticks.clock(), &mut look);
        let outcome = run(program, policy, options.device.source(), &mut observers);
        let stop = outcome.stop?;
        let op = program.ops.get(stop.op)?;
        let held = Held::new(trace, Some(program), stop.op, op.event());
        let mut told = Self {
            origin: OomOrigin::Replayed,
            device: trace.origin.device,
            was_handled: false,
            policy: own.policy.clone(),
            refused: 1,
            first: None,
            request: RefusedRequest {
                event: op.event(),
                time_us: op.event().and_then(|event| time_us(trace, event)),
                bytes: op.bytes,
                stream: failure.stream,
                pool: pool(trace, op.pool),
                tag: failure.tag.clone(),
            },
            error: None,
            device_bytes: options.device.bytes,
            device_free_bytes: Some(stop.device_free),
            others_bytes: None,
            held_bytes: held.bytes,
            held_blocks: held.blocks,
            before: look.before.map(|layout| layout.state()),
            after: look.after.map(|layout| layout.state()),
            holders: held.by_tag,
            sites: held.by_site,
            oldest: held.oldest,
            growing: op
                .event()
                .and_then(|event| edit::growing_at(trace, event as usize)),
            cause: failure.cause,
            why: failure.why.clone(),
            reproduced: None,
            tried: 0,
            remedies: Vec::new(),
        };
        told.prove(&Trials {
            trace,
            program,
            device: options.device,
            selection: options.selection,
            own,
            threads: options.threads.clone(),
            request: None,
            is_too_large: told.cause == Cause::NothingFree,
        });
        Some(told)
    }

    fn prove(&mut self, trials: &Trials<'_>) {
        let proved = trials.prove();
        self.reproduced = Some(proved.reproduced);
        self.tried = proved.tried;
        self.remedies = proved.remedies;
    }
}

/// The allocator that refused the request.
pub(crate) struct Own {
    pub(crate) policy: String,
    pub(crate) settings: Settings,
}

impl Own {
    /// Returns the allocator of a recording.
    fn recorded(trace: &Trace) -> Self {
        let mut settings = Settings::default();
        if let Ok(torch) = recorded_conf(&trace.settings) {
            settings.torch = torch;
        }
        let policy = match (&trace.settings.policy, usual_policy(trace.origin.format)) {
            (Some(policy), _) => policy.clone(),
            (None, "torch-native") if trace.settings.expandable_segments == Some(true) => {
                "torch-expandable".to_owned()
            }
            (None, usual) => usual.to_owned(),
        };
        Self { policy, settings }
    }

    /// Replays the program up to the refused request at the call `at`. Returns the layouts before and after the
    /// refusal, and the free bytes of the device. Returns `None` if the replay is not refused the request.
    fn imitate(
        &self,
        program: &Program,
        at: usize,
        rules: &Rules,
        device: Device,
    ) -> Option<(Option<Layout>, Option<Layout>, Option<u64>)> {
        let policy = policies::build(&self.policy, &self.settings).ok()?;
        let refused = program.ops.get(at)?.event;
        // The replay leaves out the other refused requests, so that it reaches this one.
        let mut program = program.clone();
        let first = program.allocations - program.refused as u32;
        program
            .ops
            .retain(|op| op.allocation < first || op.event == refused);
        let at = program.position(refused);
        let mut look = Look::new(&program, rules, Some(at));
        let stop = run(&program, policy, device.source(), &mut look).stop?;
        (stop.op == at).then_some((look.before, look.after, Some(stop.device_free)))
    }
}

/// The blocks that a program holds, in groups.
#[derive(Default)]
struct Held {
    blocks: u64,
    bytes: u64,
    by_tag: Vec<Holder>,
    by_site: Vec<Holder>,
    oldest: Vec<Holder>,
}

impl Held {
    fn new(trace: &Trace, program: Option<&Program>, at: usize, event: Option<u32>) -> Self {
        let Some(program) = program else {
            return Self::default();
        };
        let starts = Steps::find(program).map_or_else(Vec::new, |steps| steps.starts);
        let holding = Holding::new(trace, program, at, event, &starts);
        let (blocks, bytes) = holding.total();
        let most = |mut groups: Vec<Holder>| {
            groups.truncate(HOLDERS);
            groups
        };
        Self {
            blocks,
            bytes,
            by_tag: most(holding.by_tag()),
            by_site: most(holding.by_site()),
            oldest: most(holding.oldest()),
        }
    }
}

/// Explains why the replay of one policy stopped.
pub(crate) fn failure(
    trace: &Trace,
    program: &Program,
    stop: &Stop,
    outcome: &Run,
    look: &Look<'_>,
    device_bytes: Option<u64>,
) -> Failure {
    let op = &program.ops[stop.op];
    let tag = op.event().and_then(|event| trace.events.get(event as usize));
    let shortage = Shortage {
        wanted: Wanted {
            bytes: op.bytes,
            stream: op.stream,
            pool: op.pool,
        },
        held: outcome.stats.requested.current,
        free: device_bytes.map(|_| stop.device_free),
        others: None,
        layout: look.after.as_ref(),
        rules: look.rules(),
    };
    let (cause, why) = shortage.explain();
    Failure {
        event: op.event(),
        bytes: op.bytes,
        stream: trace.streams.get(usize::from(op.stream)).copied().unwrap_or(0),
        tag: trace.tags.get(tag.map_or(0, |event| event.tag)).to_owned(),
        held_bytes: outcome.stats.requested.current,
        free_bytes: stop.device_free,
        largest_hole_bytes: stop.largest_hole,
        reserved_bytes: outcome.stats.reserved.current,
        cached_bytes: outcome.stats.cached(),
        holders: holders(trace, program, stop.op, HOLDERS),
        cause,
        why,
    }
}
