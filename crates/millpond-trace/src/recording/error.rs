//! Errors of writing and reading recordings.

use arrow_schema::ArrowError;

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The system could not write or read the file.
    #[error("the recording could not be read or written: {0}")]
    Io(#[from] std::io::Error),
    /// The file is not an Arrow stream, or it contains another table.
    #[error("this is not a Millpond recording: {0}")]
    NotOurs(String),
    /// The recording has an unknown version.
    #[error(
        "the recording has version {found}, but this program reads versions up to {known}; use a newer program"
    )]
    Version {
        /// The version in the file.
        found: String,
        /// The latest supported version.
        known: u32,
    },
    /// The thread that reads the recording panicked.
    #[error("the recording could not be read: the reader panicked on its contents")]
    Panicked,
    /// There is no memory for the next rows. All rows before them can still be written.
    #[error("no memory is left for the next rows of the recording")]
    NoMemory,
    /// Rows could not be encoded. The caller did not cause this.
    #[error("rows could not be written: {0}")]
    Encode(#[source] ArrowError),
}

impl From<ArrowError> for RecordingError {
    fn from(error: ArrowError) -> Self {
        match error {
            ArrowError::IoError(_, error) => Self::Io(error),
            error => Self::Encode(error),
        }
    }
}
