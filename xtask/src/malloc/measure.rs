//! Runs commands under an allocator and measures them.

use crate::shell::Result;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use wait4::{ResourceUsage, Wait4 as _};

/// An allocator that programs can be run under.
pub(super) struct Allocator {
    pub(super) name: &'static str,
    /// The library that is preloaded. `None` for the C library's allocator.
    pub(super) library: Option<PathBuf>,
}

impl Allocator {
    /// Makes a command run under the allocator.
    pub(super) fn apply(&self, command: &mut Command) {
        match &self.library {
            Some(library) => command.env("LD_PRELOAD", library),
            None => command.env_remove("LD_PRELOAD"),
        };
    }
}

/// One run of a program.
#[derive(Clone)]
pub(super) struct Sample {
    /// Seconds, or milliseconds per step.
    pub(super) time: f64,
    /// The seconds of CPU time that the process and its children used.
    pub(super) cpu: f64,
    /// The peak of resident bytes.
    pub(super) peak: u64,
    /// A hash of the output that must be the same under every allocator.
    pub(super) output: u64,
}

/// The runs of a program under one allocator.
#[derive(Clone, Default)]
pub(super) struct Outcome {
    pub(super) samples: Vec<Sample>,
    /// The reason why the program did not pass.
    pub(super) failed: Option<String>,
}

/// Marks those outcomes whose output differs from the first run of the first outcome.
pub(super) fn compare(outcomes: &mut [Outcome]) {
    let Some(expected) = outcomes[0].samples.first().map(|sample| sample.output) else {
        return;
    };
    for outcome in outcomes {
        if outcome.samples.iter().any(|sample| sample.output != expected) {
            outcome.failed.get_or_insert_with(|| "the output differs".into());
        }
    }
}

/// Runs commands one after the other under an allocator. Hashes the output of all of them. `errors` is a file for their standard error.
pub(super) fn commands(allocator: &Allocator, commands: Vec<Command>, errors: &Path) -> Result<Sample> {
    let mut hasher = Hashed(DefaultHasher::new());
    let (mut cpu, mut peak) = (0.0, 0);
    let begin = Instant::now();
    for command in commands {
        let used = output(allocator, command, errors, &mut hasher)?;
        cpu += seconds(&used);
        peak = peak.max(used.maxrss);
    }
    Ok(Sample {
        time: begin.elapsed().as_secs_f64(),
        cpu,
        peak,
        output: hasher.0.finish(),
    })
}

/// Runs a command under an allocator, copies its output, and returns the resources that it used.
pub(super) fn output(
    allocator: &Allocator,
    mut command: Command,
    errors: &Path,
    mut to: impl Write,
) -> Result<ResourceUsage> {
    allocator.apply(&mut command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(errors)?)
        .spawn()?;
    if let Some(mut stdout) = child.stdout.take() {
        io::copy(&mut stdout, &mut to)?;
    }
    let end = child.wait4()?;
    check(end.status, errors)?;
    Ok(end.rusage)
}

/// Fails if a process failed or if the loader did not preload the library.
fn check(status: ExitStatus, errors: &Path) -> Result {
    let text = String::from_utf8_lossy(&std::fs::read(errors)?).into_owned();
    if let Some(line) = text.lines().find(|line| line.contains("cannot be preloaded")) {
        return Err(line.into());
    }
    if !status.success() {
        let message = text.lines().rfind(|line| !line.trim().is_empty());
        return Err(format!("{status}: {}", message.unwrap_or("no message")).into());
    }
    Ok(())
}

/// Returns the CPU time in seconds.
pub(super) fn seconds(used: &ResourceUsage) -> f64 {
    (used.utime + used.stime).as_secs_f64()
}

/// A writer that hashes its input. The input is not kept, because memory of this process would count as memory of its children.
struct Hashed(DefaultHasher);

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the hash of a text.
pub(super) fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// A server that runs under an allocator. It is killed if the value is dropped before its end.
pub(super) struct Server {
    child: Child,
    errors: PathBuf,
    ended: bool,
}

impl Server {
    /// Starts a server. `errors` is a file for its output.
    pub(super) fn start(allocator: &Allocator, mut command: Command, errors: PathBuf) -> Result<Self> {
        let out = File::create(&errors)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        Self::spawn(allocator, command, errors)
    }

    /// Starts a server that reads and writes pipes. `errors` is a file for its standard error.
    pub(super) fn with_pipes(
        allocator: &Allocator,
        mut command: Command,
        errors: PathBuf,
    ) -> Result<(Self, ChildStdin, ChildStdout)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(&errors)?);
        let mut server = Self::spawn(allocator, command, errors)?;
        let pipes = server.child.stdin.take().zip(server.child.stdout.take());
        let (stdin, stdout) = pipes.ok_or("the server has no pipes")?;
        Ok((server, stdin, stdout))
    }

    fn spawn(allocator: &Allocator, mut command: Command, errors: PathBuf) -> Result<Self> {
        allocator.apply(&mut command);
        let child = command.spawn()?;
        Ok(Self {
            child,
            errors,
            ended: false,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a probe succeeds.
    pub(super) fn wait_until(&mut self, mut probe: impl FnMut() -> bool) -> Result {
        let begin = Instant::now();
        while !probe() {
            if let Some(status) = self.child.try_wait()? {
                self.ended = true;
                check(status, &self.errors)?;
                return Err("the server ended".into());
            }
            if begin.elapsed() > Duration::from_secs(60) {
                return Err("the server did not answer within 60 s".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits for the end of a server that was asked to end. Returns the resources that it used.
    pub(super) fn end(mut self) -> Result<ResourceUsage> {
        let end = self.child.wait4()?;
        self.ended = true;
        check(end.status, &self.errors)?;
        Ok(end.rusage)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_output_than_the_first_fails() {
        let outcome = |outputs: &[u64]| {
            let sample = |&output| Sample {
                time: 1.0,
                cpu: 1.0,
                peak: 1,
                output,
            };
            Outcome {
                samples: outputs.iter().map(sample).collect(),
                failed: None,
            }
        };
        let mut outcomes = [outcome(&[7, 7]), outcome(&[7, 8])];
        compare(&mut outcomes);
        let failed = outcomes.map(|outcome| outcome.failed);
        assert_eq!(failed, [None, Some("the output differs".into())]);
    }
}
