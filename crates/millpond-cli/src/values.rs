//! Parsers for option values other than a word or a number.

use millpond_replay::TickEvery;
use millpond_replay::analysis::Moment;

/// Parses `1.5s..3s` as microseconds, for recordings whose times are microseconds.
pub(crate) fn parse_time_window(text: &str) -> Result<(u64, u64), String> {
    let micros = |nanos: u64| match nanos {
        u64::MAX => u64::MAX,
        nanos => nanos / 1000,
    };
    let (from, to) = parse_window(text)?;
    if micros(from) == micros(to) {
        return Err("the window is empty: it is shorter than a microsecond".to_owned());
    }
    Ok((micros(from), micros(to)))
}

/// Parses `1.5s..3s` as nanoseconds. An omitted end is open. An end without a unit has the unit of the other end.
pub(crate) fn parse_window(text: &str) -> Result<(u64, u64), String> {
    let shape = || "write two times with a unit (ns, us, ms, s, min), such as 1.5s..3s".to_owned();
    let (from, to) = text.split_once("..").ok_or_else(shape)?;
    let (from, to) = (from.trim(), to.trim());
    let unit = |end: &str| {
        nanos_of(
            end.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
                .trim(),
        )
    };
    let shared = unit(from).or_else(|| unit(to));
    let time = |end: &str, open: u64| -> Result<u64, String> {
        if end.is_empty() {
            return Ok(open);
        }
        let digits = end
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .unwrap_or(end.len());
        let (number, name) = end.split_at(digits);
        let number: f64 = number.parse().map_err(|_| shape())?;
        let nanos = match name.trim() {
            "" if number == 0.0 => shared.or(Some(1.0)),
            "" => shared,
            name => nanos_of(name),
        };
        Ok((number * nanos.ok_or_else(shape)?).round() as u64)
    };
    let window = (time(from, 0)?, time(to, u64::MAX)?);
    if window.0 == window.1 {
        return Err("the window is empty: it ends where it begins".to_owned());
    }
    if window.0 > window.1 {
        return Err("the window ends before it begins".to_owned());
    }
    Ok(window)
}

/// Parses a time such as `1.5s` as nanoseconds.
pub(crate) fn parse_time(text: &str) -> Result<u64, String> {
    let shape = || "write a time with a unit (ns, us, ms, s, min), such as 1.5s".to_owned();
    let text = text.trim();
    let digits = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| shape())?;
    let nanoseconds = match unit.trim() {
        "" if number == 0.0 => 1.0,
        unit => nanos_of(unit).ok_or_else(shape)?,
    };
    Ok((number * nanoseconds).round() as u64)
}

/// Parses a moment: `peak`, `end`, a time, or `step:` and a number.
pub(crate) fn parse_moment(text: &str) -> Result<Moment, String> {
    let shape = || "write peak, end, a time such as 1.5s, or a step such as step:3".to_owned();
    match text.trim() {
        "peak" => Ok(Moment::Peak),
        "end" => Ok(Moment::End),
        other => match other.strip_prefix("step:") {
            Some(number) => number.parse().map(Moment::Step).map_err(|_| shape()),
            None => parse_time(other).map(Moment::Time).map_err(|_| shape()),
        },
    }
}

/// One moment for both recordings, or one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moments {
    pub(crate) first: Moment,
    pub(crate) second: Moment,
    /// Whether two moments were named.
    pub(crate) two: bool,
}

/// Parses one moment, or two with a comma between them.
pub(crate) fn parse_moments(text: &str) -> Result<Moments, String> {
    let (first, second) = match text.split_once(',') {
        Some((first, second)) => (parse_moment(first)?, Some(parse_moment(second)?)),
        None => (parse_moment(text)?, None),
    };
    Ok(Moments {
        first,
        second: second.unwrap_or(first),
        two: second.is_some(),
    })
}

/// The memory on which a program is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    /// A simulated device.
    Sim,
    /// Memory of this machine.
    Host,
    /// Memory of the CUDA device with this number.
    Cuda(u32),
}

impl std::fmt::Display for SourceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sim => f.write_str("sim"),
            Self::Host => f.write_str("host"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// Parses `sim`, `host`, or `cuda:` and a device's number. `cuda` alone means the first device.
pub(crate) fn parse_source(text: &str) -> Result<SourceKind, String> {
    match text.trim() {
        "sim" => Ok(SourceKind::Sim),
        "host" => Ok(SourceKind::Host),
        other => cuda_number(other)
            .map(SourceKind::Cuda)
            .ok_or_else(|| "write sim, host, or a CUDA device such as cuda:0".to_owned()),
    }
}

/// Parses a CUDA device.
#[cfg(feature = "bench")]
pub(crate) fn parse_cuda(text: &str) -> Result<u32, String> {
    cuda_number(text.trim()).ok_or_else(|| "write a CUDA device such as cuda:0".to_owned())
}

/// Parses the number of a CUDA device: `cuda:1`, or `cuda`, which means the first.
fn cuda_number(text: &str) -> Option<u32> {
    match text.strip_prefix("cuda")? {
        "" => Some(0),
        number => number.strip_prefix(':')?.parse().ok(),
    }
}

/// The divisor of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Chosen automatically, as large as necessary.
    Auto,
    /// This divisor.
    By(u64),
}

/// Parses `auto` or a number of at least 1.
pub(crate) fn parse_scale(text: &str) -> Result<Scale, String> {
    match (text.trim(), text.trim().parse::<u64>()) {
        ("auto", _) => Ok(Scale::Auto),
        (_, Ok(by @ 1..)) => Ok(Scale::By(by)),
        _ => Err("write auto, or by what to divide, such as 16; 1 leaves sizes as they are".to_owned()),
    }
}

/// Parses `step` or a number of calls.
pub(crate) fn parse_tick(text: &str) -> Result<TickEvery, String> {
    match text.trim() {
        "step" => Ok(TickEvery::Step),
        calls => calls
            .parse()
            .map(TickEvery::Calls)
            .map_err(|_| "write step, or a number of calls such as 10000".to_owned()),
    }
}

fn nanos_of(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1.0),
        "us" | "µs" | "μs" => Some(1e3),
        "ms" => Some(1e6),
        "s" => Some(1e9),
        "m" | "min" => Some(60e9),
        "h" => Some(3600e9),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_windows_are_parsed() {
        for (text, window) in [
            ("1.5s..3s", (1_500_000, 3_000_000)),
            ("1.5..3s", (1_500_000, 3_000_000)),
            ("0..20ms", (0, 20_000)),
            ("200ms..", (200_000, u64::MAX)),
            ("..2min", (0, 120_000_000)),
            ("10 us .. 1 ms", (10, 1_000)),
        ] {
            assert_eq!(parse_time_window(text), Ok(window), "{text}");
        }
        assert_eq!(parse_window("1500ns..2.5us"), Ok((1500, 2500)));
        assert_eq!(parse_window("..3s"), Ok((0, 3_000_000_000)));
        assert!(parse_time_window("100ns..200ns").is_err());
    }

    #[test]
    fn ticks_are_steps_or_calls() {
        assert_eq!(parse_tick("step"), Ok(TickEvery::Step));
        let calls = std::num::NonZeroU64::new(500).map(TickEvery::Calls);
        assert_eq!(parse_tick("500").ok(), calls);
        for text in ["", "0", "-1", "1.5", "steps", "10s"] {
            assert!(parse_tick(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_scale_is_a_divisor() {
        assert_eq!(parse_scale("auto"), Ok(Scale::Auto));
        assert_eq!(parse_scale("16"), Ok(Scale::By(16)));
        for text in ["", "0", "-1", "1.5", "1/2", "16x", "99999999999999999999"] {
            assert!(parse_scale(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sources_are_parsed() {
        assert_eq!(parse_source("sim"), Ok(SourceKind::Sim));
        assert_eq!(parse_source("host"), Ok(SourceKind::Host));
        assert_eq!(parse_source("cuda"), Ok(SourceKind::Cuda(0)));
        assert_eq!(parse_source("cuda:12"), Ok(SourceKind::Cuda(12)));
        for text in ["", "cuda:", "cuda0", "cuda:-1", "cuda:x", "gpu:0", "Sim"] {
            assert!(parse_source(text).is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_time_windows_are_refused() {
        for text in [
            "",
            "3s",
            "1..3",
            "3s..1s",
            "1s..1s",
            "a..b",
            "1s..2parsec",
            "-1s..2s",
            "1.2.3s..4s",
        ] {
            assert!(parse_time_window(text).is_err(), "{text}");
        }
    }
}
