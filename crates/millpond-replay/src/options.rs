//! The options of a replay.

use crate::error::ReplayError;
use crate::parallel::Threads;
use crate::program::Selection;
use crate::run::Device;
use crate::ticks::TickEvery;
use millpond_engine::{ConfError, Costs, Settings, policies};
use serde::Serialize;

/// Settings that were applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The policies that they configure.
    pub policies: Vec<String>,
    /// The settings as the user wrote them.
    pub settings: String,
    /// The option or the environment variable that contained them.
    pub from: &'static str,
}

/// The program to replay and the settings of the replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of the policies, in the order of the report. If there are none, the report has the program's own
    /// allocator, better settings of it if there are any, and the policies `millpond` and `planned`.
    pub policies: Vec<String>,
    /// Whether to add a verdict: a few sentences about the memory that the program needs and the setting that
    /// lowers it.
    pub verdict: bool,
    /// Settings of the policies.
    pub settings: Settings,
    /// The sources of the settings, for the report.
    pub applied: Vec<Applied>,
    /// The device.
    pub device: Device,
    /// The events and the streams to replay.
    pub selection: Selection,
    /// Whether to find the smallest device for each policy.
    pub fit: bool,
    /// Whether to compare a replay under the recorded settings with the recorded addresses.
    pub verify: bool,
    /// Whether to keep the address of every block.
    pub placements: bool,
    /// The costs of driver calls.
    pub costs: Costs,
    /// When ticks are sent to the policies. `None` sends no tick.
    pub tick: Option<TickEvery>,
    /// The threads to use.
    pub threads: Threads,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policies: Vec::new(),
            verdict: false,
            settings: Settings::default(),
            applied: Vec::new(),
            device: Device::UNLIMITED,
            selection: Selection::default(),
            fit: false,
            verify: false,
            placements: false,
            costs: Costs::default(),
            tick: None,
            threads: Threads::default(),
        }
    }
}

/// Checks that a policy exists and that no setting contradicts the policy that it configures.
///
/// # Errors
/// Returns an error if the policy is unknown or a setting contradicts it. The message says what to write instead.
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
