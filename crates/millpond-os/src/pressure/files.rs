//! Reads the system's files below a directory, line by line, in bounded memory and time.

use super::evidence::Why;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The maximum length of a line. A line for a mount contains two paths of up to 4 KiB.
const MOST_LINE: usize = 16 << 10;
/// The maximum number of bytes that are read from a file.
const MOST_FILE: usize = 16 << 20;

/// Files below a root directory: `/`, or in tests a directory with the same structure.
#[derive(Clone, Debug)]
pub(super) struct Files {
    root: PathBuf,
}

impl Files {
    pub(super) fn under(root: PathBuf) -> Self {
        Self { root }
    }

    pub(super) fn is_system(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the actual path of a path of the system.
    pub(super) fn place(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the value of the first line that has one.
    pub(super) fn find<T>(&self, path: &Path, parse: impl Fn(&str) -> Option<T>) -> Result<T, Why> {
        let mut found = None;
        let outcome = self.each(path, |line| {
            if found.is_none() {
                found = parse(line);
            }
        });
        match found {
            Some(found) => Ok(found),
            None => outcome.and(Err(Why::Odd)),
        }
    }

    /// Visits every line that is text. Lines that are too long or not text are skipped, and reported at the end.
    pub(super) fn each(&self, path: &Path, mut visit: impl FnMut(&str)) -> Result<(), Why> {
        let mut file = open(&self.place(path))?;
        let mut left_out = Ok(());
        let mut show = |line: &[u8]| match std::str::from_utf8(line) {
            Ok(line) => visit(line),
            Err(_) => left_out = Err(Why::Odd),
        };
        let mut buffer = [0; MOST_LINE];
        let (mut held, mut total) = (0, 0);
        let mut skipping = false;
        let mut too_long = false;
        loop {
            let read = match file.read(&mut buffer[held..]) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            held += read;
            total += read;
            let mut start = 0;
            while let Some(length) = buffer[start..held].iter().position(|b| *b == b'\n') {
                if !std::mem::take(&mut skipping) {
                    show(&buffer[start..start + length]);
                }
                start += length + 1;
            }
            buffer.copy_within(start..held, 0);
            held -= start;
            if held == buffer.len() {
                (held, skipping, too_long) = (0, true, true);
            }
            if total > MOST_FILE {
                return Err(Why::TooLong);
            }
        }
        if held > 0 && !skipping {
            show(&buffer[..held]);
        }
        if too_long { Err(Why::TooLong) } else { left_out }
    }
}

fn open(path: &Path) -> Result<File, Why> {
    // The file is opened without blocking. If the path is a named pipe, it might never have a writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    Ok(file)
}
