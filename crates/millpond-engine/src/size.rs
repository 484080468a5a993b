//! Byte sizes in text form.

use std::fmt::{self, Write};
use thiserror::Error;

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{text}' is not a size: write bytes, or a number with KiB, MiB, GiB, TiB (1024) or KB, MB, GB, TB (1000); K, M, G, T mean 1024"
)]
pub struct ParseSizeError {
    /// The text that was parsed.
    pub text: String,
}

/// Parses a size: `"80GiB"`, `"80GB"` (decimal), `"24G"` (binary, as is usual for graphics cards), `"1.5 GiB"`,
/// `"4096"`.
///
/// # Errors
/// Returns an error if the text is not a number with a known unit, or if it is negative or larger than 2^64 - 1.
///
/// ```
/// assert_eq!(millpond_engine::parse_size("24G")?, 24 << 30);
/// assert_eq!(millpond_engine::parse_size("80GB")?, 80_000_000_000);
/// # Ok::<(), millpond_engine::ParseSizeError>(())
/// ```
pub fn parse_size(text: &str) -> Result<u64, ParseSizeError> {
    let fail = || ParseSizeError {
        text: text.to_owned(),
    };
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let number = number.replace('_', "");
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(fail()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).ok_or_else(fail);
    }
    let value: f64 = number.parse().map_err(|_| fail())?;
    let bytes = value * scale as f64;
    if !bytes.is_finite() || bytes < 0.0 || bytes >= u64::MAX as f64 {
        return Err(fail());
    }
    Ok(bytes as u64)
}

/// Formats bytes with a binary unit and three significant digits, such as `"53.1 GiB"`.
#[must_use]
pub fn display_size(bytes: u64) -> impl fmt::Display {
    Size(bytes, Rounding::Nearest)
}

/// Formats bytes with a binary unit and up to two decimals, rounded up. A device of the printed size has at least this
/// number of bytes.
#[must_use]
pub fn display_size_up(bytes: u64) -> impl fmt::Display {
    Size(bytes, Rounding::Up)
}

/// Formats bytes like [`display_size`], with up to three decimals if these give the exact number. A size that was read
/// from a text is printed with the digits of that text.
#[must_use]
pub fn display_size_exact(bytes: u64) -> impl fmt::Display {
    Size(bytes, Rounding::Exact)
}

struct Size(u64, Rounding);

#[derive(Clone, Copy, PartialEq)]
enum Rounding {
    Nearest,
    Up,
    Exact,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let Self(bytes, rounding) = *self;
        // A value above these limits would be rounded to one more digit.
        let [four, three, two] = match rounding {
            Rounding::Up => [1023.99, 99.99, 9.99],
            Rounding::Nearest | Rounding::Exact => [
                1023.5_f64.next_down(),
                99.95_f64.next_down(),
                9.995_f64.next_down(),
            ],
        };
        let mut unit = 0;
        let mut value = bytes as f64;
        while value > four && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let mut digits = match value {
            _ if unit == 0 => 0,
            v if v <= two => 2,
            v if v <= three => 1,
            _ => 0,
        };
        let scale = (1u64 << (10 * unit)) as f64;
        match rounding {
            Rounding::Nearest => {}
            Rounding::Up if unit == 0 => {}
            Rounding::Up => {
                // The division by a power of two is exact, so the product is rounded once at most.
                let hundredths = (value * 100.0).ceil();
                value = hundredths / 100.0;
                let has_decimals = |digits: &usize| hundredths % 10f64.powi(2 - *digits as i32) == 0.0;
                digits = (digits..2).find(has_decimals).unwrap_or(2);
            }
            Rounding::Exact => {
                let is_exact = |digits: &usize| {
                    let factor = 10f64.powi(*digits as i32);
                    ((value * factor).round() / factor * scale) as u64 == bytes
                };
                digits = (digits..=3).find(is_exact).unwrap_or(digits);
            }
        }
        // The text is on the stack, because sizes are printed when memory has run out. It is at most "1023.999 KiB".
        let mut text = Line::default();
        write!(text, "{value:.digits$} {}", UNITS[unit])?;
        f.pad(text.as_str())
    }
}

/// A short text on the stack.
#[derive(Default)]
struct Line {
    bytes: [u8; 16],
    len: usize,
}

impl Line {
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        let place = self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sizes_with_binary_and_decimal_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("24G", 24 << 30),
            ("80GiB", 80 << 30),
            ("80 gib", 80 << 30),
            ("80GB", 80_000_000_000),
            ("1.5k", 1536),
            ("1_000", 1000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1.2.3", "80 GX", "99999999999G", "nan", "1e9"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn prints_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10_235, "10.0 KiB"),
            (1 << 40, "1.00 TiB"),
        ] {
            assert_eq!(display_size(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_size_that_is_rounded_up_parses_to_at_least_the_same_size() {
        const MIB: u64 = 1 << 20;
        for (bytes, text) in [
            (3762 * MIB, "3.68 GiB"),
            (10_235 * MIB, "10.0 GiB"),
            (10_241 * MIB, "10.01 GiB"),
            (10_342 * MIB, "10.1 GiB"),
            (102_297 * MIB, "99.9 GiB"),
            (102_300 * MIB, "99.91 GiB"),
            (624 * MIB, "624 MiB"),
            (1023 * MIB, "1023 MiB"),
            (1023 * MIB + (MIB - 1), "1.00 GiB"),
            (48 << 30, "48.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(display_size_up(bytes).to_string(), text);
        }
        for power in 0..31 {
            let bytes = 3u64.pow(power);
            for some in bytes..bytes + 100 {
                let read = parse_size(&display_size_up(some).to_string()).expect("a size");
                assert!(
                    read >= some && (read - some) as f64 <= 0.01 * some as f64 + 1.0,
                    "{some}"
                );
            }
        }
    }

    #[test]
    fn a_size_is_printed_as_it_was_written() {
        for text in [
            "11.64 GiB",
            "3.674 GiB",
            "24.0 GiB",
            "1.00 KiB",
            "900.5 MiB",
            "17 B",
        ] {
            let bytes = parse_size(text).expect("a size");
            assert_eq!(display_size_exact(bytes).to_string(), text);
        }
        // No short text gives this number.
        assert_eq!(display_size_exact((3 << 30) + 12_345).to_string(), "3.00 GiB");
    }
}
