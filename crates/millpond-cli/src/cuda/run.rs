//! Runs the command from the parsed arguments to the output.

use super::facts::{Facts, RunFacts, SourceFacts, calls_between};
use super::{refuse_with, report};
use crate::args::{Paged, ReplayArgs};
use crate::exit::{CliError, Exit, complain};
use crate::progress::{Progress, Work};
use crate::{files, output, settings};
use millpond::cuda::{CudaDevice, CudaError, CudaMemory, CudaSource, CudaStream, DeviceMemory, driver_calls};
use millpond_bench::device::{Streams, run_checked, streams};
use millpond_engine::{AllocError, CallKind, Engine, Settings, Simulated, Source};
use millpond_replay::{DriverCalls, Observer, Op, Options, PolicyResult, Prepared, Real, Run};
use millpond_trace::Trace;

/// Runs the command. If one file cannot be replayed, the others still are, as with a simulated device.
pub(crate) fn command(args: &ReplayArgs, number: u32) -> Result<Exit, CliError> {
    refuse_with(args)?;
    let mut options = settings::options(args)?;
    millpond::cuda::watch_driver_calls(true);
    let card = Card::get(args, number)?;
    options.device.paged = card.is_paged();
    if args.device.device.is_none() && has_share(&options.settings) {
        // The setting is a share of the device. Without a limit, it would have no meaning.
        options.device.bytes = Some(card.look()?.total);
    }
    let results = files::replay_each(args, |trace, label, _| {
        measure(trace, label, args, &options, &card)
    })?;
    let done = &results.done;
    if args.output.json {
        output::print_json_list(done)?;
    } else if !done.is_empty() {
        let texts: Vec<String> = done.iter().map(report::text).collect();
        output::print(&format!("{}\n{}\n", texts.join("\n"), report::legend(done)))?;
    }
    results.check()?;
    let failed: Vec<&String> = done.iter().flat_map(|facts| &facts.source.failed).collect();
    failed.iter().for_each(|line| complain(line));
    let wrong: Vec<String> = done.iter().flat_map(Facts::wrong).collect();
    wrong.iter().for_each(|line| complain(line));
    if !failed.is_empty() || !wrong.is_empty() {
        return Ok(Exit::Failed);
    }
    let mut results = done.iter().flat_map(|facts| &facts.report.results);
    Ok(if results.all(|result| result.first_failure.is_some()) {
        Exit::OutOfMemory
    } else {
        Exit::Done
    })
}

/// Returns whether a setting limits the program to a share of the device.
fn has_share(settings: &Settings) -> bool {
    let ours = settings.millpond.retain.limit(Some(u64::MAX));
    ours.is_some() || settings.torch.memory_fraction.is_some()
}

/// The device, and the way in which its memory is allocated.
struct Card {
    device: CudaDevice,
    memory: CudaMemory,
}

impl Card {
    fn get(args: &ReplayArgs, number: u32) -> Result<Self, CliError> {
        let refused = |error: CudaError| CliError::Usage(format!("--source cuda:{number}: {error}"));
        let device = CudaDevice::get(number).map_err(refused)?;
        let wanted = match args.device.paged {
            Paged::On => CudaMemory::Best,
            // Plain allocations from the driver stand for a device without page mapping.
            Paged::Off => CudaMemory::Plain,
        };
        let memory = CudaSource::new(&device, wanted).map_err(refused)?.memory();
        Ok(Self { device, memory })
    }

    fn is_paged(&self) -> bool {
        self.memory == CudaMemory::Virtual
    }

    /// Returns the driver's figures for the device's memory.
    fn look(&self) -> Result<DeviceMemory, CliError> {
        let refused = |error| CliError::Usage(format!("cuda:{}: {error}", self.device.number()));
        self.device.memory().map_err(refused)
    }

    /// Creates a source of the device's memory from which the program may allocate at most `bytes`. If `given` has streams, they belong to
    /// the source from the start, so the source waits for the writes on them.
    fn source(&self, bytes: Option<u64>, given: Option<&Streams>) -> Result<Real<CudaSource>, CudaError> {
        let mut source = CudaSource::new(&self.device, self.memory)?;
        let device = self.device.clone();
        // The recording's default stream is the device's default stream, so it is waited for as in the program.
        source.stream_number(&CudaStream::legacy(&device))?;
        if let Some(given) = given {
            for stream in given.values() {
                source.stream_number(stream)?;
            }
        }
        // The streams live as long as the source, which knows them by number.
        let mut streams: Vec<CudaStream> = Vec::new();
        let given = given.cloned();
        let meet = move |source: &mut CudaSource, number: u32| {
            let known = given.as_ref().and_then(|given| given.get(&number));
            if let Some(known) = known {
                return source.stream_number(known).unwrap_or(0);
            }
            // If no stream can be created, the default stream is used. It is only shared with other work.
            let stream = CudaStream::new(&device).unwrap_or_else(|_| CudaStream::legacy(&device));
            let number = source.stream_number(&stream).unwrap_or(0);
            streams.push(stream);
            number
        };
        Ok(Real::new(source, bytes, Box::new(meet)))
    }
}

fn measure(
    trace: &Trace,
    label: String,
    args: &ReplayArgs,
    options: &Options,
    card: &Card,
) -> Result<Facts, CliError> {
    let before = card.look()?;
    let bar = Progress::steps(&Work::new(args.output.quiet), &format!("replaying {label}"));
    let mut options = options.clone();
    let prepared = Prepared::new(trace, &options)?;
    files::check_window(args, prepared.program().events, &label)?;
    let mut simulated = simulate(&prepared, &options)?;
    let largest = simulated.iter().map(|of| of.result.peak_reserved_bytes).max();
    let too_large = args.device.device.is_none() && largest.is_some_and(|peak| peak > before.free);
    let prepared = if too_large {
        options.device.bytes = Some(before.free / Simulated::PAGE * Simulated::PAGE);
        let prepared = Prepared::new(trace, &options)?;
        simulated = simulate(&prepared, &options)?;
        prepared
    } else {
        prepared
    };
    let (mut runs, mut results, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for (index, one) in simulated.iter().enumerate() {
        bar.set(index as u64, Some(simulated.len() as u64));
        let said = |error: &dyn std::fmt::Display| {
            format!(
                "{label}: {} on cuda:{}: {error}",
                one.result.policy,
                card.device.number()
            )
        };
        let given = args.host.check.then(|| streams(&card.device, prepared.program()));
        let made = given
            .transpose()
            .map_err(|error| said(&error))
            .and_then(|streams| {
                let source = card.source(options.device.bytes, streams.as_ref());
                Ok((source.map_err(|error| said(&error))?, streams))
            });
        let (source, given) = match made {
            Ok(made) => made,
            Err(sentence) => {
                failed.push(sentence);
                continue;
            }
        };
        let (facts, result, run) = match run_on(card, &prepared, one, source, given)? {
            Ok(ran) => ran,
            Err(error) => {
                failed.push(said(&error));
                continue;
            }
        };
        match run
            .stop
            .filter(|stop| matches!(stop.error, AllocError::Source(_)))
        {
            None => {
                runs.push(facts);
                results.push(result);
            }
            // The driver failed, so its figures for memory would be wrong.
            Some(stop) => failed.push(said(&stop.error)),
        }
    }
    Ok(Facts {
        report: prepared.report(results),
        source: SourceFacts {
            device: format!("cuda:{}", card.device.number()),
            name: card.device.name().to_owned(),
            emulated: card.device.is_emulated(),
            memory: match card.memory {
                CudaMemory::Virtual => "virtual",
                CudaMemory::Pooled => "pooled",
                _ => "plain",
            },
            total_bytes: before.total,
            free_bytes: before.free,
            unexplained_bytes: before.total.saturating_sub(before.free),
            limit_bytes: options.device.bytes,
            limit_is_what_was_free: too_large,
            runs,
            failed,
        },
        label,
    })
}

/// The run of one policy on the simulated device.
struct OnPaper {
    result: PolicyResult,
    run: Run,
}

fn simulate(prepared: &Prepared<'_>, options: &Options) -> Result<Vec<OnPaper>, CliError> {
    let all = prepared.policies().into_iter().map(|name| {
        let (result, run) = prepared.run_on(name, options.device.source(), &mut ())?;
        Ok(OnPaper { result, run })
    });
    all.collect()
}

/// Reads the device's memory at the simulation's peak.
struct AtPeak<'a> {
    card: &'a Card,
    op: usize,
    seen: usize,
    /// The driver's free bytes, and the reserved bytes.
    found: Option<(u64, u64)>,
}

impl<S: Source> Observer<S> for AtPeak<'_> {
    fn stepped(&mut self, _: &Op, engine: &mut Engine<S>) {
        if self.seen == self.op
            && let Ok(memory) = self.card.device.memory()
        {
            self.found = Some((memory.free, engine.stats().reserved.current));
        }
        self.seen += 1;
    }
}

fn run_on(
    card: &Card,
    prepared: &Prepared<'_>,
    simulated: &OnPaper,
    mut source: Real<CudaSource>,
    streams: Option<Streams>,
) -> Result<Result<(RunFacts, PolicyResult, Run), millpond_bench::device::Error>, CliError> {
    let free = card.look()?.free;
    let refused = |error: CudaError| CliError::Usage(error.to_string());
    let calls = driver_calls().map_err(refused)?;
    let mut peak = AtPeak {
        card,
        op: simulated.run.peak_op,
        seen: 0,
        found: None,
    };
    let name = &simulated.result.policy;
    let (result, run, check) = match streams {
        None => {
            let (result, run) = prepared.run_on(name, &mut source, &mut peak)?;
            (result, run, None)
        }
        Some(streams) => match run_checked(&card.device, prepared, name, &mut source, streams, &mut peak)? {
            Ok((result, run, checked)) => (result, run, Some(checked.into())),
            Err(error) => return Ok(Err(error)),
        },
    };
    let driver_calls = calls_between(&calls, &driver_calls().map_err(refused)?);
    let unexplained = |now: u64, reserved: u64| free as i64 - now as i64 - reserved as i64;
    let at_end = card.look().map_or(free, |memory| memory.free);
    let (counts, on_paper) = (source.counts(), &simulated.result);
    let facts = RunFacts {
        policy: result.policy.clone(),
        peak_reserved_bytes: counts.held().peak,
        simulated_peak_reserved_bytes: on_paper.peak_reserved_bytes,
        difference_bytes: counts.held().peak as i64 - on_paper.peak_reserved_bytes as i64,
        // Old mappings end when the device has completed the work that uses them, and the host may have to wait for that.
        // A process has fewer addresses than a simulated device, so some ranges are requested again with a smaller size.
        same_calls: result.driver_calls
            == DriverCalls {
                reserve: result.driver_calls.reserve,
                unmap: result.driver_calls.unmap,
                ..on_paper.driver_calls
            }
            && result.stalls >= on_paper.stalls
            && result.moved_bytes == on_paper.moved_bytes,
        unexplained_at_peak_bytes: peak.found.map(|(free, reserved)| unexplained(free, reserved)),
        unexplained_at_end_bytes: unexplained(at_end, source.source().used_bytes()),
        moved_bytes: counts.of(CallKind::Move).bytes + counts.of(CallKind::Alias).bytes,
        streams: source.streams(),
        driver_ms: driver_calls.iter().map(|of| of.ms).sum(),
        modelled_driver_ms: result.modelled_driver_ms,
        check,
        driver_calls,
    };
    Ok(Ok((facts, result, run)))
}
