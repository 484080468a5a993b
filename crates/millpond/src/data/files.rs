//! Files that are known to be as they were, and rows by their place in one after another: all that reads.

use super::error::DataError;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What tells that a file is as it was: which file it is, its size, and when it was last written.
///
/// When its inode last changed (`ctime`) is no part of it, though it would tell of a file that was written and had its time
/// set back: a file changes so too when it gets another name, and when another file takes its name from it, which are no
/// changes of what is in it. What remains unseen is a write that leaves size and time as they were: one within a tick of the
/// file system's clock after the file was opened, or one after which the time was set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Device and inode.
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

/// A regular file, and what it was like when it was opened.
#[derive(Debug)]
pub(super) struct Opened {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

#[derive(Debug)]
pub(super) struct Part {
    pub(super) file: Opened,
    /// Where its rows begin.
    pub(super) skip: u64,
    /// The first of its rows, and how many it has.
    pub(super) first: u64,
    pub(super) rows: u64,
}

/// The files of a data set. The rows of one follow those of the other.
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

/// The files of a folder whose names end so, in the order of their names.
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
    /// None yet, of rows of so many bytes.
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

    /// Adds a file, all of which is rows behind so many bytes.
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

    /// Adds rows of a file, which has as many from there on.
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

    /// Refuses files that are not as one was that somebody has looked at.
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

    /// The file that has a row, and those after it.
    pub(super) fn parts_from(&self, row: u64) -> &[Part] {
        let past = self.parts.partition_point(|part| part.first + part.rows <= row);
        self.parts.get(past..).unwrap_or(&[])
    }

    /// Reads whole rows from `start` on; there are as many.
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
        // Before it is opened: opening a pipe waits for a writer.
        let metadata = fs::metadata(path).map_err(failed(path, "find it"))?;
        if !metadata.is_file() {
            return Err(DataError::NotAFile {
                path: path.to_owned(),
            });
        }
        let file = File::open(path).map_err(failed(path, "open it"))?;
        let metadata = file.metadata().map_err(failed(path, "look at it"))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            stamp: Stamp::of(&metadata),
        })
    }

    /// Another handle of the same file, whatever has its name by now. Refuses one that has changed.
    #[cfg(feature = "safetensors")]
    pub(super) fn again(&self) -> Result<Self, DataError> {
        self.check()?;
        let file = self.file.try_clone();
        Ok(Self {
            path: self.path.clone(),
            file: file.map_err(failed(&self.path, "open it again"))?,
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

    /// Bytes that it had when it was opened.
    pub(super) fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Refuses a file that is not as one was that somebody has looked at.
    pub(super) fn expect(&self, stamp: Stamp) -> Result<(), DataError> {
        if self.stamp == stamp {
            return Ok(());
        }
        Err(self.changed())
    }

    /// Reads all of `out` from a place on.
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

    /// Whether the file is as it was when it was opened.
    pub(super) fn check(&self) -> Result<(), DataError> {
        let metadata = self.file.metadata().map_err(failed(&self.path, "look at it"))?;
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
