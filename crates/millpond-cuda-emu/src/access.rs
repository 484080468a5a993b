//! The bytes that work touches, and the call that the work comes from.
#![forbid(unsafe_code)]

use std::fmt;

/// The call that something comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) call: &'static str,
    pub(crate) number: u64,
    pub(crate) stream: u64,
    pub(crate) context: u64,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (call {}", self.call, self.number)?;
        if self.stream != 0 {
            write!(f, ", stream {:#x}", self.stream)?;
        }
        f.write_str(")")
    }
}

/// Bytes that a piece of work touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// The first address.
    pub(crate) at: u64,
    /// How many.
    pub(crate) len: u64,
    /// Whether they are written.
    pub(crate) write: bool,
}
