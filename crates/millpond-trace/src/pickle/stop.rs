//! Why the machine stops.

use super::arena::Full;
use super::value::Value;

/// Why the machine does not go on to the next opcode.
pub(super) enum Stop {
    /// The value is whole.
    Done(Value),
    /// The opcode wants this many bytes from its first on, and fewer are buffered.
    Short { wanted: usize, within: Within },
    /// A value of `length` bytes follows the first `head` ones of the opcode, to be stepped over.
    Skip { head: usize, length: u64 },
    /// The pickle is malformed.
    Fault(String),
    /// The opcode could call code.
    Call(&'static str),
}

/// What the window ends within.
pub(super) enum Within {
    Opcode,
    Text(usize),
    Line,
}

/// Boxed, so that what every opcode returns fits registers.
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
