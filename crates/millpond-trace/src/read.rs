//! The entry points: a file, bytes or a stream in, a [`Recording`] out.

use crate::source::Source;
use crate::{Format, ReadError, ReadOptions, Recording, chrome, csv, detect, rmm, torch};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads the recording in a file.
///
/// The format is told by content: plain, gzip or zstd, and in it a PyTorch snapshot, RMM's CSV, Millpond
/// CSV or a chrome trace; with the feature `recording` a recording of Millpond's too, if it is a regular, plain file. Every file may be hostile: nothing in it is executed, no number in it sizes a
/// buffer, nesting and cycles cost no stack, and memory stays within a small multiple of the content.
/// What is odd and not fatal is counted in [`crate::Trace::cautions`].
pub fn read(path: &Path, options: &ReadOptions<'_>) -> Result<Recording, ReadError> {
    let io_error = |source| ReadError::Io {
        name: path.display().to_string(),
        source,
    };
    let file = File::open(path).map_err(io_error)?;
    let metadata = file.metadata().map_err(io_error)?;
    let total = metadata.is_file().then_some(metadata.len());
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    #[cfg(feature = "recording")]
    if metadata.is_file() && crate::history::is_ours(path)? {
        return recording(path, &name, options);
    }
    read_from(file, &name, total, options)
}

/// Reads a recording from memory; `name` stands for the file name.
pub fn read_bytes(bytes: &[u8], name: &str, options: &ReadOptions<'_>) -> Result<Recording, ReadError> {
    read_from(bytes, name, Some(bytes.len() as u64), options)
}

/// Reads a recording from a stream of `total` bytes; `name` stands for the file name.
///
/// The stream is read in large pieces and needs no buffer of its own.
pub fn read_from(
    stream: impl Read,
    name: &str,
    total: Option<u64>,
    options: &ReadOptions<'_>,
) -> Result<Recording, ReadError> {
    let mut source = Source::new(stream, name, total, options)?;
    let format = detect::detect(&mut source)?;
    if source.buffered().starts_with(b"\xef\xbb\xbf") {
        source.consume(3);
    }
    let name = base_name(name);
    match format {
        Format::MillpondCsv => csv::read(&mut source, name),
        Format::TorchSnapshot => torch::read(&mut source, name),
        Format::RmmCsv => rmm::read(&mut source, name),
        Format::ChromeTrace => chrome::read(&mut source, name),
        // From a file it is read another way.
        Format::MillpondRecording => Err(ReadError::Recording {
            what: PLAIN.to_owned(),
        }),
    }
}

/// A recording of Millpond's, whose file is walked twice: for what its numbers mean, and for the rows.
#[cfg(feature = "recording")]
fn recording(path: &Path, name: &str, options: &ReadOptions<'_>) -> Result<Recording, ReadError> {
    use crate::export::{ExportError, ExportOptions, traces};
    use crate::history::{History, HistoryError};
    let refused = |error: HistoryError| match error {
        HistoryError::Read(error) => error,
        error => ReadError::Recording {
            what: error.to_string(),
        },
    };
    let history = History::open(path, options).map_err(refused)?;
    let found = traces(&history, base_name(name), &ExportOptions::default());
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

#[cfg(feature = "recording")]
const PLAIN: &str = "a recording of Millpond's (.mpr) is read from a plain file only, as it is walked several times: save it as one, \
                     uncompressed";
#[cfg(not(feature = "recording"))]
const PLAIN: &str = "this program was built without what reads recordings of Millpond's (.mpr): write Millpond CSV with `millpond convert`";

fn base_name(mut name: &str) -> &str {
    for ending in [".zst", ".gz", ".csv", ".pickle", ".pkl", ".json", ".mpr"] {
        name = name
            .strip_suffix(ending)
            .filter(|rest| !rest.is_empty())
            .unwrap_or(name);
    }
    name
}
