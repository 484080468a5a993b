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
/// The format is detected from the content. The file may be plain or compressed with gzip or zstd. It may contain a
/// PyTorch snapshot, RMM's CSV, Millpond CSV or a chrome trace. With the feature `recording` it may also be a Millpond
/// recording, if it is a regular, uncompressed file. Every file may be hostile. Nothing in it is executed, and no
/// number in it sets the size of a buffer. Nesting and cycles take no stack, and memory stays within a small multiple
/// of the content. Findings that are not fatal are counted in [`crate::Trace::cautions`].
pub fn read(path: &Path, options: &ReadOptions<'_>) -> Result<Recording, ReadError> {
    #[cfg(feature = "recording")]
    if path.is_file() && is_ours(path)? {
        return recording(path, options);
    }
    read_file(path, options)
}

/// Reads a Millpond recording. Its file is read twice: first for its definitions, then for the rows.
#[cfg(feature = "recording")]
fn recording(path: &Path, options: &ReadOptions<'_>) -> Result<Recording, ReadError> {
    let refused = |error: HistoryError| match error {
        HistoryError::Read(error) => error,
        error => ReadError::Recording {
            what: error.to_string(),
        },
    };
    let history = History::open(path, options).map_err(refused)?;
    let found = traces(
        &history,
        base_name(&file_name(path, options)),
        &ExportOptions::default(),
    );
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
