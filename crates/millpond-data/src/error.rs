//! Errors of data files.

use millpond_account::error::AllocError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// An error of opening, reading or writing data files. No state is lost, so the operation may be tried again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// A system call failed.
    #[error("{path}: cannot {what}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operation.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// No file was given.
    #[error("a data set needs a file: name one with `file`, `files` or `folder`")]
    NoFiles,
    /// The path is a folder, a pipe or a device.
    #[error("{path} is no regular file: elements are read by their place, which only files have", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A row has no bytes, or more bytes than can be addressed.
    #[error("a row of {elements} elements is none: give `row` from 1 to what fits into memory")]
    Row {
        /// The requested number of elements of a row.
        elements: usize,
    },
    /// The file does not consist of whole rows.
    #[error(
        "{path} has {bytes} bytes, {skip} of them skipped: that is no whole number of rows of {row_bytes}; is it the right type, `row` or `skip`?",
        path = path.display()
    )]
    Uneven {
        /// The file.
        path: PathBuf,
        /// The size of the file in bytes.
        bytes: u64,
        /// The bytes that are skipped.
        skip: u64,
        /// Bytes of a row.
        row_bytes: u64,
    },
    /// The files have more rows in total than can be counted.
    #[error("the files have more rows than 64 bits count")]
    TooMany,
    /// The file has become shorter since it was opened.
    #[error("{path} was cut while it was read: it ends before byte {end}; open it again", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The end of the requested range, in bytes.
        end: u64,
    },
    /// The file was written since it was opened, or another file has replaced it where that matters.
    ///
    /// The size, the modification time and, if the file is opened again, its identity are compared. A write that leaves size and
    /// time unchanged is not detected: one within a tick of the file system's clock (a few milliseconds) after the file was opened,
    /// or one after which the time was set back.
    #[error("{path} was changed after it was opened, so what is read of it may be torn; open it again", path = path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The elements would not be aligned in a map.
    #[error(
        "{path}: elements begin at byte {skip}, which is no multiple of {align}: they can be read, but not mapped",
        path = path.display()
    )]
    Misaligned {
        /// The file.
        path: PathBuf,
        /// The offset of the elements in the file.
        skip: u64,
        /// The required alignment.
        align: usize,
    },
    /// A byte of truth values is neither 0 nor 1.
    #[error("{path}: one of its bools is neither 0 nor 1: read it as u8, or save it anew", path = path.display())]
    NotBools {
        /// The file.
        path: PathBuf,
    },
    /// The budget of a pass is smaller than the least that it needs.
    #[error(
        "a pass needs {needed} bytes at least for {chunks} chunks at once, and has {budget}: raise `budget`, or take fewer `rows` or `ahead`"
    )]
    Budget {
        /// The number of bytes needed.
        needed: u64,
        /// The number of chunks that have to exist at once.
        chunks: usize,
        /// The given budget.
        budget: u64,
    },
    /// Memory for the data cannot be allocated.
    #[error("no memory for what is read: {0}")]
    Memory(#[from] AllocError),
    /// The transfer to the device failed.
    #[cfg(feature = "cuda")]
    #[error("what is read cannot be brought to the device: {0}")]
    Cuda(#[from] millpond_cuda::CudaError),
}
