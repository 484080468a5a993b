//! `millpond record`: runs a program, and records all memory that it takes from the CUDA driver.

use crate::args::RecordArgs;
use crate::exit::{BAD_INPUT, CliError, Exit, complain};
use crate::output::{check_recording_writable, note, write_recording};
use crate::program::{not_started, preload, why_not_preloaded};
use crate::text::{counted, shell_word, size};
use millpond_intercept::{LIBRARY, Log, LogError, Summary, unpack, variable, write};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

/// The maximum number of owners that the summary names.
const OWNERS: usize = 4;

pub(crate) fn command(args: &RecordArgs) -> Result<Exit, CliError> {
    check_recording_writable(&args.output)?;
    if let Some(logs) = &args.from {
        let converted = convert(logs, &args.output, None);
        converted.print(args, || {
            format!(
                "{} has no log of a process that took memory from the CUDA driver",
                logs.display()
            )
        });
        return Ok(
            if converted.recorded.is_empty() || !converted.failures.is_empty() {
                Exit::Other(BAD_INPUT)
            } else {
                Exit::Done
            },
        );
    }
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| CliError::Usage("record takes a program, after --".to_owned()))?;
    let logs = Folder::new(&logs_of(&args.output)?)?;
    let private = if is_for_library(&logs.0) {
        None
    } else {
        Some(Folder::new(&private()?.join("record"))?)
    };
    let library = &private.as_ref().unwrap_or(&logs).0;
    unpack(library).map_err(|source| CliError::Write {
        what: library.join(LIBRARY).display().to_string(),
        source,
    })?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", preload(&library.join(LIBRARY))?)
        .env(variable::FOLDER, &logs.0)
        .env(variable::FRAMES, args.stacks.to_string());
    if let Some(limit) = &args.limit {
        command.env(variable::LIMIT, limit.total.to_string());
        command.env(variable::CONTEXT, limit.context.to_string());
    }
    let started = |source| not_started(program, source);
    // A program does not inherit handlers, so they can be installed before it starts.
    let signals = signals().map_err(started)?;
    let child = command.spawn().map_err(started)?;
    let process = child.id();
    let status = wait(child, signals).map_err(started)?;
    let converted = convert(&logs.0, &args.output, Some(process));
    converted.print(args, || why_nothing(program));
    if !converted.failures.is_empty() {
        let (logs, output) = (logs.keep(), args.output.display());
        let logs = logs.display();
        complain(&format!(
            "the logs are kept in {logs}; `millpond record --from {logs} --output {output}` writes their recordings"
        ));
    }
    // Like shells, this returns 128 plus the signal's number for a program that a signal ended.
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    Ok(Exit::Other(
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
    ))
}

/// A folder that is removed with its contents.
struct Folder(PathBuf);

impl Folder {
    /// Creates a folder that only this user can use. Its name is `path` and a number. A folder that exists already may belong to another user,
    /// or to a recording that was not finished, so the next number is tried.
    fn new(path: &Path) -> Result<Self, CliError> {
        let mut number = std::process::id();
        loop {
            let mut path = path.as_os_str().to_os_string();
            path.push(format!(".{number}.logs"));
            let path = PathBuf::from(path);
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(source) if source.kind() == ErrorKind::AlreadyExists => number = number.wrapping_add(1),
                Err(source) => {
                    return Err(CliError::Write {
                        what: path.display().to_string(),
                        source,
                    });
                }
            }
        }
    }

    /// Keeps the folder, without the library. Returns its path.
    fn keep(self) -> PathBuf {
        let mut folder = std::mem::ManuallyDrop::new(self);
        let _ = fs::remove_file(folder.0.join(LIBRARY));
        std::mem::take(&mut folder.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the beginning of the path of the logs' folder next to the recording. It is absolute, because programs change their folder.
fn logs_of(output: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(output).map_err(|source| CliError::Write {
        what: output.display().to_string(),
        source,
    })
}

/// Returns whether the library can be stored in a folder. Processes that outlive this command load it by its path, and in a folder such as
/// `/tmp` another user could have replaced it by then. Also, the loader does not accept every path.
fn is_for_library(folder: &Path) -> bool {
    let is_path = |path: &Path| {
        let bytes = path.as_os_str().as_encoded_bytes();
        !bytes.iter().any(|byte| matches!(byte, b' ' | b':'))
    };
    let is_shared = |path: &Path| fs::metadata(path).is_ok_and(|folder| folder.mode() & 0o002 != 0);
    is_path(folder) && folder.parent().is_some_and(|parent| !is_shared(parent))
}

/// Returns a folder for the library to which no other user can write.
fn private() -> Result<PathBuf, CliError> {
    let user = fs::metadata("/proc/self").map(|process| process.uid());
    let is_private = |path: &Path| {
        let folder = fs::metadata(path);
        let is_own = folder.is_ok_and(|folder| {
            folder.is_dir()
                && folder.mode() & 0o022 == 0
                && user.as_ref().is_ok_and(|user| *user == folder.uid())
        });
        is_own && is_for_library(&path.join(LIBRARY))
    };
    let of_variable = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let run = of_variable("XDG_RUNTIME_DIR").filter(|path| is_private(path));
    let cache = || {
        let path = of_variable("HOME")?.join(".cache/millpond");
        // If it cannot be created, it does not exist, so it is not private.
        let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        is_private(&path).then_some(path)
    };
    run.or_else(cache).ok_or_else(|| {
        CliError::Usage(
            "the library that is preloaded needs a folder to which no other user can write, and whose path has no space or colon; \
             name an --output in such a folder, or set HOME to one"
                .to_owned(),
        )
    })
}

/// The signals that are passed on to the program.
const PASSED: [i32; 4] = [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// Returns the signals that may arrive while the program runs. Signals of the terminal also reach the program, and must not end this
/// command.
///
/// Signals that are ignored stay ignored, so that the program inherits this: `nohup` ignores SIGHUP, and shells ignore SIGINT and SIGQUIT
/// of jobs in the background. `SIGCHLD` is never ignored, because this command waits for the end of the program.
fn signals() -> std::io::Result<Signals> {
    let ignored = fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status));
    let handled = [&PASSED[..], &[SIGINT, SIGQUIT]].concat();
    let handled = handled
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0);
    Signals::new(handled.chain([SIGCHLD]))
}

/// Returns the set of ignored signals in the status of a process. Bit 0 stands for signal 1.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}

/// Waits for the program, and passes signals on to it.
fn wait(mut child: Child, mut signals: Signals) -> std::io::Result<ExitStatus> {
    loop {
        // `SIGCHLD` also wakes this loop, so the end of the program is not missed.
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        for signal in signals.wait().filter(|signal| PASSED.contains(signal)) {
            // The process is not reaped before `try_wait`, so the number is still its own.
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::try_from(signal)?);
        }
    }
}

/// The outcome of the conversion of the logs.
#[derive(Default)]
struct Converted {
    /// The recordings that were written.
    recorded: Vec<(PathBuf, Summary)>,
    /// The logs that could not be read, and the recordings that could not be written.
    failures: Vec<CliError>,
    /// The processes that began no log although they called the driver.
    without_log: BTreeSet<String>,
}

impl Converted {
    /// Prints what was recorded and what failed. `why_nothing` returns the reason if nothing was recorded.
    fn print(&self, args: &RecordArgs, why_nothing: impl FnOnce() -> String) {
        let without = match self.without_log.len() {
            0 => None,
            1 => Some(
                "1 process could not write its log, because the disk was full or it was killed".to_owned(),
            ),
            n => Some(format!(
                "{n} processes could not write their logs, because the disk was full or they were killed"
            )),
        };
        if self.recorded.is_empty() && self.failures.is_empty() {
            let why = without.unwrap_or_else(why_nothing);
            complain(&format!("nothing was recorded: {why}"));
        } else if let Some(without) = without {
            complain(&without);
        }
        for (path, summary) in &self.recorded {
            note(args.quiet, &sentences(path, summary, args));
        }
        self.failures.iter().for_each(|failure| complain(failure));
    }
}

/// Writes the recordings of all processes that took memory. The recording of `process`, or else of the first process, gets the name that the user
/// chose.
fn convert(logs: &Path, output: &Path, process: Option<u32>) -> Converted {
    let mut converted = Converted::default();
    let failed = |path: &Path, source| CliError::Open {
        path: path.to_path_buf(),
        source,
    };
    let entries = match fs::read_dir(logs) {
        Ok(entries) => entries,
        Err(source) => {
            converted.failures.push(failed(logs, source));
            return converted;
        }
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = match entry {
            Ok(entry) => entry.path(),
            Err(source) => {
                converted.failures.push(failed(logs, source));
                break;
            }
        };
        if path.extension() != Some(OsStr::new("log")) {
            continue;
        }
        let log = Log::open(&path).and_then(|log| Ok((log.is_empty()?, log)));
        match log {
            Ok((true, _)) => {}
            Ok((false, log)) => found.push((Some(log.process) != process, log.wall_clock, path, log)),
            Err(LogError::Io(source)) => converted.failures.push(failed(&path, source)),
            // The file has no header.
            Err(_) => {
                let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
                let process = name.split('.').next().unwrap_or_default();
                converted.without_log.insert(process.to_owned());
            }
        }
    }
    found.sort_by_key(|(is_other, start, ..)| (*is_other, *start));
    for (at, (_, _, path, log)) in found.into_iter().enumerate() {
        let name = if at == 0 {
            output.to_path_buf()
        } else {
            numbered(output, &path)
        };
        let mut summary = Summary::default();
        let written = write_recording(&name, |out| {
            summary = write(&log, out).map_err(std::io::Error::other)?.1;
            Ok(())
        });
        match written {
            Ok(()) => converted.recorded.push((name, summary)),
            Err(failure) => converted.failures.push(failure),
        }
    }
    converted
}

/// Returns the name of the recording of another process: the output's name with the number of the process. The log's name begins with that
/// number.
fn numbered(output: &Path, log: &Path) -> PathBuf {
    let number = log.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    // A process that replaced itself has several logs.
    let number = number.strip_suffix(".0").unwrap_or(number);
    let ending = output
        .extension()
        .and_then(OsStr::to_str)
        .unwrap_or(millpond_trace::recording::ENDING);
    output.with_extension(format!("{number}.{ending}"))
}

/// Returns what a process took, and what to do next.
fn sentences(path: &Path, summary: &Summary, args: &RecordArgs) -> String {
    let owners = summary.owners.iter().take(OWNERS);
    let owners: Vec<String> = owners
        .map(|owned| format!("{} by {}", size(owned.bytes), owned.name))
        .collect();
    let mut text = format!(
        "{} took at most {} of device memory from the driver at once",
        summary.program,
        size(summary.peak)
    );
    if !owners.is_empty() {
        text.push_str(&format!(": {}", owners.join(", ")));
    }
    text.push_str(&format!(", in {}.", counted(summary.allocations, "allocation")));
    if let Some(limit) = args.limit.as_ref().filter(|_| summary.limited > 0) {
        let refused = counted(summary.limited, "request");
        text.push_str(&format!(" --limit {} refused {refused}.", limit.name));
    }
    if summary.refused > summary.limited {
        let refused = counted(summary.refused - summary.limited, "request");
        text.push_str(&format!(" The driver refused {refused} for lack of memory."));
    }
    if summary.lost > 0 {
        text.push_str(&format!(
            " {} could not be written to the log.",
            counted(summary.lost, "event")
        ));
    }
    let word = shell_word(path);
    text.push_str(&format!(
        " The recording is {}: `millpond report {word}` shows who held what, and `millpond replay {word}` what the program needs.",
        path.display()
    ));
    text
}

/// Returns the likely reason why no process took memory from the driver.
fn why_nothing(program: &OsStr) -> String {
    why_not_preloaded(program).unwrap_or_else(|| {
        format!(
            "no process of {} took memory from the CUDA driver",
            program.display()
        )
    })
}
