//! Where results go: stdout as one piece, files whole or not at all.

use crate::exit::CliError;
use crate::terminal::colours;
use crate::text::harmless;
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// How everything begins that this program writes to files, by which one is known that may be replaced: pages,
/// pictures and plans.
const OURS: [&[u8]; 4] = [
    b"<!doctype html>",
    b"<svg xmlns=",
    b"millpond-plan ",
    b"\x89png\r\n\x1a\n",
];

/// As much of a file as tells.
const START: u64 = 16;

/// Prints a finished text.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    print_bytes(&harmless(text, colours()))
}

/// Prints a line that programs read, as it is.
pub(crate) fn print_line(text: &str) -> Result<(), CliError> {
    print_bytes(&format!("{text}\n"))
}

/// Prints what programs read: nothing in it is changed.
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
    let mut text = serde_json::to_string_pretty(value).map_err(|error| CliError::Write {
        what: "the JSON".to_owned(),
        source: error.into(),
    })?;
    text.push('\n');
    print_bytes(&text)
}

/// Says something that is no result.
pub(crate) fn note(quiet: bool, text: &str) {
    if !quiet {
        // Nobody is told when stderr is gone: there is nowhere left to say it.
        let _ = writeln!(std::io::stderr(), "millpond: {}", harmless(text, false));
    }
}

/// Writes a file beside its place and then puts it there, so that nobody ever sees half of it.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<(), CliError> {
    let failed = |source| CliError::Write {
        what: path.display().to_string(),
        source,
    };
    check_replaceable(path).map_err(failed)?;
    let beside = beside(path).map_err(failed)?;
    let fill = || {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&beside)?);
        write(&mut out)?;
        out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        std::fs::rename(&beside, path)
    };
    fill().map_err(|source| {
        let _ = std::fs::remove_file(&beside);
        failed(source)
    })
}

/// Whether a file can be written there, before the work that fills it.
pub(crate) fn check_writable(path: &Path) -> Result<(), CliError> {
    let failed = |source| CliError::Write {
        what: path.display().to_string(),
        source,
    };
    check_replaceable(path).map_err(failed)?;
    let beside = beside(path).map_err(failed)?;
    File::create(&beside).map_err(failed)?;
    std::fs::remove_file(&beside).map_err(failed)
}

/// Whether nothing is there yet, or something that this program wrote and may be replaced.
///
/// A rename asks nobody: it takes the place of a recording, of a file that may not be written, and for root
/// of `/dev/null`. One slip on the command line must not cost the only recording of a run.
fn check_replaceable(path: &Path) -> std::io::Result<()> {
    let there = match std::fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if there.is_dir() {
        return Err(Error::from(ErrorKind::IsADirectory));
    }
    if !there.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    if there.permissions().readonly() {
        return Err(Error::from(ErrorKind::PermissionDenied));
    }
    let mut start = Vec::new();
    File::open(path)?.take(START).read_to_end(&mut start)?;
    start.make_ascii_lowercase();
    if start.is_empty() || OURS.iter().any(|ours| start.starts_with(ours)) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::AlreadyExists,
        "a file that millpond did not write is there already; name another, or remove it",
    ))
}

/// The name under which a file is filled.
fn beside(path: &Path) -> std::io::Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(Error::new(ErrorKind::InvalidInput, "this names no file"));
    };
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}.part", std::process::id()));
    Ok(path.with_file_name(beside))
}
