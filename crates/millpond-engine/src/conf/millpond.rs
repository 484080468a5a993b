//! Settings of the `millpond` policy.

use super::{ConfError, entries};
use crate::size::parse_size;

/// How the `millpond` policy grows.
#[derive(Clone, Debug, PartialEq)]
pub struct MillpondConf {
    /// Bytes of a page handle for large blocks at most, whole pages.
    pub handle_bytes: u64,
    /// One handle is at most this share of what is reserved.
    pub handle_share: u64,
    /// Requests of up to this size lie apart from larger ones.
    pub small_bytes: u64,
    /// How far memory may grow past the program's peak before pages are moved, in thousandths of it.
    pub slack_permille: u64,
    /// The same in bytes, where that is more.
    pub slack_bytes: u64,
}

impl Default for MillpondConf {
    fn default() -> Self {
        Self {
            handle_bytes: 16 << 20,
            handle_share: 256,
            small_bytes: 1 << 20,
            slack_permille: 4,
            slack_bytes: 4 << 20,
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
            let size = || parse_size(value).map_err(|e| ConfError::size(key, &e));
            match key {
                "handle" => conf.handle_bytes = size()?,
                "share" => conf.handle_share = size()?,
                "small" => conf.small_bytes = size()?,
                "slack" => conf.slack_permille = size()?,
                "slack-bytes" => conf.slack_bytes = size()?,
                _ => {
                    return Err(ConfError::UnknownKey {
                        key: key.to_owned(),
                        known: "handle, share, small, slack, slack-bytes".to_owned(),
                    });
                }
            }
        }
        Ok(conf)
    }
}
