//! `millpond replay`: replays recordings under policies.

use crate::args::ReplayArgs;
#[cfg(feature = "bench")]
use crate::cuda;
use crate::exit::{CliError, Exit, complain};
use crate::html::{self, Pages};
use crate::progress::Progress;
use crate::ranks::{self, Labelled};
use crate::side_by_side::{self, Shown};
use crate::values::SourceKind;
use crate::{device, files, host, output, settings};
use millpond_replay::{Options, Program, Redactor, ReplayError, Report, page, replay};
use std::path::Path;

/// A finished report with its label.
struct Done {
    report: Report,
    label: String,
}

/// Runs the command.
///
/// If one of several files cannot be replayed, the others still are. The error is reported at once, and the command ends with
/// the exit code for bad input.
pub(crate) fn command(args: &ReplayArgs) -> Result<Exit, CliError> {
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
    let paths = files::expand(&args.files)?;
    if let Some(page) = &args.html {
        // This check comes before minutes of work.
        output::check_writable(page)?;
    }
    let mut redactor = args.output.redact.then(Redactor::default);
    let mut pages = args.html.as_deref().map(Pages::new);
    let mut done = Vec::new();
    let mut failed = 0;
    for path in &paths {
        match file(path, paths.len() == 1, args, &options, &mut redactor, &mut pages) {
            Ok(reports) => done.extend(reports),
            Err(error) if paths.len() == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                complain(&error);
            }
        }
    }
    if done.is_empty() {
        return Err(CliError::Usage(format!(
            "none of {} files could be replayed",
            paths.len()
        )));
    }
    print(&done, args, &options, failed)?;
    if failed > 0 {
        return Err(CliError::Usage(format!(
            "{failed} of {} files could not be replayed",
            paths.len()
        )));
    }
    let labelled: Vec<Labelled<'_>> = done.iter().map(|d| (d.label.as_str(), &d.report)).collect();
    let exhausted = options.device.bytes.is_some() && ranks::none_fits(&labelled);
    Ok(if exhausted { Exit::OutOfMemory } else { Exit::Done })
}

fn file(
    path: &Path,
    alone: bool,
    args: &ReplayArgs,
    options: &Options,
    redactor: &mut Option<Redactor>,
    pages: &mut Option<Pages<'_>>,
) -> Result<Vec<Done>, CliError> {
    let quiet = args.output.quiet;
    let traces = files::traces(path, quiet, &options.selection)?;
    let several = traces.len() > 1;
    let mut done = Vec::new();
    for mut trace in traces {
        if let Some(redactor) = redactor {
            redactor.redact(&mut trace);
        }
        let label = match several {
            true => format!("{} (device {})", trace.origin.name, trace.origin.device),
            false => trace.origin.name.clone(),
        };
        let bar = Progress::share(quiet, &format!("replaying {label}"));
        let replayed = replay(&trace, options, &|done, all| {
            bar.set(done as u64, Some(all as u64));
        })?;
        drop(bar);
        if options.selection.window_us.is_some() && replayed.report.events == 0 {
            // Otherwise the replay would contain only blocks that lived in the window, and its figures would look like those of a run.
            return Err(ReplayError::NothingToReplay {
                trace: label,
                window: true,
            }
            .into());
        }
        let one = Done {
            report: replayed.report,
            label,
        };
        if let Some(pages) = pages {
            let place = pages.place(&one.label, several || !alone);
            let (part, placements);
            let (trace, placements) = if options.selection.window_us.is_some() {
                let program = Program::new(&trace, options.selection)?;
                (part, placements) = page::window(&trace, &program, &replayed.placements);
                (&part, &placements)
            } else {
                (&trace, &replayed.placements)
            };
            html::write(
                &place,
                &shown(&one, args, options),
                trace,
                placements,
                options.device.bytes,
            )?;
            output::note(quiet, &format!("wrote {}", place.display()));
        }
        done.push(one);
    }
    Ok(done)
}

fn shown<'a>(one: &'a Done, args: &ReplayArgs, options: &Options) -> Shown<'a> {
    Shown {
        report: &one.report,
        label: &one.label,
        device: device::describe(&args.device, options.device),
        limited: options.device.bytes.is_some(),
    }
}

fn print(done: &[Done], args: &ReplayArgs, options: &Options, failed: usize) -> Result<(), CliError> {
    if args.output.json {
        return match done {
            [one] => output::print_json(&one.report),
            several => output::print_json(&several.iter().map(|d| &d.report).collect::<Vec<_>>()),
        };
    }
    let limited = options.device.bytes.is_some();
    let mut texts: Vec<String> = done
        .iter()
        .map(|one| side_by_side::text(&shown(one, args, options)))
        .collect();
    if done.len() > 1 {
        let labelled: Vec<Labelled<'_>> = done.iter().map(|d| (d.label.as_str(), &d.report)).collect();
        texts.push(ranks::text(&labelled, limited, failed));
    }
    output::print(&format!("{}\n{}\n", texts.join("\n"), side_by_side::legend()))
}
