//! Reads the formats that are read once from start to end. The reader is chosen by the content.

use crate::source::Source;
use crate::{Format, ReadError, ReadOptions, Recording, chrome, csv, detect, rmm, torch};
use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a file in any of these formats.
pub(crate) fn read_file(path: &Path, options: &ReadOptions<'_>) -> Result<Recording, ReadError> {
    let io_error = |source| ReadError::Io {
        name: path.display().to_string(),
        source,
    };
    let file = File::open(path).map_err(io_error)?;
    let metadata = file.metadata().map_err(io_error)?;
    let total = metadata.is_file().then_some(metadata.len());
    read_from(file, &file_name(path, options), total, options)
}

/// Reads a recording from memory. `name` is used in place of the file name.
pub fn read_bytes(bytes: &[u8], name: &str, options: &ReadOptions<'_>) -> Result<Recording, ReadError> {
    read_from(bytes, name, Some(bytes.len() as u64), options)
}

/// Reads a recording from a stream of `total` bytes. `name` is used in place of the file name.
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
        // A recording in a file has its own reader.
        Format::MillpondRecording => Err(ReadError::Recording {
            what: PLAIN.to_owned(),
        }),
    }
}

#[cfg(feature = "recording")]
const PLAIN: &str = "a Millpond recording (.mpr) must be a plain file, because it is read several times: save it as an uncompressed file";
#[cfg(not(feature = "recording"))]
const PLAIN: &str = "this program was built without support for Millpond recordings (.mpr): convert the recording to CSV with `millpond convert`";

/// Returns the name that the options give, or the last component of a path.
pub(crate) fn file_name<'a>(path: &'a Path, options: &ReadOptions<'a>) -> Cow<'a, str> {
    let of_path = || path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    options.name.map_or_else(of_path, Cow::Borrowed)
}

/// Removes the endings of recordings from a file name.
pub(crate) fn base_name(mut name: &str) -> &str {
    for ending in [".zst", ".gz", ".csv", ".pickle", ".pkl", ".json", ".mpr"] {
        name = name
            .strip_suffix(ending)
            .filter(|rest| !rest.is_empty())
            .unwrap_or(name);
    }
    name
}
