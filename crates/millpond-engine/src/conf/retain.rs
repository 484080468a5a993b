//! How much free memory the `millpond` policy keeps, and for how long.

use super::ConfError;
use crate::size::{display_size, parse_size};
use std::fmt;

/// The whole in the unit of [`RetainConf::memory_millionths`].
const WHOLE: u64 = 1_000_000;

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the program's peak, which is the most bytes of blocks that it has held at once.
    Percent(u64),
}

impl Amount {
    /// Returns the amount in bytes for a program with this peak in bytes.
    #[must_use]
    pub fn of(self, peak: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (u128::from(peak) * u128::from(percent) / 100)
                .try_into()
                .unwrap_or(u64::MAX),
        }
    }

    fn parse(key: &str, value: &str) -> Result<Self, ConfError> {
        let expected = "write a size, such as 512MiB, or a share of the program's peak, such as 10%";
        let fail = || ConfError::value(key, value, expected);
        match value.strip_suffix('%') {
            Some(percent) => percent.trim().parse().map(Self::Percent).map_err(|_| fail()),
            None => parse_size(value).map(Self::Bytes).map_err(|_| fail()),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{}", display_size(*bytes)),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// How much free memory the `millpond` policy keeps.
///
/// Time is given by marks. Each [`Mark::Step`](crate::Mark::Step) is one tick, and each
/// [`Mark::Ticks`](crate::Mark::Ticks) is the given number of ticks. Without marks, only `memory_millionths` has an
/// effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainConf {
    /// Number of ticks after which page handles that no block has used are returned. On a device without pages this
    /// applies to segments. 0 keeps them for ever.
    pub decay: u64,
    /// Amount of free memory that is kept, regardless of the time that passes.
    pub low_water: Amount,
    /// If more than this is free at a tick, the excess over the low water is returned. The memory that was unused for
    /// the longest time is returned first.
    pub high_water: Option<Amount>,
    /// The share of the device's capacity that may be reserved, in millionths.
    pub memory_millionths: u64,
    /// The fragmentation in percent above which memory does not grow while pages can be moved. 0 lets memory grow.
    /// Fragmentation is measured against the program's peak, because only memory beyond the peak is fragmentation.
    /// A pool of host memory without a low water also returns free memory if the fragmentation was above this for
    /// [`decay`](Self::decay) ticks.
    pub compact_at_percent: u64,
}

impl Default for RetainConf {
    fn default() -> Self {
        Self {
            // At one tick per second, this is about a minute. At one tick per training step, it is much longer than a
            // validation round.
            decay: 64,
            low_water: Amount::Bytes(0),
            high_water: None,
            memory_millionths: WHOLE,
            compact_at_percent: 30,
        }
    }
}

impl RetainConf {
    /// Parses one setting. Returns `false` if the key is not one of these settings.
    ///
    /// # Errors
    /// Returns an error if the value cannot be read.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, ConfError> {
        match key {
            "decay" => {
                self.decay = value.parse().map_err(|_| {
                    ConfError::value(
                        key,
                        value,
                        "write a number of ticks, or 0 to keep free memory for ever",
                    )
                })?;
            }
            "low-water" => self.low_water = Amount::parse(key, value)?,
            "high-water" => {
                self.high_water = match value {
                    "none" => None,
                    _ => Some(Amount::parse(key, value)?),
                }
            }
            "memory-fraction" => self.memory_millionths = share(key, value)?,
            "compact-at" => {
                let percent = value.strip_suffix('%').unwrap_or(value).trim().parse();
                self.compact_at_percent = percent.ok().filter(|p| *p < 100).ok_or_else(|| {
                    ConfError::value(key, value, "write percent from 1 to 99, or 0 for never")
                })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Refuses a low water above the high water. Only amounts of the same unit can be compared.
    ///
    /// # Errors
    /// Returns an error that says which values are accepted.
    pub fn check(&self) -> Result<(), ConfError> {
        let above = match (self.low_water, self.high_water) {
            (Amount::Bytes(low), Some(Amount::Bytes(high))) => low > high,
            (Amount::Percent(low), Some(Amount::Percent(high))) => low > high,
            _ => false,
        };
        match self.high_water {
            Some(high) if above => {
                let expected = format!("write no more than high-water, which is {high}");
                Err(ConfError::value(
                    "low-water",
                    &self.low_water.to_string(),
                    expected,
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns the most bytes of a device that may be reserved, or `None` if only the device limits them.
    #[must_use]
    pub fn limit(&self, capacity: Option<u64>) -> Option<u64> {
        let capacity = capacity.filter(|_| self.memory_millionths < WHOLE)?;
        let limit = u128::from(capacity) * u128::from(self.memory_millionths) / u128::from(WHOLE);
        limit.try_into().ok()
    }
}

/// Parses a share above zero and up to one. Returns it in millionths.
fn share(key: &str, value: &str) -> Result<u64, ConfError> {
    let (number, scale) = match value.strip_suffix('%') {
        Some(percent) => (percent.trim(), WHOLE / 100),
        None => (value, WHOLE),
    };
    let read = number.parse::<f64>().ok().map(|n| n * scale as f64);
    match read {
        Some(millionths) if millionths >= 1.0 && millionths <= WHOLE as f64 => Ok(millionths.round() as u64),
        _ => Err(ConfError::value(
            key,
            value,
            "write a share from 0.000001 to 1, such as 0.9, or percent, such as 90%",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::MillpondConf;

    fn parse(text: &str) -> Result<RetainConf, ConfError> {
        MillpondConf::parse(text).map(|conf| conf.retain)
    }

    #[test]
    fn reads_sizes_shares_and_ticks() {
        let conf = parse("decay:5,low-water:10%,high-water:1GiB,memory-fraction:0.8,compact-at:40%");
        let expected = RetainConf {
            decay: 5,
            low_water: Amount::Percent(10),
            high_water: Some(Amount::Bytes(1 << 30)),
            memory_millionths: 800_000,
            compact_at_percent: 40,
        };
        assert_eq!(conf, Ok(expected));
        let least = RetainConf {
            decay: 0,
            memory_millionths: 1,
            compact_at_percent: 0,
            ..RetainConf::default()
        };
        assert_eq!(
            parse("decay:0,high-water:none,memory-fraction:0.0001%,compact-at:0"),
            Ok(least)
        );
        assert_eq!(
            parse("memory-fraction:100%,low-water:0"),
            Ok(RetainConf::default())
        );
    }

    #[test]
    fn invalid_values_are_reported_with_the_valid_ones() {
        for (text, told) in [
            ("decay:5s", "a number of ticks"),
            ("decay:-1", "a number of ticks"),
            ("low-water:much", "such as 512MiB"),
            ("low-water:-5%", "such as 10%"),
            ("high-water:1.5%", "such as 10%"),
            ("memory-fraction:0", "such as 0.9"),
            ("memory-fraction:80", "such as 90%"),
            ("memory-fraction:1.1", "from 0.000001 to 1"),
            ("memory-fraction:nan", "from 0.000001 to 1"),
            ("memory-fraction:101%", "from 0.000001 to 1"),
            ("compact-at:100", "from 1 to 99"),
            ("compact-at:never", "0 for never"),
            (
                "low-water:2GiB,high-water:1GiB",
                "no more than high-water, which is 1.00 GiB",
            ),
            (
                "high-water:5%,low-water:6%",
                "no more than high-water, which is 5%",
            ),
        ] {
            let error = parse(text).expect_err(text);
            assert!(matches!(error, ConfError::Value { .. }), "{error:?}");
            assert!(error.to_string().contains(told), "{text}: {error}");
        }
        assert!(
            parse("low-water:2GiB,high-water:50%").is_ok(),
            "that depends on the program"
        );
    }

    #[test]
    fn percentages_apply_to_the_peak_and_fractions_to_the_capacity() {
        assert_eq!(Amount::Percent(10).of(5000), 500);
        assert_eq!(Amount::Percent(u64::MAX).of(u64::MAX), u64::MAX);
        assert_eq!(Amount::Bytes(7).of(5000), 7);
        let conf = RetainConf {
            memory_millionths: 250_000,
            ..RetainConf::default()
        };
        assert_eq!(conf.limit(Some(u64::MAX)), Some(u64::MAX / 4));
        assert_eq!(conf.limit(None), None);
        assert_eq!(RetainConf::default().limit(Some(5)), None);
    }
}
