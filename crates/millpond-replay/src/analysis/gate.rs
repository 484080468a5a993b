//! Conditions under which a comparison fails: `peak>+2%`, `peak>24GiB`, `leaks>0`.

use super::diff::{Diff, FIGURES, Measure};
use millpond_engine::parse_size;
use std::fmt;
use std::str::FromStr;

/// A condition on one figure of two recordings, under which a comparison fails.
///
/// `NAME>VALUE` compares the second recording alone. `NAME>+VALUE` compares the increase from the first to
/// the second, in bytes, in number, or in per cent of the first. Fragmentation is a share. So it and its
/// difference are in per cent.
///
/// ```
/// use millpond_replay::analysis::Gate;
///
/// assert!("peak>+2%".parse::<Gate>().is_ok());
/// assert!("leaks>0".parse::<Gate>().is_ok());
/// assert!("peak>-2%".parse::<Gate>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    text: String,
    figure: usize,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    /// The second value is greater than this.
    Absolute(f64),
    /// The increase is greater than this.
    More(f64),
    /// The increase is greater than this share of the first value.
    MoreShare(f64),
}

/// A text that is not a valid condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// The text has no comparison.
    #[error(
        "'{text}' is not a condition: write a figure, '>' and a limit, such as peak>+2%, peak>24GiB or leaks>0"
    )]
    Shape {
        /// The text that was read.
        text: String,
    },
    /// The figure is unknown.
    #[error("'{name}' is not a figure; the figures are {known}")]
    UnknownFigure {
        /// The name that was read.
        name: String,
        /// The known figures.
        known: String,
    },
    /// The limit cannot be compared with this figure.
    #[error("'{limit}' is not a limit for {figure}: {expected}")]
    Limit {
        /// The limit that was read.
        limit: String,
        /// The figure.
        figure: &'static str,
        /// The valid forms.
        expected: &'static str,
    },
}

impl FromStr for Gate {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Self, GateError> {
        let shape = || GateError::Shape {
            text: text.to_owned(),
        };
        let (name, limit) = text.split_once('>').ok_or_else(shape)?;
        let (name, limit) = (name.trim(), limit.trim());
        if name.is_empty() || limit.is_empty() {
            return Err(shape());
        }
        let found = FIGURES.iter().position(|(known, ..)| *known == name);
        let figure = found.ok_or_else(|| GateError::UnknownFigure {
            name: name.to_owned(),
            known: FIGURES.map(|(known, ..)| known).join(", "),
        })?;
        Ok(Self {
            text: format!("{name}>{limit}"),
            figure,
            limit: parse_limit(figure, limit)?,
        })
    }
}

fn parse_limit(figure: usize, text: &str) -> Result<Limit, GateError> {
    let (name, is_bytes, _) = FIGURES[figure];
    let is_share = name == "fragmentation";
    let refused = |expected| GateError::Limit {
        limit: text.to_owned(),
        figure: name,
        expected,
    };
    let (is_more, value) = match text.strip_prefix('+') {
        Some(value) => (true, value.trim()),
        None => (false, text),
    };
    if let Some(number) = value.strip_suffix('%') {
        let share = decimal(number.trim()).ok_or_else(|| refused("write a percentage such as +2%"))? / 100.0;
        return match (is_share, is_more) {
            (true, true) => Ok(Limit::More(share)),
            (true, false) => Ok(Limit::Absolute(share)),
            (false, true) => Ok(Limit::MoreShare(share)),
            (false, false) => Err(refused(
                "a percentage is relative to the first recording; write a plus, such as +2%",
            )),
        };
    }
    let number = if is_share {
        return Err(refused("write a percentage, such as 20% or +5%"));
    } else if is_bytes {
        parse_size(value)
            .map_err(|_| refused("write a size such as 24GiB or 0, or an increase such as +64MiB or +2%"))?
            as f64
    } else {
        decimal(value)
            .ok_or_else(|| refused("write a number such as 1000, or an increase such as +10 or +2%"))?
    };
    Ok(if is_more {
        Limit::More(number)
    } else {
        Limit::Absolute(number)
    })
}

/// Parses a plain decimal number: digits and a point, without sign or exponent.
fn decimal(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| plain)
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The result of a condition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The condition is not met.
    Passes(Measure),
    /// The condition is met, so the comparison fails.
    Fails(Measure),
    /// One of the recordings does not contain the figure.
    Unknown(Measure),
}

impl Gate {
    /// Evaluates the condition on a comparison.
    #[must_use]
    pub fn judge(&self, diff: &Diff) -> Verdict {
        let measure = diff.measures[self.figure];
        let met = match (self.limit, measure.before, measure.after) {
            (Limit::Absolute(limit), _, Some(after)) => after > limit,
            (Limit::More(limit), Some(before), Some(after)) => after - before > limit,
            // If the first value is 0, any increase is greater than any share of it.
            (Limit::MoreShare(limit), Some(before), Some(after)) => after - before > before * limit,
            _ => return Verdict::Unknown(measure),
        };
        if met {
            Verdict::Fails(measure)
        } else {
            Verdict::Passes(measure)
        }
    }
}
