//! The options of a replay.

use crate::error::ReplayError;
use crate::outcome::Applied;
use crate::program::Selection;
use crate::run::Device;
use crate::ticks::TickEvery;
use millpond_engine::{ConfError, Costs, Settings, policies};

/// What to replay, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of the policies, in the order of the report.
    pub policies: Vec<String>,
    /// Settings of the policies.
    pub settings: Settings,
    /// Where the settings came from, for the report.
    pub applied: Vec<Applied>,
    /// The device.
    pub device: Device,
    /// Which events, and which streams.
    pub selection: Selection,
    /// Find the smallest device for each policy.
    pub fit: bool,
    /// Hold a replay under the recorded settings against the recorded addresses.
    pub verify: bool,
    /// Keep where every block lay.
    pub placements: bool,
    /// What driver calls cost.
    pub costs: Costs,
    /// When time passes for the policies; none for never.
    pub tick: Option<TickEvery>,
    /// Threads to use; 0 means as many as the machine has.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policies: policies::names().map(str::to_owned).collect(),
            settings: Settings::default(),
            applied: Vec::new(),
            device: Device::UNLIMITED,
            selection: Selection::default(),
            fit: false,
            verify: false,
            placements: false,
            costs: Costs::default(),
            tick: None,
            threads: 0,
        }
    }
}

/// Refuses an unknown policy, and a setting that contradicts the policy it would configure.
///
/// # Errors
/// In these two cases; each says what to write instead.
pub fn check_settings(name: &str, settings: &Settings) -> Result<(), ReplayError> {
    policies::build(name, settings)?;
    let conflict = match (name, settings.torch.expandable_segments) {
        ("torch-native", Some(true)) => Some(("expandable_segments:True", "torch-expandable")),
        ("torch-expandable", Some(false)) => Some(("expandable_segments:False", "torch-native")),
        _ => None,
    };
    match conflict {
        None => Ok(()),
        Some((setting, other)) => Err(ReplayError::Conf(ConfError::Conflict {
            setting: setting.to_owned(),
            policy: name.to_owned(),
            instead: format!("use --policy {other}, or leave the setting out"),
        })),
    }
}
