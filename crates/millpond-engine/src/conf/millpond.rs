//! Settings of the `millpond` policy.

use super::{ConfError, RetainConf, entries};
use crate::simulated::Simulated;
use crate::size::{display_size, parse_size};

/// Handles are whole pages; every device that maps pages has them of this size.
const PAGE: u64 = Simulated::PAGE;

/// How the `millpond` policy grows and when it moves pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MillpondConf {
    /// Bytes of a page handle at most.
    pub handle_bytes: u64,
    /// Whether every page has a handle of its own, as on a host, where handles cost nothing. How much is created at
    /// once still follows `handle_bytes`.
    pub single_pages: bool,
    /// A handle is at most one part in so many of what is reserved.
    pub handle_share: u64,
    /// The least bytes of a handle to which handles shrink where larger ones cannot be moved.
    pub least_handle_bytes: u64,
    /// Whether the size of handles, and how much is created at once, follow what happens.
    pub adapt: bool,
    /// Handles shrink only until one has been created for each so many bytes of the program's peak.
    pub handle_each: u64,
    /// How far memory may outgrow the program's peak while need is below it, in thousandths of the peak.
    pub slack_permille: u64,
    /// In a small program by so many bytes instead, but never by more than a twentieth of its peak: there a stall
    /// costs more than the bytes.
    pub slack_least_bytes: u64,
    /// The same as `slack_permille` while need rises above the peak.
    pub rising_permille: u64,
    /// The same as `slack_least_bytes` while need rises, up to a tenth of the peak.
    pub rising_least_bytes: u64,
    /// Allocations that may move pages whatever the program's length.
    pub stalls: u64,
    /// One more allocation in so many may move pages.
    pub stall_every: u64,
    /// Bytes that may be moved in all, in percent of what is reserved.
    pub moved_percent: u64,
    /// How much free memory is kept, and for how long.
    pub retain: RetainConf,
}

impl Default for MillpondConf {
    fn default() -> Self {
        Self {
            handle_bytes: 32 << 20,
            single_pages: false,
            handle_share: 8,
            least_handle_bytes: 8 << 20,
            adapt: true,
            handle_each: 16 << 20,
            slack_permille: 7,
            slack_least_bytes: 64 << 20,
            rising_permille: 20,
            rising_least_bytes: 128 << 20,
            stalls: 12,
            stall_every: 2000,
            moved_percent: 100,
            retain: RetainConf::default(),
        }
    }
}

impl MillpondConf {
    /// Reads `key:value,…`.
    ///
    /// # Errors
    /// On an unknown key or an unusable value.
    ///
    /// ```
    /// let conf = millpond_engine::MillpondConf::parse("handle:16M,slack:5")?;
    /// assert_eq!((conf.handle_bytes, conf.slack_permille), (16 << 20, 5));
    /// # Ok::<(), millpond_engine::ConfError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        Self::parse_with(text, "", |_, _| Ok(false))
    }

    /// Reads settings among others: `other` is shown each one first, and answers whether it is one of its own, which
    /// are `others` where a key is not known.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and what `other` answers.
    pub fn parse_with(
        text: &str,
        others: &str,
        mut other: impl FnMut(&str, &str) -> Result<bool, ConfError>,
    ) -> Result<Self, ConfError> {
        let mut conf = Self::default();
        for (key, value) in entries(text)? {
            if !other(key, value)? && !conf.set(key, value)? {
                let separator = if others.is_empty() { "" } else { ", " };
                return Err(ConfError::UnknownKey {
                    key: key.to_owned(),
                    known: format!("{others}{separator}{}", Self::known()),
                });
            }
        }
        conf.retain.check()?;
        Ok(conf)
    }

    /// Reads one setting; answers whether it is one of these.
    fn set(&mut self, key: &str, value: &str) -> Result<bool, ConfError> {
        let conf = self;
        let bytes = || parse_size(value).map_err(|e| ConfError::size(key, &e));
        let pages = || {
            let bytes = bytes()?;
            if bytes == 0 || !bytes.is_multiple_of(PAGE) {
                let expected = format!("write a multiple of {}, the size of a page", display_size(PAGE));
                return Err(ConfError::value(key, value, expected));
            }
            Ok(bytes)
        };
        let number = |least: u64, most: u64| {
            let read = value.parse::<u64>().ok().filter(|n| (least..=most).contains(n));
            read.ok_or_else(|| ConfError::value(key, value, format!("write a number from {least} to {most}")))
        };
        match key {
            "handle" => conf.handle_bytes = pages()?,
            "handle-share" => conf.handle_share = number(1, 1 << 20)?,
            "handle-least" => conf.least_handle_bytes = pages()?,
            "handle-each" => conf.handle_each = pages()?,
            "adapt" => {
                conf.adapt = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(ConfError::value(key, value, "write on or off")),
                };
            }
            "slack" => conf.slack_permille = number(0, 10_000)?,
            "slack-least" => conf.slack_least_bytes = bytes()?,
            "rising-least" => conf.rising_least_bytes = bytes()?,
            "rising" => conf.rising_permille = number(0, 10_000)?,
            "stalls" => conf.stalls = number(0, u64::MAX)?,
            "stall-every" => conf.stall_every = number(1, u64::MAX)?,
            "moved" => conf.moved_percent = number(0, 1_000_000)?,
            _ if conf.retain.set(key, value)? => {}
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_whole_pages() {
        assert_eq!(
            MillpondConf::parse("handle:6MiB").map(|conf| conf.handle_bytes),
            Ok(6 << 20)
        );
        for text in ["handle:0", "handle:3MiB", "handle:1"] {
            let error = MillpondConf::parse(text).expect_err(text).to_string();
            assert!(error.contains("a multiple of 2.00 MiB"), "{error}");
        }
    }

    #[test]
    fn refuses_what_would_divide_by_nothing() {
        for text in ["handle-share:0", "stall-every:0", "slack:lots", "handle:many"] {
            assert!(
                matches!(MillpondConf::parse(text), Err(ConfError::Value { .. })),
                "{text}"
            );
        }
        assert!(matches!(
            MillpondConf::parse("small:1"),
            Err(ConfError::UnknownKey { .. })
        ));
    }
}
