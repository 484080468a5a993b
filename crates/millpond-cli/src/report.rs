//! `millpond report`: shows which code held memory in a recording and when, and recommends changes.

mod json;
mod refused;
mod sections;

use crate::answer::Answer;
use crate::args::ReportArgs;
use crate::exit::{CliError, Exit};
use crate::progress::{Progress, Work};
use crate::state::State;
use crate::symbols::ModuleSymbols;
use crate::{files, output, plot, stack, terminal};
use millpond_replay::analysis::{
    AnalysisError, At, By, Finding, Lines, Moment, RecordedSteps, Timeline, TimelineOptions, Window, at,
    report_with_timeline,
};
use millpond_replay::{Options, OutOfMemory, Selection, Verdict};
use millpond_trace::history::History;
use refused::refused;
use std::path::Path;

/// The number of blocks that are listed at a moment.
const LARGEST: usize = 5;
/// The number of columns of a plot in a file.
const PLOT_COLUMNS: usize = 1000;
/// The number of bands of a plot.
const BANDS: usize = 8;

/// The data of a report.
pub(crate) struct Told<'a> {
    /// The name of the file.
    pub(crate) name: String,
    pub(crate) args: &'a ReportArgs,
    /// The grouping of held bytes.
    pub(crate) by: By,
    pub(crate) history: &'a History,
    pub(crate) at: At,
    /// The data beyond one moment. `None` if the user asked for a moment only.
    pub(crate) whole: Option<Whole>,
    /// Why memory ran out, one entry for each device on which it did.
    pub(crate) out_of_memory: Vec<OutOfMemory>,
    /// The memory that the program needs on the device that holds the most. `None` if nothing can be replayed, or if that
    /// would take too long.
    pub(crate) verdict: Option<Verdict>,
    /// The device of the verdict, and whether the recording has several.
    pub(crate) verdict_device: i32,
    pub(crate) has_several_devices: bool,
    /// Sentences about code without names, and the reasons.
    pub(crate) nameless: Vec<String>,
    /// The segments of each device without a history.
    pub(crate) states: Vec<State>,
}

/// The data of a window.
pub(crate) struct Whole {
    pub(crate) steps: Option<RecordedSteps>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) timeline: Timeline,
}

/// Runs the command.
pub(crate) fn command(args: &ReportArgs) -> Result<Exit, CliError> {
    if let Some(path) = &args.plot {
        plot::check(path)?;
    }
    let work = Work::new(args.quiet);
    let history = files::open_history(&args.file, &work)?;
    if history.state_only && args.plot.is_some() {
        return Err(CliError::NoHistory {
            path: args.file.clone(),
            nothing: "--plot has nothing to draw",
            instead: "see the state without --plot",
        });
    }
    if args.device.is_some() && history.standing.is_empty() {
        return Err(CliError::Usage(format!(
            "--device is for snapshots without a history; {} has one: run `millpond replay` with the same --device",
            args.file.display()
        )));
    }
    let told = told(args, &history, &work)?;
    if let Some((path, whole)) = args.plot.as_ref().zip(told.whole.as_ref()) {
        plot::write(path, &whole.timeline, &told.name)?;
        output::note(args.quiet, &format!("wrote {}", path.display()));
    }
    if args.json {
        output::print_json(&json::value(&told))?;
    } else {
        output::print(&sections::text(&told))?;
    }
    Ok(Exit::Done)
}

/// Returns the report on a recording in a file.
pub(crate) fn answer(args: &ReportArgs, work: &Work) -> Result<Answer, CliError> {
    let work = &work.with_quiet(args.quiet);
    let history = files::open_history(&args.file, work)?;
    let told = told(args, &history, work)?;
    let verdict = told.verdict.iter().flat_map(|verdict| &verdict.sentences);
    let mut sentences: Vec<String> = told
        .out_of_memory
        .iter()
        .flat_map(OutOfMemory::sentences)
        .collect();
    sentences.extend(verdict.cloned());
    Ok(Answer {
        device: -1,
        sentences,
        text: terminal::plain(&sections::text(&told)),
        json: output::json(&json::value(&told))?,
        page: None,
    })
}

/// Returns the bytes held over time in a recording in a file, in as many columns as a plot in a file has.
pub(crate) fn timeline(args: &ReportArgs, work: &Work) -> Result<Timeline, CliError> {
    let work = &work.with_quiet(args.quiet);
    let history = files::open_history(&args.file, work)?;
    if history.state_only {
        return Err(CliError::NoHistory {
            path: args.file.clone(),
            nothing: "it has no timeline",
            instead: "see the state with `millpond report`",
        });
    }
    let told = tell(args, &history, window(args), PLOT_COLUMNS, work).map_err(failed(&args.file))?;
    told.whole
        .map(|whole| whole.timeline)
        .ok_or_else(|| CliError::Usage("one moment has no timeline".to_owned()))
}

fn window(args: &ReportArgs) -> Window {
    let (from, to) = args.time_window.unwrap_or((0, u64::MAX));
    Window::Times { from, to }
}

fn told<'a>(args: &'a ReportArgs, history: &'a History, work: &Work) -> Result<Told<'a>, CliError> {
    let window = window(args);
    let columns = match args.plot {
        Some(_) => PLOT_COLUMNS,
        None => sections::plot_columns(),
    };
    let mut told = tell(args, history, window, columns, work).map_err(failed(&args.file))?;
    replay(&mut told, window, work)?;
    Ok(told)
}

/// Replays the recording, and adds why memory ran out on each device and what the program needs. This reads the file
/// again, because rows cannot be replayed.
fn replay(told: &mut Told<'_>, window: Window, work: &Work) -> Result<(), CliError> {
    let (args, history) = (told.args, told.history);
    let has_failed = told.at.summary.refused > 0;
    let is_short = told.at.summary.allocated.blocks <= Verdict::MOST_ALLOCATIONS;
    if told.whole.is_none() || !(is_short || has_failed) {
        return Ok(());
    }
    let recording = match files::load(&args.file, work) {
        // Some recordings have rows that cannot be replayed.
        Err(_) if !has_failed => return Ok(()),
        loaded => loaded?,
    };
    let window_us = match window {
        Window::Times {
            from: 0,
            to: u64::MAX,
        } => None,
        Window::Times { from, to } => Some((from / 1_000, to / 1_000)),
        Window::Rows { .. } => None,
    };
    let options = Options {
        selection: Selection {
            window_us,
            ..Selection::default()
        },
        threads: work.threads().clone(),
        ..Options::default()
    };
    if has_failed {
        let symbols = ModuleSymbols::new(&history.definitions);
        let mut refused = refused(history, window).map_err(|error| failed(&args.file)(error.into()))?;
        for trace in &recording.traces {
            let Some(mut explained) = OutOfMemory::recorded(trace, &options) else {
                continue;
            };
            if let Some(refused) = refused.remove(&trace.origin.device) {
                let added = refused.add_to(&mut explained, history, &symbols);
                added.map_err(failed(&args.file))?;
            }
            told.out_of_memory.push(explained);
        }
    }
    told.has_several_devices = recording.traces.len() > 1;
    if is_short && let Some(trace) = files::heaviest(recording.traces) {
        told.verdict_device = trace.origin.device;
        let bar = Progress::steps(work, "replaying");
        let report = |done: usize, all: usize| bar.set(done as u64, Some(all as u64));
        told.verdict = Verdict::of(&trace, &options, &report).ok();
    }
    work.check()
}

fn failed(path: &Path) -> impl Fn(AnalysisError) -> CliError {
    let path = path.to_owned();
    move |source| CliError::Analysis {
        path: path.clone(),
        source,
    }
}

fn tell<'a>(
    args: &'a ReportArgs,
    history: &'a History,
    window: Window,
    columns: usize,
    work: &Work,
) -> Result<Told<'a>, AnalysisError> {
    let by = args.by.map_or_else(|| By::usual(&history.definitions), By::from);
    let options = TimelineOptions {
        by,
        columns,
        bands: BANDS.min(args.top),
    };
    let _bar = Progress::share(work, "adding up the events");
    let symbols = ModuleSymbols::new(&history.definitions);
    // A recording that contains only the state at one moment is shown at its end.
    let moment = args.at.or(history.state_only.then_some(Moment::End));
    let (at, whole) = match moment {
        Some(moment) => (at(history, &symbols, Lines::Told, window, moment, LARGEST)?, None),
        None => {
            let (report, mut timeline) = report_with_timeline(history, &symbols, window, LARGEST, &options)?;
            // A legend has room for one line of a stack.
            for band in &mut timeline.bands {
                band.name = stack::head(&band.name);
            }
            let whole = Whole {
                steps: report.steps,
                findings: report.findings,
                timeline,
            };
            (At::peak(report.summary), Some(whole))
        }
    };
    let name = args.file.file_name().unwrap_or(args.file.as_os_str());
    Ok(Told {
        name: name.to_string_lossy().into_owned(),
        args,
        by,
        history,
        at,
        whole,
        out_of_memory: Vec::new(),
        verdict: None,
        verdict_device: 0,
        has_several_devices: false,
        nameless: symbols.cautions(),
        states: history
            .standing
            .iter()
            .map(|of| State::new(of, args.device.as_ref()))
            .collect(),
    })
}
