//! Reads a recording from a file of any format.

use crate::formats::read_file;
#[cfg(feature = "recording")]
use crate::{
    Format,
    export::{ExportError, ExportOptions, traces},
    formats::{base_name, file_name},
    history::{History, HistoryError, is_ours},
};
use crate::{ReadError, ReadOptions, Recording};
use std::path::Path;

/// Reads the recording in a file.
///
/// The format is told by content: plain, gzip or zstd, and in it a PyTorch snapshot, RMM's CSV, Millpond
/// CSV or a chrome trace; with the feature `recording` a recording of Millpond's too, if it is a regular, plain file. Every file may be hostile: nothing in it is executed, no number in it sizes a
/// buffer, nesting and cycles cost no stack, and memory stays within a small multiple of the content.
/// What is odd and not fatal is counted in [`crate::Trace::cautions`].
pub fn read(path: &Path, options: &ReadOptions<'_>) -> Result<Recording, ReadError> {
    #[cfg(feature = "recording")]
    if path.is_file() && is_ours(path)? {
        return recording(path, options);
    }
    read_file(path, options)
}

/// A recording of Millpond's, whose file is walked twice: for what its numbers mean, and for the rows.
#[cfg(feature = "recording")]
fn recording(path: &Path, options: &ReadOptions<'_>) -> Result<Recording, ReadError> {
    let refused = |error: HistoryError| match error {
        HistoryError::Read(error) => error,
        error => ReadError::Recording {
            what: error.to_string(),
        },
    };
    let history = History::open(path, options).map_err(refused)?;
    let found = traces(&history, base_name(&file_name(path)), &ExportOptions::default());
    match found {
        Ok(found) => Ok(found.recording),
        Err(ExportError::History(error)) => Err(refused(error)),
        Err(ExportError::Nothing(_)) => Err(ReadError::NoMemoryEvents {
            format: Format::MillpondRecording,
        }),
        Err(error) => Err(ReadError::Recording {
            what: error.to_string(),
        }),
    }
}
