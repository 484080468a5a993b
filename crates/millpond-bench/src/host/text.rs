//! Formats figures.

/// Formats a time with three digits.
pub(crate) fn time(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        n if n < 999.5 => (n, ""),
        n if n < 999.5e3 => (n / 1e3, "us"),
        n if n < 999.5e6 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    format!("{}{unit}", digits(value))
}

/// Formats a number with three digits.
pub(crate) fn digits(value: f64) -> String {
    let places = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.places$}")
}

/// Formats the faults for each operation. A dot means none.
pub(crate) fn faults(each: f64) -> String {
    if each < 0.005 {
        ".".to_owned()
    } else {
        digits(each)
    }
}

/// Formats bytes in MiB.
pub(crate) fn mib(bytes: u64) -> String {
    digits(bytes as f64 / f64::from(1 << 20))
}

/// Formats a ratio, or a dash if there is nothing to compare with.
pub(crate) fn ratio(of: Option<f64>, to: Option<f64>) -> String {
    match (of, to) {
        (Some(of), Some(to)) if to > 0.0 && of / to < 0.0995 => format!("{:.4}", of / to),
        (Some(of), Some(to)) if to > 0.0 => digits(of / to),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let times = [4.123, 36.74, 999.4, 999.6, 29_400_000.0].map(time);
        assert_eq!(times, ["4.12", "36.7", "999", "1.00us", "29.4ms"]);
        assert_eq!(ratio(Some(1.0), Some(300.0)), "0.0033");
        assert_eq!(ratio(Some(2.0), Some(1.0)), "2.00");
        assert_eq!(ratio(Some(1.0), Some(0.0)), "-");
        assert_eq!(ratio(Some(1.0), None), "-");
    }
}
