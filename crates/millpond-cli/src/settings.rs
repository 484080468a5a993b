//! The settings of the policies, and which policies are left when they speak against one.

use crate::args::ReplayArgs;
use crate::exit::CliError;
use crate::output::note;
use crate::plan;
use crate::text::{self, counted, size};
use millpond_engine::{MillpondConf, Settings, TorchConf, policies};
use millpond_replay::{Applied, TickEvery, check_settings};
use std::env::VarError;

/// The environment variable that stands for `--conf` where that is not given.
const VARIABLE: &str = "MILLPOND_CONF";

/// Reads `--torch-conf`, `--conf` or else `MILLPOND_CONF`, and `--plan`; answers what was read, and from where.
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
        settings.torch = TorchConf::parse(text).map_err(refused("--torch-conf"))?;
        apply(["torch-native", "torch-expandable"], text, "--torch-conf");
    }
    let conf = match &args.conf {
        Some(text) => Some((text.clone(), "--conf")),
        None => from_environment()?.map(|text| (text, VARIABLE)),
    };
    if let Some((text, from)) = conf {
        settings.millpond = MillpondConf::parse(&text).map_err(refused(from))?;
        apply(["millpond", "planned"], &text, from);
    }
    if let Some(every) = args.tick {
        let text = match every {
            TickEvery::Step => "a tick at each step".to_owned(),
            TickEvery::Calls(calls) => format!("a tick after every {}", counted(calls.get(), "call")),
        };
        apply(["millpond", "planned"], &text, "--tick");
    }
    if let Some(path) = &args.plan {
        let plan = plan::load(path)?;
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

/// What the environment says, if anything.
fn from_environment() -> Result<Option<String>, CliError> {
    match std::env::var(VARIABLE) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Ok(Some(text)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(CliError::Usage(format!("{VARIABLE} is no text"))),
    }
}

/// The policies to replay: those named, each once, or all that the settings do not contradict.
///
/// A person who names a policy and contradicts it is told; one who names none only wants the rest.
pub(crate) fn choose(named: &[String], settings: &Settings, quiet: bool) -> Result<Vec<String>, CliError> {
    let mut chosen: Vec<String> = Vec::new();
    for name in named {
        let name = name.trim();
        known(name)?;
        check_settings(name, settings)?;
        if !chosen.iter().any(|other| other == name) {
            chosen.push(name.to_owned());
        }
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

/// Refuses a name that is no policy, with the one it may have been meant for.
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
