//! The open file of a recording. All walks read this file, even if another file takes its name later.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Bytes read at a time.
const BUFFER: usize = 1 << 20;

/// An open file, with its size and modification time when it was opened.
#[derive(Debug)]
pub(super) struct Opened {
    file: Arc<File>,
    bytes: u64,
    modified: Option<SystemTime>,
}

/// Reads a file from its start, independently of other readers.
pub(super) type FromStart = BufReader<SharedFileReader>;

/// A reader's position in a file that other readers share.
#[derive(Debug)]
pub(super) struct SharedFileReader {
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

    /// Returns the bytes of the file when it was opened.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn read_from_start(&self) -> FromStart {
        let file = Arc::clone(&self.file);
        BufReader::with_capacity(BUFFER, SharedFileReader { file, at: 0 })
    }

    /// Returns whether the file was written since it was opened, without becoming longer. A recording in progress only grows, and a
    /// finished one does not change.
    pub(super) fn is_written_over(&self) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        let is_longer = metadata.len() > self.bytes;
        Ok(!is_longer && metadata.modified().ok() != self.modified)
    }
}

impl Read for SharedFileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = read_at(&self.file, buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for SharedFileReader {
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
