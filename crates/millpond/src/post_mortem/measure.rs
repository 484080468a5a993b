//! Which bytes a budget counts.

use std::fmt;

/// Which bytes a budget counts. A charge of one measure never reaches a budget of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Bytes taken from a source, as processes and devices are held to.
    Reserved,
    /// Bytes of blocks in callers' hands, as pools, scopes and tenants are held to.
    Allocated,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reserved => "reserved",
            Self::Allocated => "allocated",
        })
    }
}
