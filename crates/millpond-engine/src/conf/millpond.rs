//! Settings of the `millpond` policy.

use super::{ConfError, entries};
use crate::size::parse_size;

/// How the `millpond` policy grows.
#[derive(Clone, Debug, PartialEq)]
pub struct MillpondConf {
    /// Bytes of a page handle for large blocks, whole pages.
    pub handle_bytes: u64,
}

impl Default for MillpondConf {
    fn default() -> Self {
        Self {
            handle_bytes: 2 << 20,
        }
    }
}

impl MillpondConf {
    /// Reads `key:value,…`.
    ///
    /// # Errors
    /// On an unknown key or an unusable value.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let mut conf = Self::default();
        for (key, value) in entries(text)? {
            match key {
                "handle" => conf.handle_bytes = parse_size(value).map_err(|e| ConfError::size(key, &e))?,
                _ => {
                    return Err(ConfError::UnknownKey {
                        key: key.to_owned(),
                        known: "handle".to_owned(),
                    });
                }
            }
        }
        Ok(conf)
    }
}
