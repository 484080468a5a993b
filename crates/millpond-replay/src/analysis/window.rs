//! A part of a recording.

use serde::Serialize;

/// The part that is analysed. A range of times includes both ends. A range of rows is used if events may
/// share a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Window {
    /// Nanoseconds since the recording began.
    Times {
        /// The first time in the window.
        from: u64,
        /// The last time in the window.
        to: u64,
    },
    /// Row numbers in walking order.
    Rows {
        /// The first row in the window.
        from: u64,
        /// One past the last.
        end: u64,
    },
}

impl Window {
    /// The whole recording.
    pub const ALL: Self = Self::Times {
        from: 0,
        to: u64::MAX,
    };

    /// Returns whether the window has begun at a row.
    pub(super) fn begins(self, row: u64, time: u64) -> bool {
        match self {
            Self::Times { from, .. } => time >= from,
            Self::Rows { from, .. } => row >= from,
        }
    }

    /// Returns whether the window has ended before a row.
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
