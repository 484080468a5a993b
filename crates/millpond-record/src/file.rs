//! Creates the files of recordings and snapshots.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The number of bytes at the beginning of a file that are searched for the version in the schema of a recording.
const START: u64 = 64 << 10;

/// Creates a file for a recording. An older recording at the path is replaced, unless a process is still writing it.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if the path names anything but a recording or an empty file, or a recording that a process is
/// still writing. The file is not changed: a mistake in a path must not destroy another file.
pub(super) fn create(path: &Path) -> Result<File> {
    let create = || OpenOptions::new().write(true).create_new(true).open(path);
    let file = match create() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let replaced = check_replaceable(path)?;
            fs::remove_file(path)?;
            let file = create()?;
            file.set_permissions(replaced.metadata()?.permissions())?;
            file
        }
        outcome => outcome?,
    };
    // The lock tells other processes that this file is being written. Some file systems have no locks.
    let _ = file.try_lock();
    Ok(file)
}

/// The file of a recording.
///
/// A program may close the descriptors of all files, and its own files then get their numbers. So each write checks that
/// the descriptor is that of the recording, and otherwise opens the recording again.
#[derive(Debug)]
pub(super) struct RecordingFile {
    /// `None` if it could not be opened again.
    file: Option<File>,
    path: PathBuf,
    identity: (u64, u64),
}

/// Returns the device and the inode of a file.
fn identity(file: &File) -> Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

impl RecordingFile {
    pub(super) fn new(file: File, path: &Path) -> Result<Self> {
        let identity = identity(&file)?;
        Ok(Self {
            file: Some(file),
            // The program may change its working directory.
            path: std::path::absolute(path)?,
            identity,
        })
    }

    fn is_open(&self) -> bool {
        self.file
            .as_ref()
            .is_some_and(|file| identity(file).ok() == Some(self.identity))
    }

    /// Returns the file, which is opened again if the program has closed its descriptor.
    fn open(&mut self) -> Result<&mut File> {
        if !self.is_open() {
            self.forget();
            let file = OpenOptions::new().append(true).open(&self.path)?;
            if identity(&file)? != self.identity {
                return Err(Error::other(
                    "the program closed the descriptor of the recording, and its path names another file now",
                ));
            }
            let _ = file.try_lock();
            self.file = Some(file);
        }
        self.file
            .as_mut()
            .ok_or_else(|| Error::other("the recording is closed"))
    }

    /// Leaves the descriptor as it is: it belongs to the program.
    fn forget(&mut self) {
        if let Some(file) = self.file.take() {
            let _ = file.into_raw_fd();
        }
    }
}

impl Write for RecordingFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.open()?.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Drop for RecordingFile {
    fn drop(&mut self) {
        if !self.is_open() {
            self.forget();
        }
    }
}

/// Opens the file at a path if it may be replaced.
fn check_replaceable(path: &Path) -> Result<File> {
    let refused = |why: &str| Err(Error::new(ErrorKind::AlreadyExists, why));
    if !fs::symlink_metadata(path)?.is_file() {
        return refused("it exists and is not a regular file; choose another path");
    }
    // Another process may create a link or a named pipe at the path between the two calls.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return refused("it exists and is not a regular file; choose another path");
    }
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        return refused(
            "this process or another one is recording to it; choose another path, or write %p in it, which is replaced by the process id",
        );
    }
    let mut start = Vec::new();
    Read::by_ref(&mut &file).take(START).read_to_end(&mut start)?;
    if !start.is_empty() && !is_recording(&start) {
        return refused("it exists and is not a recording; choose another path or remove it");
    }
    Ok(file)
}

/// Returns true if a file with this start is a recording: an Arrow stream whose schema names this library's version.
fn is_recording(start: &[u8]) -> bool {
    let version = b"millpond.version";
    start.starts_with(&[0xff; 4]) && start.windows(version.len()).any(|bytes| bytes == version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    #[test]
    fn only_recordings_and_empty_files_are_replaced() {
        let folder = std::env::temp_dir().join(format!("millpond-record-file-{}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        let at = |name: &str| folder.join(name);
        let why = |name: &str| create(&at(name)).expect_err(name).to_string();

        fs::write(at("notes"), "a year of work").expect("a file");
        assert!(why("notes").contains("not a recording"));
        assert_eq!(
            fs::read_to_string(at("notes")).expect("still there"),
            "a year of work"
        );

        symlink(at("nowhere"), at("link")).expect("a link");
        assert!(why("link").contains("not a regular file"));
        assert!(!at("nowhere").exists());

        let made = Command::new("mkfifo").arg(at("pipe")).status();
        assert!(made.expect("mkfifo runs").success());
        assert!(why("pipe").contains("not a regular file"));

        fs::write(at("empty"), "").expect("a file");
        drop(create(&at("empty")).expect("empty files are replaced"));
        fs::write(at("old.mpr"), b"\xff\xff\xff\xff\0\x01\0\0..millpond.version..").expect("a file");
        let open = create(&at("old.mpr")).expect("recordings are replaced");
        assert_eq!(fs::read(at("old.mpr")).expect("still there"), b"");
        assert!(why("old.mpr").contains("this process or another one is recording"));
        drop(open);
        drop(create(&at("old.mpr")).expect("nobody writes it any more"));
        fs::remove_dir_all(&folder).expect("our folder");
    }
}
