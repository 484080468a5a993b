//! Why a file could not be read, and what its owner can do about it. Each message is one line.

use crate::Format;

/// A file that could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system could not deliver the file's bytes.
    #[error("cannot read {name}: {source}")]
    Io {
        /// The file, as the caller named it.
        name: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No reader knows this content.
    #[error(
        "{found}; accepted are PyTorch memory snapshots (pickle), RMM logs (CSV), Millpond CSV and chrome traces (JSON), plain or compressed with gzip or zstd, and Millpond's own recordings"
    )]
    UnknownFormat {
        /// What the content looks like.
        found: &'static str,
    },
    /// The compressed stream ends early or does not decode.
    #[error(
        "the compressed data is cut or damaged after {at} decompressed bytes ({what}); copy the file again"
    )]
    Damaged {
        /// Bytes that could be decompressed before.
        at: u64,
        /// The decoder's reason.
        what: String,
    },
    /// The file is larger than the options allow.
    #[error(
        "the file holds more than {limit} bytes when decompressed; raise `max_decompressed` if that is meant"
    )]
    TooLarge {
        /// The limit that was reached.
        limit: u64,
    },
    /// The file grows suspiciously when decompressed.
    #[error(
        "the file grows more than {limit} times when decompressed, as no recording does; decompress it yourself or raise `max_expansion` if that is meant"
    )]
    Expands {
        /// The limit that was reached.
        limit: u64,
    },
    /// A small compressed file of very many lines or values.
    #[error(
        "more than {lines} lines or values in a compressed file as small as this, as in no recording; decompress it yourself if that is meant"
    )]
    TooDense {
        /// How many were read.
        lines: u64,
    },
    /// The pickle is malformed.
    #[error("malformed pickle at byte {offset}: {what}; dump the snapshot again or copy the file again")]
    Pickle {
        /// Where in the decompressed file.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The pickle asks for code to be found or run.
    #[error(
        "opcode {opcode} at byte {offset} could call code; a snapshot never needs it, so the file was refused"
    )]
    PickleCall {
        /// The opcode's name in CPython's `pickletools`.
        opcode: &'static str,
        /// Where in the decompressed file.
        offset: u64,
    },
    /// The pickle is well formed and holds something else than a snapshot.
    #[error("the pickle is not a memory snapshot: {what}; write one with torch.cuda.memory._dump_snapshot")]
    NotASnapshot {
        /// What is missing or unexpected.
        what: &'static str,
    },
    /// A line of a CSV file cannot be understood.
    #[error("line {line}: {what}; mend or remove the line")]
    Csv {
        /// Counted from 1.
        line: u64,
        /// What is wrong there.
        what: String,
    },
    /// The JSON is malformed.
    #[error("malformed JSON: {what}; export the trace again or copy the file again")]
    Json {
        /// The parser's reason, with line and column.
        what: String,
    },
    /// The file is whole and records no allocation.
    #[error("the file holds no memory events; {}", hint(*.format))]
    NoMemoryEvents {
        /// The format it was read as.
        format: Format,
    },
    /// A recording of Millpond's that cannot be read as one.
    #[error("{what}")]
    Recording {
        /// Why.
        what: String,
    },
    /// A recording with more allocations than serial numbers.
    #[error("more than {limit} allocations; split the recording")]
    TooManyAllocations {
        /// How many there may be.
        limit: u32,
    },
    /// A recording with more devices than any machine has.
    #[error("more than {limit} devices; this is no recording of one process")]
    TooManyDevices {
        /// How many there may be.
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

/// At most forty characters of untrusted text, quoted and on one line.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}
