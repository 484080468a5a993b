//! Runs the command from the parsed arguments to the output.

use super::facts::Facts;
use super::{refuse, report};
use crate::args::{Paged, ReplayArgs, Touched};
use crate::bench::BEHIND;
use crate::exit::{CliError, Exit, complain};
use crate::progress::{Progress, Work};
use crate::text::size;
use crate::values::Scale;
use crate::{files, output, settings};
use millpond_bench::host::Again;
use millpond_bench::host::recording::{Refused, Replay, Touch, replay as replay_on_host};
use millpond_replay::{Program, Selection};
use millpond_trace::Trace;

/// The default number of runs of each allocator.
const ROUNDS: u16 = 3;

/// The options that apply to every recording.
struct Rules {
    policies: Vec<String>,
    scale: Option<u64>,
    touch: Touch,
    rounds: usize,
    /// The settings of the pools.
    conf: Option<String>,
}

/// Runs the command. If one file cannot be replayed, the others still are, as with a simulated device.
pub(crate) fn command(args: &ReplayArgs) -> Result<Exit, CliError> {
    refuse_with(args)?;
    let rules = rules(args)?;
    let results = files::replay_each(args, |trace, label, _| measure(trace, label, args, &rules))?;
    let done = &results.done;
    if args.output.json {
        output::print_json_list(done)?;
    } else if !done.is_empty() {
        let texts: Vec<String> = done.iter().map(report::text).collect();
        output::print(&format!("{}\n{}\n", texts.join("\n"), report::legend(done)))?;
    }
    let failed: Vec<&String> = done.iter().flat_map(|facts| &facts.failed).collect();
    failed.iter().for_each(|line| complain(line));
    results.check()?;
    Ok(if failed.is_empty() {
        Exit::Done
    } else {
        Exit::Failed
    })
}

fn rules(args: &ReplayArgs) -> Result<Rules, CliError> {
    let (settings, _) = settings::read(args)?;
    let ours = ["millpond".to_owned()];
    let named = if args.policy.is_empty() {
        &ours[..]
    } else {
        &args.policy
    };
    Ok(Rules {
        conf: settings::text(args)?.map(|(text, _)| text),
        policies: settings::choose(named, &settings, args.output.quiet)?,
        scale: match args.host.scale {
            Some(Scale::By(by)) => Some(by),
            Some(Scale::Auto) | None => None,
        },
        touch: match args.host.touch {
            Some(Touched::None) => Touch::None,
            Some(Touched::Page) | None => Touch::Page,
            Some(Touched::Full) => Touch::Full,
        },
        rounds: usize::from(args.host.rounds.unwrap_or(ROUNDS)),
    })
}

fn measure(trace: &Trace, label: String, args: &ReplayArgs, rules: &Rules) -> Result<Facts, CliError> {
    let program = Program::as_recorded(trace, Selection::from(&args.selection))?;
    files::check_window(args, program.events, &label)?;
    let what = Replay {
        program: &program,
        scale: rules.scale,
        touch: rules.touch,
        check: args.host.check,
        rounds: rules.rounds,
        policies: &rules.policies,
        conf: rules.conf.as_deref(),
    };
    let bar = Progress::steps(&Work::new(args.output.quiet), &format!("replaying {label}"));
    let mut progress = |done: usize, all: usize| bar.set(done as u64, Some(all as u64));
    let replayed = replay_on_host(&what, &Again::behind(&BEHIND), &mut progress);
    drop(bar);
    let refused = |refused| match refused {
        Refused::TooLarge {
            peak,
            available,
            scale,
        } => CliError::Usage(format!(
            "{label} holds {} at its peak, and {} of this machine's memory is free: leave --scale out, or divide by {scale} or more",
            size(peak),
            size(available)
        )),
        other => CliError::Usage(format!("{label}: {other}")),
    };
    let replayed = replayed.map_err(refused)?;
    Ok(Facts::new(&label, trace, &program, &what, replayed))
}

/// Refuses options that apply only to a simulated device if the memory is real.
///
/// # Errors
/// Returns an error if one of them was given.
fn refuse_with(args: &ReplayArgs) -> Result<(), CliError> {
    let given = [
        ("--device", args.device.device.is_some()),
        ("--paged off", args.device.paged == Paged::Off),
        ("--costs", args.device.costs.is_some()),
        ("--fit", args.fit),
        ("--torch-conf", args.torch_conf.is_some()),
        ("--tick", args.tick.is_some()),
        ("--plan", args.plan.is_some()),
        ("--verify", args.verify),
        ("--threads", args.output.threads.is_some()),
        ("--html", args.html.is_some()),
    ];
    refuse(&given, "is for a simulated device: omit it or --source host")
}
