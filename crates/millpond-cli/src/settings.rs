//! The options of a replay: the policies that it runs, and their settings.

use crate::args::ReplayArgs;
use crate::exit::CliError;
use crate::output::note;
use crate::text::{self, counted, size};
use crate::values::SourceKind;
use crate::{device, files};
use millpond_engine::plan::{Plan, PlanError};
use millpond_engine::{ConfError, MillpondConf, Settings, TorchConf, policies};
use millpond_replay::{Applied, Family, Options, Selection, TickEvery, check_settings};
use std::env::VarError;
use std::io::ErrorKind;
use std::path::Path;

/// The environment variable that is read if `--conf` is not given.
const VARIABLE: &str = "MILLPOND_CONF";

/// The most bytes that are read from a plan. The longest plan, of 2^20 lines, is shorter. The limit keeps a recording that
/// is named by mistake from being read completely.
const LONGEST: u64 = 64 << 20;

/// Builds the options of a replay from the command line.
pub(crate) fn options(args: &ReplayArgs) -> Result<Options, CliError> {
    let (settings, applied) = read(args)?;
    let short = args.policy.is_empty() && !args.all && args.device.source == SourceKind::Sim;
    let policies = match short {
        true => Vec::new(),
        false => choose(&args.policy, &settings, args.output.quiet)?,
    };
    if settings.plan.is_some() && !short && !policies.iter().any(|name| name == "planned") {
        return Err(CliError::Usage(
            "--plan is for the policy planned, which --policy leaves out".to_owned(),
        ));
    }
    Ok(Options {
        policies,
        verdict: true,
        applied,
        settings,
        device: device::device(&args.device)?,
        selection: Selection::from(&args.selection),
        fit: args.fit,
        verify: args.verify,
        placements: args.html.is_some(),
        costs: device::costs(&args.device)?,
        tick: args.tick,
        threads: args.output.threads(),
    })
}

/// Returns the settings of pools and their policies, and their source: `--conf` or else `MILLPOND_CONF`, if either is set.
pub(crate) fn text(args: &ReplayArgs) -> Result<Option<(String, &'static str)>, CliError> {
    match &args.conf {
        Some(text) => Ok(Some((value(text, VARIABLE).to_owned(), "--conf"))),
        None => Ok(from_environment()?.map(|text| (text, VARIABLE))),
    }
}

/// Returns the value in a line that sets a variable, as `tune` prints it. Any other text is returned unchanged.
fn value<'a>(text: &'a str, variable: &str) -> &'a str {
    let line = text.trim();
    let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
    let value = line
        .strip_prefix(variable)
        .and_then(|rest| rest.strip_prefix('='));
    value.unwrap_or(text)
}

/// Parses the settings of policies. Settings that only pools have are checked too.
#[cfg(target_os = "linux")]
fn parse(text: &str) -> Result<Conf, ConfError> {
    let read = millpond::PoolBuilder::read_settings(text)?;
    Ok(Conf {
        policy: read.policy,
        text: read.policy_text,
        passed_over: read.pool_text,
    })
}

/// Without pools, there are no settings of pools.
#[cfg(not(target_os = "linux"))]
fn parse(text: &str) -> Result<Conf, ConfError> {
    Ok(Conf {
        policy: MillpondConf::parse(text)?,
        text: text.to_owned(),
        passed_over: String::new(),
    })
}

struct Conf {
    policy: MillpondConf,
    /// The settings of the policies.
    text: String,
    /// The settings of pools.
    passed_over: String,
}

/// Reads `--torch-conf`, `--conf` or else `MILLPOND_CONF`, and `--plan`. Returns the settings and their sources.
pub(crate) fn read(args: &ReplayArgs) -> Result<(Settings, Vec<Applied>), CliError> {
    let mut settings = Settings::default();
    let mut applied = Vec::new();
    let mut apply = |policies: [&str; 2], text: &str, from| {
        applied.push(Applied {
            policies: policies.map(str::to_owned).to_vec(),
            settings: text.to_owned(),
            from,
        });
    };
    let refused = |option| move |source| CliError::Conf { option, source };
    if let Some(text) = &args.torch_conf {
        let text = value(text, Family::Torch.variable());
        settings.torch = TorchConf::parse(text).map_err(refused("--torch-conf"))?;
        apply(["torch-native", "torch-expandable"], text, "--torch-conf");
    }
    if let Some((text, from)) = text(args)? {
        let conf = parse(&text).map_err(refused(from))?;
        settings.millpond = conf.policy;
        if !conf.text.is_empty() {
            apply(["millpond", "planned"], &conf.text, from);
        }
        if !conf.passed_over.is_empty() && args.device.source != SourceKind::Host {
            let quiet = args.output.quiet;
            note(
                quiet,
                &format!(
                    "{from}: {} is ignored, because only pools of host memory use it",
                    conf.passed_over
                ),
            );
        }
    }
    if let Some(every) = args.tick {
        let text = match every {
            TickEvery::Step => "a tick at each step".to_owned(),
            TickEvery::Calls(calls) => format!("a tick after every {}", counted(calls.get(), "call")),
        };
        apply(["millpond", "planned"], &text, "--tick");
    }
    if let Some(path) = &args.plan {
        let plan = load_plan(path)?;
        applied.push(Applied {
            policies: vec!["planned".to_owned()],
            settings: format!(
                "a plan of {} in {}",
                counted(plan.step.period() as u64, "allocation"),
                size(plan.height)
            ),
            from: "--plan",
        });
        settings.plan = Some(plan);
    }
    Ok((settings, applied))
}

/// Reads a saved plan.
fn load_plan(path: &Path) -> Result<Plan, CliError> {
    let refused = |source| CliError::Plan {
        path: path.to_owned(),
        source,
    };
    match files::small_text(path, LONGEST) {
        Ok(text) => Plan::from_text(&text).map_err(refused),
        Err(error) if error.kind() == ErrorKind::InvalidData => Err(refused(PlanError::NotAPlan)),
        Err(source) => Err(CliError::Open {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Returns the settings in the environment, if any.
fn from_environment() -> Result<Option<String>, CliError> {
    match std::env::var(VARIABLE) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Ok(Some(text)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(CliError::Usage(format!("{VARIABLE} is not valid UTF-8"))),
    }
}

/// Returns the policies to replay: the named ones, each once, or all that the settings do not contradict.
///
/// A setting that contradicts a named policy is an error. If no policy is named, contradicted policies are left out.
pub(crate) fn choose(named: &[String], settings: &Settings, quiet: bool) -> Result<Vec<String>, CliError> {
    let mut chosen = once(named)?;
    for name in &chosen {
        check_settings(name, settings)?;
    }
    if named.is_empty() {
        for name in policies::names() {
            match check_settings(name, settings) {
                Ok(()) => chosen.push(name.to_owned()),
                Err(error) => note(quiet, &format!("{name} is left out: {error}")),
            }
        }
    }
    Ok(chosen)
}

/// Returns the named policies, each once.
pub(crate) fn once(named: &[String]) -> Result<Vec<String>, CliError> {
    let mut chosen: Vec<String> = Vec::new();
    for name in named {
        let name = name.trim();
        known(name)?;
        if !chosen.iter().any(|other| other == name) {
            chosen.push(name.to_owned());
        }
    }
    Ok(chosen)
}

/// Checks that a policy exists. The error suggests a similar name.
fn known(name: &str) -> Result<(), CliError> {
    if policies::names().any(|known| known == name) {
        return Ok(());
    }
    Err(CliError::UnknownPolicy {
        name: name.to_owned(),
        hint: text::nearest(name, policies::names())
            .map_or_else(String::new, |near| format!(" did you mean '{near}'?")),
        known: policies::names().collect::<Vec<_>>().join(", "),
    })
}
