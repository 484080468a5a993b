//! `millpond replay`: replays recordings under policies.

use crate::answer::Answer;
use crate::args::ReplayArgs;
#[cfg(feature = "bench")]
use crate::cuda;
use crate::exit::{CliError, Exit};
use crate::files::Results;
use crate::html::{self, Pages};
use crate::progress::{Progress, Work};
use crate::ranks::{self, Labelled};
use crate::side_by_side::{self, Shown};
use crate::values::SourceKind;
use crate::{device, edits, files, host, output, settings, terminal};
use millpond_replay::{Options, Program, Report, page, replay};
use millpond_trace::Trace;
use std::path::PathBuf;

/// A finished report with its label, and the path of its page.
struct Done {
    report: Report,
    label: String,
    page: Option<PathBuf>,
}

/// Runs the command.
///
/// If one of several files cannot be replayed, the others still are. The error is reported at once, and the command ends with
/// the exit code for bad input.
pub(crate) fn command(args: &ReplayArgs) -> Result<Exit, CliError> {
    if args.device.source != SourceKind::Sim && !args.edit.is_empty() {
        return Err(CliError::Usage(
            "--edit changes a replay on a simulated device: leave out --source".to_owned(),
        ));
    }
    match args.device.source {
        SourceKind::Sim => host::refuse_without(args)?,
        #[cfg(feature = "bench")]
        SourceKind::Host => return host::command(args),
        #[cfg(feature = "bench")]
        SourceKind::Cuda(number) => return cuda::command(args, number),
        #[cfg(not(feature = "bench"))]
        source => return Err(CliError::not_built(format!("--source {source}"), "bench")),
    }
    let options = settings::options(args)?;
    let results = all(args, &options)?;
    let done = &results.done;
    if done.is_empty() {
        return Err(CliError::Usage(format!(
            "none of {} files could be replayed",
            results.failed
        )));
    }
    print(done, args, &options, results.failed)?;
    results.check()?;
    let labelled: Vec<Labelled<'_>> = done.iter().map(|d| (d.label.as_str(), &d.report)).collect();
    let exhausted = options.device.bytes.is_some() && ranks::none_fits(&labelled);
    Ok(if exhausted { Exit::OutOfMemory } else { Exit::Done })
}

/// Replays traces in memory. Returns one answer for each.
pub(crate) fn answers(args: &ReplayArgs, traces: &[Trace], work: &Work) -> Result<Vec<Answer>, CliError> {
    if args.device.source != SourceKind::Sim {
        return Err(CliError::Usage(
            "a recording in memory is replayed on a simulated device: leave out --source".to_owned(),
        ));
    }
    host::refuse_without(args)?;
    let mut options = settings::options(args)?;
    options.threads = work.threads().clone();
    let work = work.with_quiet(args.output.quiet);
    let several = traces.len() > 1;
    let mut pages = pages(args)?;
    let answer = |trace: &Trace| {
        let label = files::label(trace, several);
        let done = one(trace, label, several, args, &options, pages.as_mut(), &work)?;
        Ok(Answer {
            device: done.report.device,
            sentences: done.report.answer(),
            json: output::json(&done.report)?,
            text: terminal::plain(&text(std::slice::from_ref(&done), args, &options, 0)),
            page: done.page,
        })
    };
    traces.iter().map(answer).collect()
}

/// Replays each trace of the files, and writes the pages.
fn all(args: &ReplayArgs, options: &Options) -> Result<Results<Done>, CliError> {
    let mut pages = pages(args)?;
    let work = Work::new(args.output.quiet);
    files::replay_each(args, |trace, label, several| {
        one(trace, label, several, args, options, pages.as_mut(), &work)
    })
}

/// Returns the names of the pages. Checks first that the file can be written, because the replay may take minutes.
fn pages(args: &ReplayArgs) -> Result<Option<Pages<'_>>, CliError> {
    if let Some(page) = &args.html {
        output::check_writable(page)?;
    }
    Ok(args.html.as_deref().map(Pages::new))
}

/// Replays one trace, and writes its page.
fn one(
    trace: &Trace,
    label: String,
    several: bool,
    args: &ReplayArgs,
    options: &Options,
    pages: Option<&mut Pages<'_>>,
    work: &Work,
) -> Result<Done, CliError> {
    let quiet = args.output.quiet;
    let edited = edits::apply(trace, &args.edit)?;
    let trace = edited.as_ref().map_or(trace, |edited| &edited.trace);
    let bar = Progress::share(work, &format!("replaying {label}"));
    let mut replayed = replay(trace, options, &|done, all| {
        bar.set(done as u64, Some(all as u64));
    })?;
    drop(bar);
    replayed.report.edits = edited
        .as_ref()
        .map_or_else(Vec::new, |edited| edited.edits.clone());
    files::check_window(args, replayed.report.events, &label)?;
    let mut one = Done {
        report: replayed.report,
        label,
        page: None,
    };
    if let Some(pages) = pages {
        let place = pages.place(&one.label, several);
        let (part, placements);
        let (trace, placements) = if options.selection.window_us.is_some() {
            let program = Program::new(trace, options.selection)?;
            (part, placements) = page::window(trace, &program, &replayed.placements);
            (&part, &placements)
        } else {
            (trace, &replayed.placements)
        };
        html::write(
            &place,
            &shown(&one, args, options),
            trace,
            placements,
            options.device.bytes,
        )?;
        output::note(quiet, &format!("wrote {}", place.display()));
        one.page = Some(place);
    }
    Ok(one)
}

fn shown<'a>(one: &'a Done, args: &ReplayArgs, options: &Options) -> Shown<'a> {
    Shown {
        report: &one.report,
        label: &one.label,
        device: device::describe(&args.device, options.device),
        device_bytes: options.device.bytes,
        detailed: !args.policy.is_empty() || args.all,
        calls: args.calls,
    }
}

fn print(done: &[Done], args: &ReplayArgs, options: &Options, failed: usize) -> Result<(), CliError> {
    if args.output.json {
        return match done {
            [one] => output::print_json(&one.report),
            several => output::print_json(&several.iter().map(|d| &d.report).collect::<Vec<_>>()),
        };
    }
    output::print(&text(done, args, options, failed))
}

/// Returns the text that the command prints.
fn text(done: &[Done], args: &ReplayArgs, options: &Options, failed: usize) -> String {
    let limited = options.device.bytes.is_some();
    let shown: Vec<Shown<'_>> = done.iter().map(|one| shown(one, args, options)).collect();
    let text = |one: &Shown<'_>| format!("{}{}", edits::text(&one.report.edits), side_by_side::text(one));
    let mut texts: Vec<String> = shown.iter().map(text).collect();
    if done.len() > 1 {
        let labelled: Vec<Labelled<'_>> = done.iter().map(|d| (d.label.as_str(), &d.report)).collect();
        texts.push(ranks::text(&labelled, limited, failed));
    }
    format!("{}\n{}\n", texts.join("\n"), side_by_side::legend(&shown))
}
