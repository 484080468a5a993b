//! The bytes that queued work accesses, and the call that queued it.
#![forbid(unsafe_code)]

use std::fmt;

/// The call that queued some work.
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

/// A range of bytes that some work accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// The first address.
    pub(crate) at: u64,
    /// The number of bytes.
    pub(crate) len: u64,
    /// Whether the work writes them.
    pub(crate) write: bool,
}
