//! How much memory what is kept of a recording may take: in proportion to its file, whatever the file says.
//!
//! Columns of numbers that repeat compress a thousandfold, and one name may be used a million times: a file of some kilobytes can
//! describe more than any memory holds. Recordings of programs do not: a row of theirs takes several bytes of the file. So whoever
//! keeps something for each row, block or name of a recording charges it here, and one that asks for more is refused.

use super::HistoryError;

/// What any recording may take, however small its file.
const SHARE: u64 = 64 << 20;
/// What it may take beside that for each byte of its file: twice what the densest recordings of programs do, which have a row in each
/// two bytes.
const PER_BYTE: u64 = 48;
/// Rows that any recording may have, and one more for each byte of its file: the same as lines of a compressed text.
const ROWS: u64 = 1 << 20;

/// The memory that may be kept of one recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes of the recording's file.
    file: u64,
    limit: u64,
    /// What is kept for as long as the recording is open.
    taken: u64,
}

impl Allowance {
    /// That of a file of so many bytes.
    pub(crate) fn of_file(bytes: u64) -> Self {
        Self {
            file: bytes,
            limit: SHARE.saturating_add(bytes.saturating_mul(PER_BYTE)),
            taken: 0,
        }
    }

    /// Without a limit: that of rows which are in memory already, because a reader with limits of its own has read them.
    pub(crate) const fn unlimited() -> Self {
        Self {
            file: u64::MAX,
            limit: u64::MAX,
            taken: 0,
        }
    }

    /// What is left of it beside `bytes`.
    pub(super) const fn beside(self, bytes: u64) -> Self {
        Self { taken: bytes, ..self }
    }

    /// Makes sure that `bytes`, which `what` takes, are no more than may be kept.
    ///
    /// # Errors
    /// They are more.
    #[inline]
    pub fn check(self, what: &'static str, bytes: u64) -> Result<(), HistoryError> {
        if bytes.saturating_add(self.taken) <= self.limit {
            return Ok(());
        }
        Err(HistoryError::TooMuch {
            what,
            limit: self.limit,
            file: self.file,
        })
    }

    /// Makes sure that a file of this many bytes can have that many rows.
    pub(crate) fn check_rows(self, rows: u64) -> Result<(), HistoryError> {
        if rows <= ROWS.saturating_add(self.file) {
            return Ok(());
        }
        Err(HistoryError::TooDense {
            rows,
            file: self.file,
        })
    }
}
