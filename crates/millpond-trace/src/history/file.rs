//! The file of a recording, open as long as it is looked at: whatever takes its name later, all walks read the same file.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Bytes read at a time.
const BUFFER: usize = 1 << 20;

/// An open file, and how it was then.
#[derive(Debug)]
pub(super) struct Opened {
    file: Arc<File>,
    bytes: u64,
    modified: Option<SystemTime>,
}

/// Reads a file from its start, whoever else reads it.
pub(super) type FromStart = BufReader<Place>;

/// A place in a file that others read too.
#[derive(Debug)]
pub(super) struct Place {
    file: Arc<File>,
    at: u64,
}

impl Opened {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok(Self {
            file: Arc::new(file),
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }

    pub(super) fn read_from_start(&self) -> FromStart {
        let file = Arc::clone(&self.file);
        BufReader::with_capacity(BUFFER, Place { file, at: 0 })
    }

    /// Whether it was written since without becoming longer: a recording that is still made grows, and one that is made does not
    /// change.
    pub(super) fn is_written_over(&self) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        let is_longer = metadata.len() > self.bytes;
        Ok(!is_longer && metadata.modified().ok() != self.modified)
    }
}

impl Read for Place {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = read_at(&self.file, buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Place {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let beyond = || io::Error::from(io::ErrorKind::InvalidInput);
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::Current(by) => self.at.checked_add_signed(by).ok_or_else(beyond)?,
            SeekFrom::End(by) => self
                .file
                .metadata()?
                .len()
                .checked_add_signed(by)
                .ok_or_else(beyond)?,
        };
        Ok(self.at)
    }
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, at)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, at)
}
