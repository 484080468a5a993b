//! Errors of reading a file. Each message is one line and says what the owner of the file can do.

use crate::Format;

/// A file that could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system could not read the file.
    #[error("cannot read {name}: {source}")]
    Io {
        /// The name of the file, as given by the caller.
        name: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// No reader supports this content.
    #[error(
        "{found}; the supported formats are PyTorch memory snapshots (pickle), RMM logs (CSV), Millpond CSV and chrome traces (JSON), plain or compressed with gzip or zstd, and Millpond's own recordings"
    )]
    UnknownFormat {
        /// A description of the content.
        found: &'static str,
    },
    /// The compressed stream ends early or cannot be decoded.
    #[error(
        "the compressed data is truncated or damaged after {at} decompressed bytes ({what}); copy the file again"
    )]
    Damaged {
        /// Number of bytes that were decompressed before.
        at: u64,
        /// The error of the decoder.
        what: String,
    },
    /// The file is larger than the options allow.
    #[error(
        "the file holds more than {limit} bytes when decompressed; raise `max_decompressed` if that is intended"
    )]
    TooLarge {
        /// The limit that was reached.
        limit: u64,
    },
    /// The file expands suspiciously when decompressed.
    #[error(
        "the file grows more than {limit} times when decompressed, which no real recording does; decompress it yourself or raise `max_expansion` if that is intended"
    )]
    Expands {
        /// The limit that was reached.
        limit: u64,
    },
    /// A small compressed file with a very large number of lines or values.
    #[error(
        "the file has more than {lines} lines or values, which no real recording of this compressed size has; decompress it yourself if that is intended"
    )]
    TooDense {
        /// Number of lines or values read.
        lines: u64,
    },
    /// The pickle is malformed.
    #[error("malformed pickle at byte {offset}: {what}; dump the snapshot again or copy the file again")]
    Pickle {
        /// Position in the decompressed file.
        offset: u64,
        /// A description of the problem.
        what: String,
    },
    /// The pickle requests that code be found or run.
    #[error(
        "opcode {opcode} at byte {offset} could call code; a snapshot never needs it, so the file was refused"
    )]
    PickleCall {
        /// The opcode's name in CPython's `pickletools`.
        opcode: &'static str,
        /// Position in the decompressed file.
        offset: u64,
    },
    /// The pickle is well formed but is not a snapshot.
    #[error("the pickle is not a memory snapshot: {what}; write one with torch.cuda.memory._dump_snapshot")]
    NotASnapshot {
        /// The missing or unexpected part.
        what: &'static str,
    },
    /// A line of a CSV file cannot be parsed.
    #[error("line {line}: {what}; correct or remove the line")]
    Csv {
        /// Line number, counted from 1.
        line: u64,
        /// A description of the problem.
        what: String,
    },
    /// The JSON is malformed.
    #[error("malformed JSON: {what}; export the trace again or copy the file again")]
    Json {
        /// The error of the parser, with line and column.
        what: String,
    },
    /// The file is complete and contains no allocation.
    #[error("the file holds no memory events; {}", hint(*.format))]
    NoMemoryEvents {
        /// The format of the file.
        format: Format,
    },
    /// A Millpond recording that cannot be read.
    #[error("{what}")]
    Recording {
        /// The reason.
        what: String,
    },
    /// Reading was interrupted by [`Interrupt::set`](crate::Interrupt::set).
    #[error("interrupted")]
    Interrupted,
    /// A recording with more allocations than there are serial numbers.
    #[error("the recording has more than {limit} allocations; split it")]
    TooManyAllocations {
        /// Maximum number of allocations.
        limit: u32,
    },
    /// A recording with more devices than any machine has.
    #[error("the recording has more than {limit} devices; it is not a recording of one process")]
    TooManyDevices {
        /// Maximum number of devices.
        limit: usize,
    },
}

fn hint(format: Format) -> &'static str {
    match format {
        Format::TorchSnapshot => {
            "call torch.cuda.memory._record_memory_history() before the program allocates"
        }
        Format::ChromeTrace => "record with torch.profiler.profile(profile_memory=True)",
        Format::RmmCsv | Format::MillpondCsv | Format::MillpondRecording => {
            "it may have been closed before the program allocated"
        }
    }
}

/// Quotes at most forty characters of untrusted text on one line.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}
