//! Files that are checked for changes, and the rows of several files as one sequence. All reads are here.

use super::error::DataError;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The identity and state of a file: which file it is, its size, and its modification time.
///
/// The time of the last change of the inode (`ctime`) is not compared, although it would detect a write after which the
/// modification time was set back. It also changes when the file is renamed or replaced by another file, and neither changes the
/// contents of the open file. A write that leaves size and time unchanged is not detected. This can be a write within a tick of
/// the file system's clock after the file was opened, or a write after which the time was set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// The device and the inode.
    file: (u64, u64),
    bytes: u64,
    written: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// A regular file, and its stamp when it was opened.
#[derive(Debug)]
pub(super) struct Opened {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

#[derive(Debug)]
pub(crate) struct Part {
    pub(super) file: Opened,
    /// The offset of its rows in the file, in bytes.
    pub(super) skip: u64,
    /// The index of its first row in the data set, and the number of its rows.
    pub(super) first: u64,
    pub(super) rows: u64,
}

/// The files of a data set. The rows of a file follow those of the previous one.
#[derive(Debug)]
pub(super) struct Files {
    parts: Vec<Part>,
    row_bytes: usize,
    rows: u64,
}

pub(super) fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> DataError {
    let path = path.to_owned();
    move |source| DataError::Io { path, what, source }
}

/// Returns the files of a folder whose names end with `end`, in the order of their names.
pub(super) fn listed(folder: &Path, end: &str) -> Result<Vec<PathBuf>, DataError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed(folder, "read the folder"))? {
        let path = entry.map_err(failed(folder, "read the folder"))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        if path.is_file() && name.is_some_and(|name| name.ends_with(end)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

impl Files {
    /// Creates an empty list for rows of `row_bytes` bytes.
    pub(super) fn of(row_bytes: usize) -> Self {
        Self {
            parts: Vec::new(),
            row_bytes,
            rows: 0,
        }
    }

    pub(super) fn open(paths: &[PathBuf], skip: u64, row_bytes: usize) -> Result<Self, DataError> {
        if paths.is_empty() {
            return Err(DataError::NoFiles);
        }
        let mut files = Self::of(row_bytes);
        for path in paths {
            files.add(path, skip)?;
        }
        Ok(files)
    }

    /// Adds a file that consists of whole rows after the first `skip` bytes.
    pub(super) fn add(&mut self, path: &Path, skip: u64) -> Result<&Part, DataError> {
        let file = Opened::open(path)?;
        let (bytes, row_bytes) = (file.bytes(), self.row_bytes as u64);
        let rows = bytes
            .checked_sub(skip)
            .filter(|rows| rows.is_multiple_of(row_bytes));
        let rows = rows
            .map(|rows| rows / row_bytes)
            .ok_or_else(|| DataError::Uneven {
                path: path.to_owned(),
                bytes,
                skip,
                row_bytes,
            })?;
        self.push(file, skip, rows)
    }

    /// Adds `rows` rows of a file, which begin after `skip` bytes. The caller has checked that they exist.
    pub(super) fn push(&mut self, file: Opened, skip: u64, rows: u64) -> Result<&Part, DataError> {
        let total = self.rows.checked_add(rows).ok_or(DataError::TooMany)?;
        total
            .checked_mul(self.row_bytes as u64)
            .ok_or(DataError::TooMany)?;
        let first = self.rows;
        self.rows = total;
        let at = self.parts.len();
        self.parts.push(Part {
            file,
            skip,
            first,
            rows,
        });
        Ok(&self.parts[at])
    }

    /// Returns an error if a file does not have this stamp.
    pub(super) fn expect(&self, stamp: Stamp) -> Result<(), DataError> {
        self.parts.iter().try_for_each(|part| part.file.expect(stamp))
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(super) fn count(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns the file that contains a row, and those after it.
    pub(super) fn parts_from(&self, row: u64) -> &[Part] {
        let past = self.parts.partition_point(|part| part.first + part.rows <= row);
        self.parts.get(past..).unwrap_or(&[])
    }

    /// Reads whole rows from `start` on. The caller has checked that they exist.
    pub(super) fn read(&self, start: u64, out: &mut [u8]) -> Result<(), DataError> {
        debug_assert!(out.len().is_multiple_of(self.row_bytes));
        let (mut row, mut left) = (start, out);
        for part in self.parts_from(start) {
            if left.is_empty() {
                break;
            }
            let here = (part.first + part.rows)
                .saturating_sub(row)
                .min((left.len() / self.row_bytes) as u64);
            let (now, rest) = left.split_at_mut(here as usize * self.row_bytes);
            let at = part.skip + (row - part.first) * self.row_bytes as u64;
            part.file.read(at, now)?;
            row += here;
            left = rest;
        }
        debug_assert!(left.is_empty(), "callers clamp");
        Ok(())
    }
}

impl Opened {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        // This check is made before the file is opened, because opening a pipe waits for a writer.
        let metadata = fs::metadata(path).map_err(failed(path, "find it"))?;
        if !metadata.is_file() {
            return Err(DataError::NotAFile {
                path: path.to_owned(),
            });
        }
        let file = File::open(path).map_err(failed(path, "open it"))?;
        let metadata = file.metadata().map_err(failed(path, "read its metadata"))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            stamp: Stamp::of(&metadata),
        })
    }

    /// Returns another handle to the same file, even if its path now refers to another file. Returns an error if the file has
    /// changed.
    #[cfg(feature = "safetensors")]
    pub(super) fn again(&self) -> Result<Self, DataError> {
        self.check()?;
        let file = self.file.try_clone();
        Ok(Self {
            path: self.path.clone(),
            file: file.map_err(failed(&self.path, "reopen it"))?,
            stamp: self.stamp,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Returns the size of the file when it was opened, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Returns an error if the file does not have this stamp.
    pub(super) fn expect(&self, stamp: Stamp) -> Result<(), DataError> {
        if self.stamp == stamp {
            return Ok(());
        }
        Err(self.changed())
    }

    /// Fills `out` from the offset `at`.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), DataError> {
        match self.file.read_exact_at(out, at) {
            Ok(()) => self.check(),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(DataError::Truncated {
                path: self.path.clone(),
                end: at.saturating_add(out.len() as u64),
            }),
            Err(error) => Err(failed(&self.path, "read it")(error)),
        }
    }

    /// Returns an error if the file has changed since it was opened.
    pub(super) fn check(&self) -> Result<(), DataError> {
        let metadata = self
            .file
            .metadata()
            .map_err(failed(&self.path, "read its metadata"))?;
        if Stamp::of(&metadata) == self.stamp {
            return Ok(());
        }
        Err(self.changed())
    }

    fn changed(&self) -> DataError {
        DataError::Changed {
            path: self.path.clone(),
        }
    }
}
