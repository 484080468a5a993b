//! `millpond tune`: searches the settings of allocators.

use crate::answer::Answer;
use crate::args::TuneArgs;
use crate::exit::{CliError, Exit};
use crate::progress::{Progress, Work};
use crate::table::{Align, Grid, Row};
use crate::terminal::{bold, width};
use crate::text::{Unit, duration_us, nearest, number, overhead, size, wrap};
use crate::values::SourceKind;
use crate::{device, edits, files, output, terminal, verdict};
use millpond_engine::{display_size_exact, display_size_up};
use millpond_replay::{
    Choice, Family, Gain, Redactor, Selection, Threads, Trial, TuneOptions, Tuned, TunedFamily, tune,
};
use millpond_trace::{Action, Trace};

/// Runs the command.
pub(crate) fn command(args: &TuneArgs) -> Result<Exit, CliError> {
    let quiet = args.output.quiet;
    let work = Work::new(quiet);
    let options = options(args, args.output.threads())?;
    let traces = files::traces(&args.file, &work, &options.selection)?;
    let mut trace = heaviest(traces, quiet)?;
    if args.output.redact {
        Redactor::default().redact(&mut trace);
    }
    let tuned = search(args, &options, &trace, &work)?;
    if args.output.json {
        output::print_json(&tuned)?;
    } else {
        output::print(&text(&tuned, args, &options))?;
    }
    Ok(if fits(&tuned) {
        Exit::Done
    } else {
        Exit::OutOfMemory
    })
}

/// Searches settings for a trace in memory.
pub(crate) fn answer(args: &TuneArgs, trace: &Trace, work: &Work) -> Result<Answer, CliError> {
    let options = options(args, work.threads().clone())?;
    let tuned = search(args, &options, trace, &work.with_quiet(args.output.quiet))?;
    Ok(Answer {
        device: tuned.device,
        sentences: tuned.verdict.sentences.clone(),
        text: terminal::plain(&text(&tuned, args, &options)),
        json: output::json(&tuned)?,
        page: None,
    })
}

fn options(args: &TuneArgs, threads: Threads) -> Result<TuneOptions, CliError> {
    if args.device.source != SourceKind::Sim {
        return Err(CliError::Usage(
            "tune tries settings on a simulated device; replay one with `replay --source host --conf`, or on a GPU with \
             `replay --source cuda:0 --conf`"
                .to_owned(),
        ));
    }
    Ok(TuneOptions {
        families: families(&args.policy)?,
        device: device::device(&args.device)?,
        selection: Selection::from(&args.selection),
        costs: device::costs(&args.device)?,
        threads,
    })
}

/// Applies the edits, and searches the settings.
fn search(args: &TuneArgs, options: &TuneOptions, trace: &Trace, work: &Work) -> Result<Tuned, CliError> {
    let edited = edits::apply(trace, &args.edit)?;
    let (trace, edits) = match &edited {
        Some(edited) => (&edited.trace, edited.edits.clone()),
        None => (trace, Vec::new()),
    };
    let bar = Progress::steps(work, "trying settings");
    let mut tuned = tune(trace, options, &|done, all| {
        bar.set(done as u64, Some(all as u64));
    })?;
    drop(bar);
    tuned.edits = edits;
    Ok(tuned)
}

/// Returns whether the program finishes on the device with anything that was tried.
fn fits(tuned: &Tuned) -> bool {
    let verdict = &tuned.verdict;
    let mut choices = std::iter::once(&verdict.own).chain(&verdict.better);
    let mut trials = tuned.families.iter().flat_map(|family| &family.trials);
    choices.any(|choice| choice.result.first_failure.is_none()) || trials.any(|trial| trial.fits)
}

fn families(named: &[String]) -> Result<Vec<Family>, CliError> {
    let known: Vec<Family> = Family::all().collect();
    let find = |name: &String| {
        let unknown = || {
            let names: Vec<&str> = known.iter().map(|family| family.name()).collect();
            let hint = nearest(name.trim(), names.iter().copied())
                .map_or_else(String::new, |near| format!(" did you mean '{near}'?"));
            CliError::Usage(format!(
                "no settings to search for '{name}':{hint} choose one of {}",
                names.join(", ")
            ))
        };
        known
            .iter()
            .copied()
            .find(|family| family.name() == name.trim())
            .ok_or_else(unknown)
    };
    named.iter().map(find).collect()
}

/// Returns the trace of the device that holds the most, among those that ran out of memory if there are any. One environment applies
/// to all devices of a process, so only this one is searched.
fn heaviest(mut traces: Vec<Trace>, quiet: bool) -> Result<Trace, CliError> {
    let several = traces.len() > 1;
    let ran_out = |trace: &Trace| {
        let mut actions = trace.events.iter().map(|event| event.action);
        actions.any(|action| action == Action::OutOfMemory)
    };
    let why = match traces.iter().any(ran_out) {
        true => {
            traces.retain(ran_out);
            "ran out of memory"
        }
        false => "holds the most",
    };
    let heaviest = files::heaviest(traces);
    let heaviest = heaviest.ok_or_else(|| CliError::Usage("the recording holds no device".to_owned()))?;
    if several {
        let device = heaviest.origin.device;
        output::note(
            quiet,
            &format!("settings are searched for device {device}, which {why}"),
        );
    }
    Ok(heaviest)
}

fn text(tuned: &Tuned, args: &TuneArgs, options: &TuneOptions) -> String {
    let columns = width();
    let device = match (options.device.bytes, tuned.device_bytes) {
        (None, Some(had)) => format!(
            "device: {}, which the program could have when it ran out of memory",
            display_size_exact(had)
        ),
        _ => device::describe(&args.device, options.device),
    };
    let mut out = format!("{}{}\n", edits::text(&tuned.edits), bold(&tuned.trace));
    let facts = format!("peak requested {}; {device}", size(tuned.peak_requested_bytes));
    out.push_str(&format!("{}\n", wrap(&facts, columns, 0)));
    out.push_str(&format!("\n{}", verdict::text(&tuned.verdict)));
    out.extend(edits::best(&tuned.proposals).map(|best| verdict::sentence(&best)));
    for family in &tuned.families {
        out.push_str(&format!("\n{}\n", table(family, tuned, args.top)));
        out.extend(gains(family, tuned).map(|gains| format!("\n{}", verdict::sentence(&gains))));
    }
    out.push_str(&edits::proposals(
        &tuned.proposals,
        &tuned.edits,
        tuned.device_bytes.is_some(),
    ));
    let lines: Vec<String> = tuned.families.iter().filter_map(TunedFamily::line).collect();
    if !lines.is_empty() {
        out.push_str("\nTo paste into the shell that starts the program:\n");
    }
    for line in lines {
        out.push_str(&format!("{}\n", bold(&line)));
    }
    out
}

/// Returns the owner of the settings for users who know allocators by their programs.
fn owner(family: Family) -> &'static str {
    match family {
        Family::Torch => "PyTorch's allocator",
        Family::Millpond => "the policy millpond",
    }
}

/// Returns the table of the recommended setting, the best settings by their figures, and the defaults, whatever their rank.
fn table(family: &TunedFamily, tuned: &Tuned, top: usize) -> String {
    let mut chosen: Vec<usize> = Vec::new();
    for (at, trial) in family.trials.iter().enumerate() {
        // Settings with equal results share one row, which shows the simplest one. It comes first.
        let told = |other: &usize| family.trials.get(*other).is_some_and(|other| alike(other, trial));
        if chosen.len() < top.max(1) && !chosen.iter().any(told) {
            chosen.push(at);
        }
    }
    for always in [family.best, family.default] {
        if !chosen.contains(&always) {
            chosen.push(always);
        }
    }
    chosen.sort_unstable();
    let trials: Vec<(usize, &Trial)> = chosen
        .iter()
        .filter_map(|at| Some((*at, family.trials.get(*at)?)))
        .collect();
    let largest = trials
        .iter()
        .map(|(_, t)| t.peak_reserved_bytes)
        .max()
        .unwrap_or(0);
    let unit = Unit::for_largest(largest);
    let column =
        |of: &dyn Fn(usize, &Trial) -> String| trials.iter().map(|(at, t)| of(*at, t)).collect::<Vec<_>>();
    let mut grid = Grid::new();
    let is_best = |at, trial: &Trial| at == family.best && trial.fits;
    let mark = |at, trial: &Trial| if is_best(at, trial) { "▸" } else { " " };
    grid.column(" ", Align::Left, column(&|at, t| mark(at, t).to_owned()));
    if tuned.device_bytes.is_some() {
        grid.column(
            "fits",
            Align::Left,
            column(&|_, t| if t.fits { "yes" } else { "no" }.to_owned()),
        );
    }
    grid.column(
        "needs",
        Align::Right,
        column(&|_, t| {
            t.smallest_device_bytes
                .map_or_else(|| "-".to_owned(), |bytes| unit.show_needed(bytes))
        }),
    );
    grid.column(
        "peak",
        Align::Right,
        column(&|_, t| unit.show(t.peak_reserved_bytes)),
    );
    grid.column(
        "overhead",
        Align::Right,
        column(&|_, t| {
            if t.fits {
                overhead(t.overhead)
            } else {
                "-".to_owned()
            }
        }),
    );
    grid.column("stalls", Align::Right, column(&|_, t| number(t.stalls)));
    grid.column(
        "driver",
        Align::Right,
        column(&|_, t| duration_us(t.modelled_driver_ms * 1e3)),
    );
    let looks: Vec<Row> = trials
        .iter()
        .map(|(at, trial)| match trial.fits {
            false => Row::Failed,
            true if *at == family.best => Row::Best,
            true => Row::Plain,
        })
        .collect();
    let settings = column(&|_, t| {
        if t.conf.is_empty() {
            "(the defaults)".to_owned()
        } else {
            t.conf.clone()
        }
    });
    let order = match family.trials.get(family.best).is_some_and(|best| best.fits) {
        true => {
            "The first is the one to use; the others are sorted by memory in steps of 2 %, stalls and driver time. A longer \
             setting must be clearly better."
        }
        false => {
            "The program finishes with none of them. Those with which it gets furthest follow the defaults."
        }
    };
    let head = format!(
        "{} settings of {} ({}) tried. {order} needs: the smallest device on which the program finishes, for the best settings",
        number(family.trials.len() as u64),
        owner(family.family),
        family.variable
    );
    let head = wrap(&head, width(), 0);
    format!(
        "{}\n\n{}",
        head,
        grid.render_with_notes("setting", &settings, &looks)
    )
}

fn alike(a: &Trial, b: &Trial) -> bool {
    let figures = |t: &Trial| {
        (
            t.fits,
            t.served,
            t.smallest_device_bytes,
            t.peak_reserved_bytes,
            t.stalls,
        )
    };
    figures(a) == figures(b) && a.modelled_driver_ms == b.modelled_driver_ms && a.hit_rate == b.hit_rate
}

/// Settings longer than this are named by their row in the table.
const SHORT: usize = 40;

/// Returns the result of the search in a sentence with numbers. Returns `None` if the verdict says the same.
fn gains(family: &TunedFamily, tuned: &Tuned) -> Option<String> {
    let name = owner(family.family);
    let (best, default) = (
        family.trials.get(family.best)?,
        family.trials.get(family.default)?,
    );
    if !best.fits {
        return Some(format!("{name}: no setting tried makes it fit."));
    }
    let is_told =
        |better: &Choice| (better.result.policy.as_str(), &better.result.conf) == (best.policy, &best.conf);
    let is_own = family
        .trials
        .iter()
        .any(|trial| trial.policy == tuned.verdict.own.result.policy);
    if (tuned.verdict.better.as_ref().is_some_and(is_told) && family.gains.len() == 1)
        || (is_own && family.gains.is_empty())
    {
        return None;
    }
    let gains: Vec<String> = family.gains.iter().map(|gain| said(gain, default)).collect();
    if gains.is_empty() {
        return Some(format!(
            "{name}: nothing to set. The defaults are as good as anything tried. If {} is set, unset it.",
            family.variable
        ));
    }
    let named = if best.conf.len() <= SHORT {
        best.conf.as_str()
    } else {
        "the first setting above"
    };
    let mut said = format!("{name}: {named} {}.", gains.join(", and "));
    if best.conf.contains("per_process_memory_fraction") {
        said.push_str(
            " If PyTorch does not know per_process_memory_fraction, call \
             torch.cuda.set_per_process_memory_fraction(1.0) in the program instead.",
        );
    }
    Some(said)
}

fn said(gain: &Gain, default: &Trial) -> String {
    match gain {
        Gain::Fits => "makes it fit, which the defaults do not".to_owned(),
        Gain::Needs { bytes } => {
            let before = default
                .smallest_device_bytes
                .unwrap_or(default.peak_reserved_bytes);
            let after = before.saturating_sub(*bytes);
            let share = 100.0 * *bytes as f64 / before.max(1) as f64;
            format!(
                "lowers what the program needs by {} ({share:.1} %) to {}",
                size(*bytes),
                display_size_up(after)
            )
        }
        Gain::Stalls { fewer } => {
            format!("saves {} of {} stalls", number(*fewer), number(default.stalls))
        }
        Gain::DriverTime { milliseconds } => {
            let before = default.modelled_driver_ms;
            let share = 100.0 * milliseconds / before.max(f64::MIN_POSITIVE);
            format!(
                "saves {} ({share:.0} %) of {} in driver calls, modelled",
                duration_us(milliseconds * 1e3),
                duration_us(before * 1e3)
            )
        }
        _ => String::new(),
    }
}
