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
    /// How far memory may grow past the program's peak before pages are moved, in thousandths of it.
    pub slack_permille: u64,
    /// The same in bytes, where that is more.
    pub slack_bytes: u64,
    /// x
    pub stalls: u64,
    /// x
    pub stall_every: u64,
    /// x
    pub batch: u64,
    /// x
    pub edge: u64,
    /// x
    pub rising_permille: u64,
    /// x
    pub moved_share: f64,
}

impl Default for MillpondConf {
    fn default() -> Self {
        Self {
            handle_bytes: 32 << 20,
            handle_share: 128,
            slack_permille: 7,
            slack_bytes: 24 << 20,
            stalls: 12,
            stall_every: 2000,
            batch: 8,
            edge: 16,
            rising_permille: 20,
            moved_share: 1.0,
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
                "share" => {
                    conf.handle_share = value
                        .parse()
                        .map_err(|_| ConfError::value(key, value, "write a number"))?
                }
                "stalls" => {
                    conf.stalls = value
                        .parse()
                        .map_err(|_| ConfError::value(key, value, "write a number"))?
                }
                "every" => {
                    conf.stall_every = value
                        .parse()
                        .map_err(|_| ConfError::value(key, value, "write a number"))?
                }
                "batch" => {
                    conf.batch = value
                        .parse()
                        .map_err(|_| ConfError::value(key, value, "write a number"))?
                }
                "edge" => conf.edge = value.parse().unwrap_or(8),
                "rising" => conf.rising_permille = value.parse().unwrap_or(8),
                "moved" => conf.moved_share = value.parse().unwrap_or(1.0),
                "slack" => {
                    conf.slack_permille = value
                        .parse()
                        .map_err(|_| ConfError::value(key, value, "write a number"))?
                }
                "slack-bytes" => conf.slack_bytes = size()?,
                _ => {
                    return Err(ConfError::UnknownKey {
                        key: key.to_owned(),
                        known: "handle, share, slack, slack-bytes, stalls, every, batch, moved".to_owned(),
                    });
                }
            }
        }
        Ok(conf)
    }
}
