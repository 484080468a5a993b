//! What can be wrong with files of data.

use crate::error::AllocError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why files of data cannot be opened, read or written. Nothing of it is lost: what failed may be tried again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// The system refused something.
    #[error("{path}: cannot {what}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// No file was named.
    #[error("a data set needs a file: name one with `file`, `files` or `folder`")]
    NoFiles,
    /// A folder, a pipe or a device.
    #[error("{path} is no regular file: elements are read by their place, which only files have", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Rows have no bytes, or more than there are addresses.
    #[error("a row of {elements} elements is none: give `row` from 1 to what fits into memory")]
    Row {
        /// Elements of a row, as asked for.
        elements: usize,
    },
    /// The file is no whole number of rows.
    #[error(
        "{path} has {bytes} bytes, {skip} of them skipped: that is no whole number of rows of {row_bytes}; is it the right type, `row` or `skip`?",
        path = path.display()
    )]
    Uneven {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
        /// Those that are no rows.
        skip: u64,
        /// Bytes of a row.
        row_bytes: u64,
    },
    /// Together the files have more rows than can be counted.
    #[error("the files have more rows than 64 bits count")]
    TooMany,
    /// The file has become shorter than it was when it was opened.
    #[error("{path} was cut while it was read: it ends before byte {end}; open it again", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where what was asked for ends.
        end: u64,
    },
    /// The file was written since it was opened, or another file has its name where that matters.
    ///
    /// Compared are its size, the time it was last written, and where it is opened again, which file it is. So what is not
    /// seen is a write that leaves size and time as they were: one within a tick of the file system's clock (a few
    /// milliseconds) after it was opened, or one after which somebody set the time back.
    #[error("{path} was changed after it was opened, so what is read of it may be torn; open it again", path = path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Elements would not begin at a multiple of their alignment in a map.
    #[error(
        "{path}: elements begin at byte {skip}, which is no multiple of {align}: they can be read, but not mapped",
        path = path.display()
    )]
    Misaligned {
        /// The file.
        path: PathBuf,
        /// Where its elements begin.
        skip: u64,
        /// What they have to be a multiple of.
        align: usize,
    },
    /// A byte of truth values is none.
    #[error("{path}: one of its bools is neither 0 nor 1: read it as u8, or save it anew", path = path.display())]
    NotBools {
        /// The file.
        path: PathBuf,
    },
    /// The budget of a pass is smaller than what it needs at least.
    #[error(
        "a pass needs {needed} bytes at least for {chunks} chunks at once, and has {budget}: raise `budget`, or take fewer `rows` or `ahead`"
    )]
    Budget {
        /// Bytes needed.
        needed: u64,
        /// Chunks that have to be there at once.
        chunks: usize,
        /// What was given.
        budget: u64,
    },
    /// There is no memory for what is read.
    #[error("no memory for what is read: {0}")]
    Memory(#[from] AllocError),
    /// The way to the device failed.
    #[cfg(feature = "cuda")]
    #[error("what is read cannot be brought to the device: {0}")]
    Cuda(#[from] crate::gpu::CudaError),
}
