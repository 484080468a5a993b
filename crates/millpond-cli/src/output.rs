//! Writes results to stdout in one piece, and writes files completely or not at all.

use crate::exit::CliError;
use crate::terminal::{colours, say};
use crate::text::harmless;
use atomic_write_file::AtomicWriteFile;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Error, ErrorKind, Read, Write};
use std::path::Path;

/// For each kind of file that this program may replace: the first bytes, and a mark of this program that follows soon after them. Other
/// programs write pages and pictures too, but without the mark.
const OURS: [(&[u8], &[u8]); 4] = [
    (b"<!doctype html>", b"<meta name=\"generator\" content=\"millpond"),
    (b"<svg xmlns=", b"<metadata>millpond"),
    (b"\x89PNG\r\n\x1a\n", b"Software\0millpond"),
    (b"millpond-plan ", b""),
];

/// The number of bytes in which the mark is found.
const START: u64 = 512;

/// Prints a finished text.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    print_bytes(&harmless(text, colours()))
}

/// Prints a line for programs, unchanged.
pub(crate) fn print_line(text: &str) -> Result<(), CliError> {
    print_bytes(&format!("{text}\n"))
}

/// Prints output for programs, unchanged.
fn print_bytes(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|source| CliError::Write {
        what: "the result".to_owned(),
        source,
    })
}

/// Prints a value as JSON with a line break at the end.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    print_bytes(&json(value)?)
}

/// Returns a value as JSON with a line break at the end.
pub(crate) fn json(value: &impl Serialize) -> Result<String, CliError> {
    let mut text = serde_json::to_string_pretty(value).map_err(|error| CliError::Write {
        what: "the JSON".to_owned(),
        source: error.into(),
    })?;
    text.push('\n');
    Ok(text)
}

/// Prints one value as itself, and several as a list.
pub(crate) fn print_json_list(values: &[impl Serialize]) -> Result<(), CliError> {
    match values {
        [one] => print_json(one),
        several => print_json(&several),
    }
}

/// Prints a message that is not a result.
pub(crate) fn note(quiet: bool, text: &str) {
    if !quiet {
        say(text);
    }
}

/// Writes a file that gets its name only when it is complete, so an incomplete file is never visible.
///
/// If the file system supports unnamed files, the file has no name until then, and an interrupted run leaves nothing behind.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<AtomicWriteFile>) -> std::io::Result<()>,
) -> Result<(), CliError> {
    write_checked(path, check_replaceable, write)
}

/// Writes a recording in the same way. An older recording is replaced.
pub(crate) fn write_recording(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<AtomicWriteFile>) -> std::io::Result<()>,
) -> Result<(), CliError> {
    write_checked(path, check_recording, write)
}

fn write_checked(
    path: &Path,
    check: fn(&Path) -> std::io::Result<()>,
    write: impl FnOnce(&mut BufWriter<AtomicWriteFile>) -> std::io::Result<()>,
) -> Result<(), CliError> {
    let fill = || {
        check(path)?;
        let mut out = BufWriter::with_capacity(1 << 20, AtomicWriteFile::open(path)?);
        write(&mut out)?;
        let file = out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.commit()
    };
    fill().map_err(|source| CliError::Write {
        what: path.display().to_string(),
        source,
    })
}

/// Checks that a file can be written at `path`, before the work that produces its contents.
pub(crate) fn check_writable(path: &Path) -> Result<(), CliError> {
    check_written(path, check_replaceable)
}

/// Checks the same of a recording.
pub(crate) fn check_recording_writable(path: &Path) -> Result<(), CliError> {
    check_written(path, check_recording)
}

fn check_written(path: &Path, check: fn(&Path) -> std::io::Result<()>) -> Result<(), CliError> {
    check(path)
        .and_then(|()| AtomicWriteFile::open(path)?.discard())
        .map_err(|source| CliError::Write {
            what: path.display().to_string(),
            source,
        })
}

/// Checks that the path is free, or that its file is empty or was written by this program.
///
/// A rename replaces anything without a question: a recording, a read-only file, and for root even `/dev/null`. A mistake on
/// the command line must not destroy the only recording of a run.
fn check_replaceable(path: &Path) -> std::io::Result<()> {
    check_start(path, START, is_ours)
}

/// Checks that the path is free, or that its file is empty or a recording, as a program that records itself does.
fn check_recording(path: &Path) -> std::io::Result<()> {
    // The schema at the beginning of a recording names the version.
    let version = b"millpond.version";
    check_start(path, 64 << 10, |start| {
        start.starts_with(&[0xff; 4]) && start.windows(version.len()).any(|bytes| bytes == version)
    })
}

fn check_start(path: &Path, bytes: u64, is_ours: impl Fn(&[u8]) -> bool) -> std::io::Result<()> {
    let there = match std::fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if there.is_dir() {
        return Err(Error::from(ErrorKind::IsADirectory));
    }
    if !there.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if there.permissions().readonly() {
        return Err(Error::from(ErrorKind::PermissionDenied));
    }
    let mut start = Vec::new();
    File::open(path)?.take(bytes).read_to_end(&mut start)?;
    if start.is_empty() || is_ours(&start) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::AlreadyExists,
        "a file is there already, and nothing in it shows that millpond wrote it; name another, or remove it",
    ))
}

/// Returns whether this program wrote a file with these first bytes.
fn is_ours(start: &[u8]) -> bool {
    OURS.iter().any(|(begin, mark)| {
        let rest = start.strip_prefix(*begin);
        rest.is_some_and(|rest| mark.is_empty() || rest.windows(mark.len()).any(|bytes| bytes == *mark))
    })
}
