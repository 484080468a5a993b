//! The reasons for which the machine stops.

use super::arena::Full;
use super::value::Value;

/// Why the machine does not continue with the next opcode.
pub(super) enum Stop {
    /// The value is complete.
    Done(Value),
    /// The opcode needs `wanted` bytes, counted from its first byte, and fewer are buffered.
    Short { wanted: usize, within: Within },
    /// A value of `length` bytes follows the first `head` bytes of the opcode and must be skipped.
    Skip { head: usize, length: u64 },
    /// The pickle is malformed.
    Fault(String),
    /// The opcode could call code.
    Call(&'static str),
}

/// The part of the pickle in which the window ends.
pub(super) enum Within {
    Opcode,
    Text(usize),
    Line,
}

/// The error is boxed, so that the result of every opcode fits into registers.
pub(super) type Step<T> = Result<T, Box<Stop>>;

impl From<Full> for Box<Stop> {
    fn from(full: Full) -> Self {
        Box::new(Stop::Fault(full.0.to_owned()))
    }
}

#[cold]
pub(super) fn fault<T>(what: impl Into<String>) -> Step<T> {
    Err(Box::new(Stop::Fault(what.into())))
}

#[cold]
pub(super) fn short<T>(wanted: usize, within: Within) -> Step<T> {
    Err(Box::new(Stop::Short { wanted, within }))
}
