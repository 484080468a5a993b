//! Why a recording could not be written or read.

/// A recording that could not be written, or is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The system could not take or deliver the file's bytes.
    #[error("the recording cannot be read or written further: {0}")]
    Io(#[from] std::io::Error),
    /// It is no Arrow stream, or one of another table.
    #[error("this is no recording of Millpond's: {0}")]
    NotOurs(String),
    /// It is of a version that came later.
    #[error("the recording is of version {found}, and this program reads up to {known}: use a newer one")]
    Version {
        /// What the file says.
        found: String,
        /// The latest that can be read.
        known: u32,
    },
    /// The thread that reads the recording panicked.
    #[error("the recording cannot be read: the reader failed on its contents")]
    Panicked,
    /// Rows could not be put together: not for a caller's doing.
    #[error("rows could not be written: {0}")]
    Encode(#[from] arrow_schema::ArrowError),
}
