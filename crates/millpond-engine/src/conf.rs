//! Settings in their text form: `key:value,key:[a:b,c]`.

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

/// The settings of all policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Settings of `torch-native` and `torch-expandable`.
    pub torch: TorchConf,
    /// Settings of `millpond`, and of `planned` while it has no plan.
    pub millpond: MillpondConf,
    /// The plan that `planned` starts with. Without one, it finds a step and solves it.
    pub plan: Option<Plan>,
}

/// Why a setting was refused.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfError {
    /// The key is not known.
    #[error("unknown setting '{key}': choose one of {known}")]
    UnknownKey {
        /// The unknown key.
        key: String,
        /// The known keys.
        known: String,
    },
    /// The value cannot be read or is out of range.
    #[error("setting '{key}' cannot be '{value}': {expected}")]
    Value {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
        /// The values that are accepted.
        expected: String,
    },
    /// The pool's policy does not use the setting.
    #[error("the policy '{policy}' has no setting '{key}': {policies} have it")]
    Unused {
        /// The key.
        key: String,
        /// The policy's name.
        policy: String,
        /// The policies that have the setting.
        policies: String,
    },
    /// An entry does not have the form `key:value`.
    #[error("'{entry}' is not key:value; settings look like key:value,key:value")]
    Shape {
        /// The entry.
        entry: String,
    },
    /// A setting contradicts the policy for which it was given.
    #[error("{setting} contradicts the policy '{policy}': {instead}")]
    Conflict {
        /// The setting.
        setting: String,
        /// The policy's name.
        policy: String,
        /// The setting or the value to write instead.
        instead: String,
    },
}

impl ConfError {
    /// Creates an error for a value that cannot be read or is out of range. `expected` says which values are accepted.
    pub fn value(key: &str, value: &str, expected: impl Into<String>) -> Self {
        Self::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            expected: expected.into(),
        }
    }

    /// Creates an error for a size that cannot be read.
    #[must_use]
    pub fn size(key: &str, error: &ParseSizeError) -> Self {
        Self::value(key, &error.text, error.to_string())
    }
}

/// Splits a setting text into keys and values. Commas inside brackets do not separate entries.
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
