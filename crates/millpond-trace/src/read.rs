//! The entry points: a file, bytes or a stream in, a [`Recording`] out.

use crate::source::Source;
use crate::{Format, ReadError, ReadOptions, Recording, chrome, csv, detect, rmm, torch};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads the recording in a file.
///
/// The format is told by content: plain, gzip or zstd, and in it a PyTorch snapshot, RMM's CSV, Millpond
/// CSV or a chrome trace. Every file may be hostile: nothing in it is executed, no number in it sizes a
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
    }
}

fn base_name(mut name: &str) -> &str {
    for ending in [".zst", ".gz", ".csv", ".pickle", ".pkl", ".json"] {
        name = name
            .strip_suffix(ending)
            .filter(|rest| !rest.is_empty())
            .unwrap_or(name);
    }
    name
}
