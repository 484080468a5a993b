//! A part of a recording.

use serde::Serialize;

/// The part that is looked at, both ends included: by time, or by rows where events may share a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Window {
    /// Nanoseconds since the recording began.
    Times {
        /// The first that belongs to it.
        from: u64,
        /// The last.
        to: u64,
    },
    /// Rows, as they are walked.
    Rows {
        /// The first that belongs to it.
        from: u64,
        /// One past the last.
        end: u64,
    },
}

impl Window {
    /// All of it.
    pub const ALL: Self = Self::Times {
        from: 0,
        to: u64::MAX,
    };

    /// Whether it is reached with a row.
    pub(super) fn begins(self, row: u64, time: u64) -> bool {
        match self {
            Self::Times { from, .. } => time >= from,
            Self::Rows { from, .. } => row >= from,
        }
    }

    /// Whether it has ended before a row.
    pub(super) fn is_past(self, row: u64, time: u64) -> bool {
        match self {
            Self::Times { to, .. } => time > to,
            Self::Rows { end, .. } => row >= end,
        }
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::ALL
    }
}
