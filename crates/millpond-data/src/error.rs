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
    #[error("{path} is not a regular file: use the path of a regular file, because elements are read by their position", path = path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A row has no bytes, or more bytes than can be addressed.
    #[error(
        "a row cannot have {elements} elements: set `row` to at least 1, and to a number of elements that fits into memory"
    )]
    Row {
        /// The requested number of elements of a row.
        elements: usize,
    },
    /// The file does not consist of whole rows.
    #[error(
        "{path} has {bytes} bytes, of which {skip} are skipped: the rest is not a whole number of rows of {row_bytes} bytes; check the type, `row` and `skip`",
        path = path.display()
    )]
    Uneven {
        /// The file.
        path: PathBuf,
        /// The size of the file in bytes.
        bytes: u64,
        /// The bytes that are skipped.
        skip: u64,
        /// The size of a row in bytes.
        row_bytes: u64,
    },
    /// The files have more rows in total than can be counted.
    #[error("the files have more rows or bytes than a 64-bit number can count: open fewer files")]
    TooMany,
    /// The file has become shorter since it was opened.
    #[error("{path} was truncated while it was read: it ends before byte {end}; open it again", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The end of the requested range, in bytes.
        end: u64,
    },
    /// The file has changed since it was opened.
    ///
    /// The size and the modification time are compared. If the file is opened again by its path, its identity is compared as well,
    /// because another file may have replaced it. A write that leaves size and time unchanged is not detected. This can be a write
    /// within a tick of the file system's clock (a few milliseconds) after the file was opened, or a write after which the time was
    /// set back.
    #[error("{path} has changed since it was opened, so its data may be inconsistent; open it again", path = path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The elements would not be aligned in a map.
    #[error(
        "{path}: the elements begin at byte {skip}, which is not a multiple of {align}: they can be read, but not mapped",
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
    /// The byte of a boolean element is neither 0 nor 1.
    #[error("{path} has a boolean that is neither 0 nor 1: read the file as u8, or save it again", path = path.display())]
    NotBools {
        /// The file.
        path: PathBuf,
    },
    /// The budget of a pass is smaller than the minimum that the pass needs.
    #[error(
        "a pass needs at least {needed} bytes for {chunks} chunks at once, but its budget is {budget} bytes: raise `budget`, or lower `rows` or `ahead`"
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
    #[error("cannot allocate memory for the data: {0}")]
    Memory(#[from] AllocError),
    /// The transfer to the device failed.
    #[cfg(feature = "cuda")]
    #[error("cannot copy the data to the device: {0}")]
    Cuda(#[from] millpond_cuda::CudaError),
}
