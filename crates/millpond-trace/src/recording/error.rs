//! Errors of writing and reading recordings.

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The system could not write or read the file.
    #[error("the recording cannot be read or written further: {0}")]
    Io(#[from] std::io::Error),
    /// The file is not an Arrow stream, or it contains another table.
    #[error("this is no recording of Millpond's: {0}")]
    NotOurs(String),
    /// The recording has an unknown version.
    #[error("the recording is of version {found}, and this program reads up to {known}: use a newer one")]
    Version {
        /// The version in the file.
        found: String,
        /// The latest supported version.
        known: u32,
    },
    /// The thread that reads the recording panicked.
    #[error("the recording cannot be read: the reader failed on its contents")]
    Panicked,
    /// Rows could not be encoded. The caller did not cause this.
    #[error("rows could not be written: {0}")]
    Encode(#[from] arrow_schema::ArrowError),
}
