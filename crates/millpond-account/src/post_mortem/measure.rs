//! The measure of a budget.

use std::fmt;

/// The bytes that a budget counts. A charge of one measure never reaches a budget with the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// The bytes taken from a source. Limits of processes and devices count these.
    Reserved,
    /// The bytes of live blocks. Limits of pools, scopes and tenants count these.
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
