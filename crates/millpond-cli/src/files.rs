//! Finds and reads the files that the user named.

use crate::args::ReplayArgs;
use crate::exit::{CliError, complain};
use crate::progress::{Progress, Work};
use crate::spool::{STDIN, rereadable};
use millpond_replay::{Program, Redactor, ReplayError, Selection};
use millpond_trace::history::{History, HistoryError};
use millpond_trace::{Caution, ReadError, ReadOptions, Recording, Trace, read, read_from};
use std::borrow::Borrow;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Returns the named files, sorted by name. Folders are replaced by the files directly in them.
pub(crate) fn expand(named: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    for path in named {
        let open = |source| CliError::Open {
            path: path.clone(),
            source,
        };
        if !std::fs::metadata(path).map_err(open)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let before = files.len();
        for entry in std::fs::read_dir(path).map_err(open)? {
            let inside = entry.map_err(open)?.path();
            if inside.is_file() && !passed_over(&inside) {
                files.push(inside);
            }
        }
        if files.len() == before {
            return Err(CliError::EmptyFolder(path.clone()));
        }
        files[before..].sort_by_cached_key(|file| by_number(file));
    }
    Ok(files)
}

/// Returns whether a file in a folder is not a recording, by its name.
fn passed_over(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
    name.starts_with('.')
        || ["md", "txt", "html", "toml", "py", "log"]
            .iter()
            .any(|other| ending == *other)
}

/// Returns a sort key in which numbers compare as numbers, so that rank 2 comes before rank 10.
fn by_number(path: &Path) -> Vec<(String, u64)> {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let mut key = vec![(String::new(), 0u64)];
    let mut in_number = false;
    for c in name.chars() {
        match c.to_digit(10) {
            Some(digit) => {
                in_number = true;
                if let Some(last) = key.last_mut() {
                    last.1 = last.1.saturating_mul(10).saturating_add(u64::from(digit));
                }
            }
            None => {
                if in_number {
                    key.push((String::new(), 0));
                    in_number = false;
                }
                if let Some(last) = key.last_mut() {
                    last.0.push(c);
                }
            }
        }
    }
    key
}

/// The longest wait for a writer of a pipe.
const WRITER_PATIENCE: Duration = Duration::from_secs(5);

/// Refuses anything but a regular file and standard input. A recording that is read several times must stay in place.
pub(crate) fn check_regular(path: &Path) -> Result<(), CliError> {
    if path == Path::new(STDIN) {
        return Ok(());
    }
    let open = |source| CliError::Open {
        path: path.to_owned(),
        source,
    };
    if std::fs::metadata(path).map_err(open)?.is_file() {
        return Ok(());
    }
    let why = "it must be a regular file, because it is read several times; save it first";
    Err(open(Error::new(ErrorKind::InvalidInput, why)))
}

/// Opens a pipe that has a writer, such as a shell's `<(command)`. Returns `None` for a regular file.
///
/// Devices and sockets are refused, because they have no end or no content. A named pipe without a writer is refused too,
/// because opening it would block forever.
fn open_pipe(path: &Path) -> std::io::Result<Option<File>> {
    let metadata = std::fs::metadata(path)?;
    let refused = |why: &str| Err(Error::new(ErrorKind::InvalidInput, why));
    if metadata.is_file() {
        return Ok(None);
    }
    if metadata.is_dir() {
        return refused("it is a folder; name a recording in it");
    }
    if !is_pipe(&metadata) {
        return refused("it is a device or a socket, not a file");
    }
    let (opened, wait) = mpsc::channel();
    let named = path.to_owned();
    // Without a writer, the thread waits until the program ends.
    std::thread::spawn(move || opened.send(File::open(named)));
    match wait.recv_timeout(WRITER_PATIENCE) {
        Ok(file) => Ok(Some(file?)),
        Err(_) => refused("it is a pipe without a writer"),
    }
}

/// Opens a regular file without blocking. If a pipe has replaced the file meanwhile, a plain `open` would wait for a writer.
pub(crate) fn open_regular(path: &Path) -> std::io::Result<File> {
    let refused = || Error::new(ErrorKind::InvalidInput, "it is not a regular file");
    // Opening some devices has side effects, so they are refused before they are opened.
    if !std::fs::metadata(path)?.is_file() {
        return Err(refused());
    }
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(refused()),
    }
}

/// Reads the text of a small file or pipe, such as a plan or a table of costs.
///
/// # Errors
/// Returns an error if the file cannot be read, is not UTF-8, or has more than `most` bytes.
pub(crate) fn small_text(path: &Path, most: u64) -> std::io::Result<String> {
    let file = match open_pipe(path)? {
        Some(pipe) => pipe,
        None => open_regular(path)?,
    };
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it has more than {most} bytes, which is too long for a file of this kind");
        return Err(Error::new(ErrorKind::InvalidData, why));
    }
    String::from_utf8(bytes).map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

#[cfg(unix)]
fn is_pipe(metadata: &Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    metadata.file_type().is_fifo()
}

#[cfg(not(unix))]
fn is_pipe(_: &Metadata) -> bool {
    false
}

/// Reads one file, with a progress bar if that takes long.
pub(crate) fn load(path: &Path, work: &Work) -> Result<Recording, CliError> {
    let bar = reading(path, work);
    let report = |done, all| bar.set(done, all);
    let options = ReadOptions {
        progress: Some(&report),
        name: stdin_name(path),
        interrupt: Some(work.threads().flag()),
        ..ReadOptions::default()
    };
    let open = |source| CliError::Open {
        path: path.to_owned(),
        source,
    };
    let place = rereadable(path)?;
    let read = match open_pipe(&place).map_err(open)? {
        None => read(&place, &options),
        Some(pipe) => {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            read_from(pipe, &name, None, &options)
        }
    };
    read.map_err(|source| unread(path, source))
}

/// Returns a name for a recording from standard input, because its copy has no name.
fn stdin_name(path: &Path) -> Option<&'static str> {
    (path == Path::new(STDIN)).then_some("stdin")
}

/// Returns the progress bar of reading a file.
fn reading(path: &Path, work: &Work) -> Progress {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Progress::bytes(work, &format!("reading {name}"))
}

fn unread(path: &Path, source: ReadError) -> CliError {
    let path = path.to_owned();
    match source {
        ReadError::Io { source, .. } => CliError::Open { path, source },
        source => CliError::Read { path, source },
    }
}

/// The results of several recordings.
pub(crate) struct Results<T> {
    pub(crate) done: Vec<T>,
    /// The number of files that could not be replayed. Their errors have been printed.
    pub(crate) failed: usize,
    files: usize,
}

impl<T> Results<T> {
    /// Returns an error if some files could not be replayed.
    pub(crate) fn check(&self) -> Result<(), CliError> {
        let all = match self.failed {
            0 => return Ok(()),
            failed => format!("{failed} of {} files could not be replayed", self.files),
        };
        Err(CliError::Usage(all))
    }
}

/// Replays each trace of the named files with `replay`, which also gets the trace's label and whether there are several traces.
///
/// If one of several files cannot be replayed, its error is printed at once, and the others are still replayed.
pub(crate) fn replay_each<T>(
    args: &ReplayArgs,
    mut replay: impl FnMut(&Trace, String, bool) -> Result<T, CliError>,
) -> Result<Results<T>, CliError> {
    let paths = expand(&args.files)?;
    let mut redactor = args.output.redact.then(Redactor::default);
    let mut results = Results {
        done: Vec::new(),
        failed: 0,
        files: paths.len(),
    };
    for path in &paths {
        let work = Work::new(args.output.quiet);
        let traces = traces(path, &work, &Selection::from(&args.selection));
        let replayed = traces.and_then(|traces| {
            let several = traces.len() > 1;
            let one = |mut trace: Trace| {
                if let Some(redactor) = &mut redactor {
                    redactor.redact(&mut trace);
                }
                let label = label(&trace, several);
                replay(&trace, label, several || paths.len() > 1)
            };
            traces.into_iter().map(one).collect::<Result<Vec<T>, CliError>>()
        });
        match replayed {
            Ok(replayed) => results.done.extend(replayed),
            Err(error) if paths.len() == 1 => return Err(error),
            Err(error) => {
                results.failed += 1;
                complain(&error);
            }
        }
    }
    Ok(results)
}

/// Returns the name of a trace in a text. `several` says whether its recording has others.
pub(crate) fn label(trace: &Trace, several: bool) -> String {
    match several {
        true => format!("{} (device {})", trace.origin.name, trace.origin.device),
        false => trace.origin.name.clone(),
    }
}

/// Checks that a time window contains events. Otherwise a replay would contain only blocks that lived in the window, and its figures
/// would look like those of a run.
pub(crate) fn check_window(args: &ReplayArgs, events: u64, label: &str) -> Result<(), CliError> {
    if args.selection.time_window.is_none() || events > 0 {
        return Ok(());
    }
    Err(ReplayError::NothingToReplay {
        trace: label.to_owned(),
        window: true,
    }
    .into())
}

/// Returns the traces of a file for a replay.
///
/// # Errors
/// Returns an error if the file has no traces, or if the selection needs times that it does not have.
pub(crate) fn traces(path: &Path, work: &Work, selection: &Selection) -> Result<Vec<Trace>, CliError> {
    let recording = load(path, work)?;
    if recording.traces.is_empty() {
        return Err(no_history(path));
    }
    check_times(path, &recording.traces, selection)?;
    Ok(recording.traces)
}

/// Checks that traces have times if the selection needs them.
pub(crate) fn check_times(path: &Path, traces: &[Trace], selection: &Selection) -> Result<(), CliError> {
    let timeless = |trace: &Trace| {
        let mut cautions = trace.cautions.iter();
        cautions.any(|caution| matches!(caution, Caution::NoTimes))
    };
    match selection.window_us.is_some() && traces.iter().any(timeless) {
        false => Ok(()),
        true => Err(CliError::Usage(format!(
            "{} has no timestamps, so --time-window cannot be used",
            path.display()
        ))),
    }
}

/// Returns the error for a recording without a history.
pub(crate) fn no_history(path: &Path) -> CliError {
    CliError::NoHistory {
        path: path.to_owned(),
        nothing: "there is nothing to replay",
        instead: "see what it held with `millpond report`",
    }
}

/// Returns the trace of the device that holds the most.
pub(crate) fn heaviest<T: Borrow<Trace>>(traces: Vec<T>) -> Option<T> {
    let peak = |trace: &T| {
        Program::as_recorded(trace.borrow(), Selection::default()).map_or(0, |program| program.peak_requested)
    };
    traces.into_iter().rev().max_by_key(peak)
}

/// Opens one file as rows, with a progress bar if reading takes long.
pub(crate) fn open_history(path: &Path, work: &Work) -> Result<History, CliError> {
    opened(path, work, History::open)
}

/// Opens one file with `how`, and shows a progress bar if that takes long.
pub(crate) fn opened<T>(
    path: &Path,
    work: &Work,
    how: impl FnOnce(&Path, &ReadOptions<'_>) -> Result<T, HistoryError>,
) -> Result<T, CliError> {
    let open = |source| CliError::Open {
        path: path.to_owned(),
        source,
    };
    let place = rereadable(path)?;
    if place.is_dir() {
        return Err(CliError::Usage(format!(
            "{} is a folder; name a recording in it",
            path.display()
        )));
    }
    if !std::fs::metadata(&place).map_err(open)?.is_file() {
        return Err(CliError::NotAFile(path.to_owned()));
    }
    let bar = reading(path, work);
    let report = |done, all| bar.set(done, all);
    let options = ReadOptions {
        progress: Some(&report),
        name: stdin_name(path),
        interrupt: Some(work.threads().flag()),
        ..ReadOptions::default()
    };
    how(&place, &options).map_err(|source| match source {
        HistoryError::Read(source) => unread(path, source),
        source => CliError::Analysis {
            path: path.to_owned(),
            source: source.into(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_sorted_by_number() {
        let mut names = ["rank10.csv", "rank2.csv", "rank1.csv", "a.csv"].map(PathBuf::from);
        names.sort_by_cached_key(|path| by_number(path));
        assert_eq!(
            names,
            ["a.csv", "rank1.csv", "rank2.csv", "rank10.csv"].map(PathBuf::from)
        );
    }
}
