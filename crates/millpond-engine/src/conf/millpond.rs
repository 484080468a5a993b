//! Settings of the `millpond` policy.

use super::{ConfError, RetainConf, entries};
use crate::simulated::Simulated;
use crate::size::{display_size, parse_size};

/// Handles consist of whole pages. Every device that maps pages uses this page size.
const PAGE: u64 = Simulated::PAGE;

/// How the `millpond` policy grows and when it moves pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MillpondConf {
    /// Maximum bytes of a page handle.
    pub handle_bytes: u64,
    /// A handle has at most `1 / handle_share` of the bytes of the request for which it is created, but at least a page.
    pub handle_share: u64,
    /// Whether every page has a handle of its own, regardless of `handle_bytes` and `handle_share`. This suits a host,
    /// where handles cost nothing.
    pub single_pages: bool,
    /// How far reserved memory may exceed the program's peak before free pages are moved, in thousandths of the peak.
    pub slack_permille: u64,
    /// Maximum bytes of pages moved, in thousandths of the bytes allocated. In addition, as many bytes as the peak may
    /// be moved. 0 moves nothing.
    pub moved_permille: u64,
    /// Whether the pages under live blocks are replaced before a request is refused, if the source
    /// [can](crate::Source::can_relocate).
    pub relocate: bool,
    /// How much free memory is kept, and for how long.
    pub retain: RetainConf,
}

impl Default for MillpondConf {
    fn default() -> Self {
        Self {
            handle_bytes: 8 << 20,
            handle_share: 128,
            single_pages: false,
            slack_permille: 0,
            moved_permille: 10,
            relocate: false,
            retain: RetainConf::default(),
        }
    }
}

impl MillpondConf {
    /// Parses `key:value,…`.
    ///
    /// # Errors
    /// Returns an error if a key is unknown or a value cannot be used.
    ///
    /// ```
    /// let conf = millpond_engine::MillpondConf::parse("handle:16M,slack:5")?;
    /// assert_eq!((conf.handle_bytes, conf.slack_permille), (16 << 20, 5));
    /// # Ok::<(), millpond_engine::ConfError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        Self::parse_with(text, "", |_, _| Ok(false))
    }

    /// Parses settings that are mixed with the settings of another component. `other` receives each setting first and
    /// returns whether it handled the setting. `others` lists the keys that `other` handles, for the error about an
    /// unknown key.
    ///
    /// # Errors
    /// Returns the errors of [`parse`](Self::parse) and those of `other`.
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

    /// Parses one setting. Returns `false` if the key is not one of these settings.
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
            "slack" => conf.slack_permille = number(0, 10_000)?,
            "moved" => conf.moved_permille = number(0, 1_000_000)?,
            "relocate" => {
                conf.relocate = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(ConfError::value(key, value, "write on or off".to_owned())),
                }
            }
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
    fn refuses_a_zero_share_and_values_that_are_not_numbers() {
        for text in ["handle-share:0", "slack:lots", "handle:many"] {
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
