//! Limits the memory that is kept for a recording, in proportion to the size of its file.
//!
//! Columns of repeated numbers compress a thousandfold, and one name can be used a million times. A file of some
//! kilobytes can therefore describe more than any memory holds. Recordings of programs do not, because each of their
//! rows takes several bytes of the file. Code that keeps data for each row, block or name of a recording charges it
//! here. A recording that exceeds its allowance is refused.

use super::HistoryError;

/// The bytes that any recording may take, however small its file is.
const SHARE: u64 = 64 << 20;
/// The additional bytes that a recording may take for each byte of its file. The densest recordings of programs have a row in every two
/// bytes and take half of this.
const PER_BYTE: u64 = 48;
/// The additional bytes that the blocks which live at once may take for each byte of the file. All blocks of an honest recording may
/// live at once. Each then takes a few hundred bytes here, and two bytes of the file.
const PER_BYTE_OF_BLOCKS: u64 = 256;
/// The rows that any recording may have. It may have one more for each byte of its file, like lines of a compressed text.
const ROWS: u64 = 1 << 20;

/// The memory that may be kept of one recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes of the recording's file.
    file: u64,
    limit: u64,
    /// The bytes that are kept for as long as the recording is open.
    taken: u64,
}

impl Allowance {
    /// Returns the allowance of a file of `bytes` bytes.
    pub(crate) fn of_file(bytes: u64) -> Self {
        Self {
            file: bytes,
            limit: SHARE.saturating_add(bytes.saturating_mul(PER_BYTE)),
            taken: 0,
        }
    }

    /// Returns an allowance without a limit. It is for rows that are already in memory, read by a reader with its own limits.
    pub(crate) const fn unlimited() -> Self {
        Self {
            file: u64::MAX,
            limit: u64::MAX,
            taken: 0,
        }
    }

    /// Returns the allowance after `bytes` are taken from it.
    pub(super) const fn beside(self, bytes: u64) -> Self {
        Self { taken: bytes, ..self }
    }

    /// Checks that the `bytes` that `what` takes are within the allowance.
    ///
    /// # Errors
    /// Returns an error if they exceed it.
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

    /// Checks that the `bytes` of the blocks which live at once are within their own allowance, which is larger.
    ///
    /// # Errors
    /// Returns an error if they exceed it.
    #[inline]
    pub fn check_blocks(self, bytes: u64) -> Result<(), HistoryError> {
        let limit = SHARE.saturating_add(self.file.saturating_mul(PER_BYTE_OF_BLOCKS));
        let whole = Self { limit, ..self };
        whole.check("the blocks that live at once", bytes)
    }

    /// Checks that a file of this size may have `rows` rows.
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
