//! The settings of the policies, and which policies are left when they speak against one.

use crate::exit::CliError;
use crate::output::note;
use millpond_engine::{MillpondConf, Settings, TorchConf, policies};
use millpond_replay::check_settings;

/// Reads `--torch-conf` and `--conf`.
pub(crate) fn read(torch: Option<&str>, millpond: Option<&str>) -> Result<Settings, CliError> {
    let mut settings = Settings::default();
    if let Some(text) = torch {
        settings.torch = TorchConf::parse(text).map_err(|source| CliError::Conf {
            option: "--torch-conf",
            source,
        })?;
    }
    if let Some(text) = millpond {
        settings.millpond = MillpondConf::parse(text).map_err(|source| CliError::Conf {
            option: "--conf",
            source,
        })?;
    }
    Ok(settings)
}

/// The policies to replay: those named, each once, or all that the settings do not contradict.
///
/// A person who names a policy and contradicts it is told; one who names none only wants the rest.
pub(crate) fn choose(named: &[String], settings: &Settings, quiet: bool) -> Result<Vec<String>, CliError> {
    let mut chosen: Vec<String> = Vec::new();
    for name in named {
        let name = name.trim();
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
