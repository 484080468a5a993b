//! Settings as people write them: `key:value,key:[a:b,c]`.

mod keys;
mod millpond;
mod retain;
mod torch;

pub use keys::Key;
pub use millpond::MillpondConf;
pub use retain::{Amount, RetainConf};
pub use torch::{RoundupDivisions, TorchBackend, TorchConf};

use crate::plan::Plan;
use crate::size::ParseSizeError;
use thiserror::Error;

/// Everything a policy can be configured with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// For `torch-native` and `torch-expandable`.
    pub torch: TorchConf,
    /// For `millpond`, and for `planned` where it has no plan.
    pub millpond: MillpondConf,
    /// The plan that `planned` starts with, instead of finding and solving one.
    pub plan: Option<Plan>,
}

/// Why a setting was refused.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfError {
    /// The key is not known.
    #[error("unknown setting '{key}'; known: {known}")]
    UnknownKey {
        /// The key.
        key: String,
        /// The keys there are.
        known: String,
    },
    /// The value cannot be read or is out of range.
    #[error("setting '{key}' cannot be '{value}': {expected}")]
    Value {
        /// The key.
        key: String,
        /// What was written.
        value: String,
        /// What would do.
        expected: String,
    },
    /// A pool's policy does nothing with such a setting.
    #[error("the policy '{policy}' has no setting '{key}': {policies} have it")]
    Unused {
        /// The key.
        key: String,
        /// The policy's name.
        policy: String,
        /// Those that have the setting.
        policies: String,
    },
    /// An entry has no `key:value` shape.
    #[error("'{entry}' is not key:value; settings look like key:value,key:value")]
    Shape {
        /// The entry.
        entry: String,
    },
    /// A setting contradicts the policy it was given for.
    #[error("{setting} contradicts the policy '{policy}': {instead}")]
    Conflict {
        /// The setting.
        setting: String,
        /// The policy's name.
        policy: String,
        /// What to do.
        instead: String,
    },
}

impl ConfError {
    /// For a value that cannot be read or is out of range, with what would do.
    pub fn value(key: &str, value: &str, expected: impl Into<String>) -> Self {
        Self::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            expected: expected.into(),
        }
    }

    /// For a size that cannot be read.
    #[must_use]
    pub fn size(key: &str, error: &ParseSizeError) -> Self {
        Self::value(key, &error.text, error.to_string())
    }
}

/// Cuts a setting text into keys and values; commas inside brackets do not separate.
fn entries(text: &str) -> Result<Vec<(&str, &str)>, ConfError> {
    let mut found = Vec::new();
    let mut depth = 0usize;
    let mut start = 0;
    for (at, c) in text.char_indices().chain([(text.len(), ',')]) {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 || at == text.len() => {
                let entry = text[start..at].trim();
                start = at + 1;
                if entry.is_empty() {
                    continue;
                }
                let (key, value) = entry.split_once(':').ok_or_else(|| ConfError::Shape {
                    entry: entry.to_owned(),
                })?;
                found.push((key.trim(), value.trim()));
            }
            _ => {}
        }
    }
    Ok(found)
}
