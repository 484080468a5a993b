//! Runs a program with a time limit and with its output in a file.

use super::Session;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Code(i32),
    Signal(i32),
    /// The runner killed it at its time limit, or because it had printed nothing for too long.
    TooLong,
}

/// The result of a program that ran.
pub(super) struct Ran {
    pub(super) ended: Ended,
    pub(super) out: String,
    pub(super) err: String,
    pub(super) seconds: f64,
}

impl Ran {
    /// Describes how the program ended, or returns `None` if it succeeded.
    pub(super) fn trouble(&self) -> Option<String> {
        let why = match self.ended {
            Ended::Code(0) => return None,
            Ended::Code(code) => format!("exit code {code}"),
            Ended::Signal(signal) => format!("ended by signal {signal}"),
            Ended::TooLong => format!("killed by the runner after {:.0} s", self.seconds),
        };
        let last = self.err.lines().rev().find(|line| !line.trim().is_empty());
        Some(match last {
            Some(last) => format!("{why}: {last}"),
            None => why,
        })
    }
}

/// A program to run.
pub(super) struct Program {
    command: Command,
    name: String,
    limit: Duration,
    quiet: Option<Duration>,
    together: bool,
}

impl Program {
    /// Prepares a program of the session's folder. If the folder lacks the path, it is a program of the machine.
    pub(super) fn new(session: &Session, path: &str, name: &str, seconds: u64) -> Self {
        let own = session.folder.join(path);
        let mut command = Command::new(if own.exists() { own } else { PathBuf::from(path) });
        // The driver's compile cache is in the session's own folder and starts empty, so that the first load includes the compilation.
        command.env("CUDA_CACHE_PATH", session.work.join("cache"));
        if let Some(folder) = session.driver_folder() {
            let mut folders = OsString::from(folder);
            if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
                folders.push(":");
                folders.push(others);
            }
            command.env("LD_LIBRARY_PATH", folders);
        }
        Self {
            command,
            name: name.to_owned(),
            limit: session.limit(seconds),
            quiet: None,
            together: false,
        }
    }

    pub(super) fn args<'a>(mut self, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        self.command.args(arguments);
        self
    }

    pub(super) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.command.env(name, value.into());
        self
    }

    /// Kills the program when it has printed nothing for this many seconds.
    pub(super) fn quiet(mut self, seconds: u64) -> Self {
        self.quiet = Some(Duration::from_secs(seconds));
        self
    }

    /// Writes standard output and standard error into one file, in the order they were printed.
    pub(super) fn together(mut self) -> Self {
        self.together = true;
        self
    }

    /// Runs the program until it ends or reaches a limit.
    pub(super) fn run(mut self, session: &Session) -> Result<Ran, String> {
        let logs = session.work.join("logs");
        let failed = |error: std::io::Error| format!("{}: {error}", logs.display());
        let (out, err) = (
            logs.join(format!("{}.out", self.name)),
            logs.join(format!("{}.err", self.name)),
        );
        let file = File::create(&out).map_err(failed)?;
        let second = if self.together {
            file.try_clone().map_err(failed)?
        } else {
            File::create(&err).map_err(failed)?
        };
        let program = self.command.get_program().to_string_lossy().into_owned();
        let begun = Instant::now();
        let spawned = self
            .command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(second)
            // The program has its own process group, so that the processes it starts are killed with it.
            .process_group(0)
            .spawn();
        let mut child = spawned.map_err(|error| format!("{program} could not start: {error}"))?;
        let status = self.wait(&mut child, begun, &out);
        let read = |path: &PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Ok(Ran {
            ended: match status {
                None => Ended::TooLong,
                Some(status) => match (status.code(), status.signal()) {
                    (Some(code), _) => Ended::Code(code),
                    (None, signal) => Ended::Signal(signal.unwrap_or(0)),
                },
            },
            out: read(&out),
            err: if self.together { String::new() } else { read(&err) },
            seconds: begun.elapsed().as_secs_f64(),
        })
    }

    /// Waits for the program, or kills it at a limit. Returns `None` if it was killed.
    fn wait(&self, child: &mut Child, begun: Instant, out: &PathBuf) -> Option<ExitStatus> {
        let (mut bytes, mut printed) = (0, begun);
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            let now = std::fs::metadata(out).map_or(0, |file| file.len());
            if now != bytes {
                (bytes, printed) = (now, Instant::now());
            }
            let silent = self.quiet.is_some_and(|quiet| printed.elapsed() > quiet);
            if begun.elapsed() > self.limit || silent {
                end(child);
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Packs the output of the programs into one archive next to the result, and removes the working folder.
pub(super) fn pack(session: &Session) {
    let packed = Command::new("tar")
        .arg("-czf")
        .arg(session.out.join("logs.tar.gz"))
        .arg("-C")
        .arg(&session.work)
        .arg("logs")
        .status();
    if packed.is_ok_and(|status| status.success()) {
        let _ = std::fs::remove_dir_all(&session.work);
    } else {
        println!(
            "tar could not pack the output of the programs: it is in {}",
            session.work.display()
        );
    }
}

/// Kills a program and the processes it started. A program that does not end within 5 seconds is left behind.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(5) {
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
