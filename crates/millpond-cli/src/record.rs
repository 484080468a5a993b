//! `millpond record`: runs a program, and records all memory that it takes from the CUDA driver.

use crate::args::RecordArgs;
use crate::exit::{CliError, Exit, complain};
use crate::output::{check_recording_writable, note, write_recording};
use crate::program::{not_started, preload, why_not_preloaded};
use crate::text::{counted, size};
use millpond_intercept::{LIBRARY, Log, Summary, unpack, variable, write};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

/// The most owners that the last sentence names.
const OWNERS: usize = 4;

pub(crate) fn command(args: &RecordArgs) -> Result<Exit, CliError> {
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| CliError::Usage("record takes a program, after --".to_owned()))?;
    check_recording_writable(&args.output)?;
    let library = Folder::new(
        std::env::temp_dir().join(format!("millpond-record-{}", std::process::id())),
        0o755,
    )?;
    let logs = Folder::new(logs_of(&args.output)?, 0o700)?;
    unpack(&library.0).map_err(|source| CliError::Write {
        what: library.0.join(LIBRARY).display().to_string(),
        source,
    })?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", preload(&library.0.join(LIBRARY))?)
        .env(variable::FOLDER, &logs.0)
        .env(variable::FRAMES, args.stacks.to_string());
    if let Some(limit) = &args.limit {
        command.env(variable::LIMIT, limit.total.to_string());
        command.env(variable::CONTEXT, limit.context.to_string());
    }
    let started = |source| not_started(program, source);
    // A program does not inherit handlers, so they can be there before it starts.
    let signals = signals().map_err(started)?;
    let child = command.spawn().map_err(started)?;
    let process = child.id();
    let status = wait(child, signals).map_err(started)?;
    let recorded = convert(&logs.0, &args.output, process)?;
    if recorded.is_empty() {
        complain(&format!("nothing was recorded: {}", why_nothing(program)));
    }
    for (path, summary) in &recorded {
        note(args.quiet, &sentences(path, summary, args));
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
    /// Creates a folder. One that exists already may belong to another user, or to a recording that was not finished.
    fn new(path: PathBuf, mode: u32) -> Result<Self, CliError> {
        match fs::DirBuilder::new().mode(mode).create(&path) {
            Ok(()) => Ok(Self(path)),
            Err(source) => Err(CliError::Write {
                what: path.display().to_string(),
                source,
            }),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the folder for logs, beside the recording. It is an absolute path, because programs change their folder.
fn logs_of(output: &Path) -> Result<PathBuf, CliError> {
    let mut path = std::path::absolute(output)
        .map_err(|source| CliError::Write {
            what: output.display().to_string(),
            source,
        })?
        .into_os_string();
    path.push(format!(".{}.logs", std::process::id()));
    Ok(path.into())
}

/// The signals that are passed on to the program.
const PASSED: [i32; 4] = [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// Returns the signals that may come while the program runs. Those of the terminal reach the program too, and do not end this command.
fn signals() -> std::io::Result<Signals> {
    Signals::new([&PASSED[..], &[SIGINT, SIGQUIT, SIGCHLD]].concat())
}

/// Waits for the program, and passes signals on to it.
fn wait(mut child: Child, mut signals: Signals) -> std::io::Result<ExitStatus> {
    loop {
        // The end of the program is a signal too, so none is missed.
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        for signal in signals.wait().filter(|signal| PASSED.contains(signal)) {
            // The process is not reaped before `try_wait`, so the number is still its own.
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::try_from(signal)?);
        }
    }
}

/// Writes the recordings of all processes that took memory. That of the program itself, or of the first process, gets the name that the user chose.
fn convert(logs: &Path, output: &Path, process: u32) -> Result<Vec<(PathBuf, Summary)>, CliError> {
    let failed = |source| CliError::Open {
        path: logs.to_path_buf(),
        source,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(logs).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // A process that was killed at its start leaves a log without a header.
        if let Ok(log) = Log::read(&path)
            && !log.is_empty()
        {
            found.push((log.process != process, log.wall_clock, path, log));
        }
    }
    found.sort_by_key(|(is_other, start, ..)| (*is_other, *start));
    let mut recorded = Vec::new();
    for (at, (_, _, path, log)) in found.into_iter().enumerate() {
        let name = if at == 0 {
            output.to_path_buf()
        } else {
            numbered(output, &path)
        };
        let mut summary = Summary::default();
        write_recording(&name, |out| {
            summary = write(&log, out).map_err(std::io::Error::other)?.1;
            Ok(())
        })?;
        recorded.push((name, summary));
    }
    Ok(recorded)
}

/// Returns the name of the recording of another process: that of the output with the number of the process, which the name of the log begins with.
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
            " The disk was full, and {} are missing.",
            counted(summary.lost, "event")
        ));
    }
    let path = path.display();
    text.push_str(&format!(
        " The recording is {path}: `millpond report {path}` shows who held what, and `millpond replay {path}` what the program needs."
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
