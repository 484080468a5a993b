//! PyTorch on the CPU.
//!
//! One process for each allocator is alive, and only one of them works at a time. A process makes its steps when it reads a line, and
//! answers with a line. So all allocators are measured within the same seconds.

use super::measure::{self, Allocator, Sample, Server};
use super::programs::interpreter;
use super::{Program, Run, Setup};
use crate::shell::Result;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command};

pub(super) const TORCH: [Program; 4] = [
    Program {
        name: "transformer-train",
        about: "trains a small transformer on the CPU",
        prepare: |setup| torch(setup, "transformer", "train", 20),
    },
    Program {
        name: "transformer-infer",
        about: "runs a small transformer on the CPU",
        prepare: |setup| torch(setup, "transformer", "infer", 40),
    },
    Program {
        name: "convolution-train",
        about: "trains a convolutional network on the CPU",
        prepare: |setup| torch(setup, "convolution", "train", 40),
    },
    Program {
        name: "convolution-infer",
        about: "runs a convolutional network on the CPU",
        prepare: |setup| torch(setup, "convolution", "infer", 100),
    },
];

fn torch(setup: &Setup<'_>, network: &'static str, task: &'static str, turns: usize) -> Result<Run> {
    let (python, script) = (interpreter(setup, "torch")?, setup.sources.join("torch_cpu.py"));
    let folder = setup.folder.clone();
    Ok(Run::Together(Box::new(move |allocators| {
        let start = |allocator: &&Allocator| {
            let mut command = Command::new(&python);
            command.arg(&script).args([network, task]);
            Process::start(
                allocator,
                command,
                folder.join(format!("errors-{}", allocator.name)),
            )
        };
        let mut processes: Vec<_> = allocators.iter().map(start).collect();
        for turn in 0..turns {
            for at in 0..processes.len() {
                let at = (turn + at) % processes.len();
                if let Ok(process) = &mut processes[at] {
                    process.turn();
                }
            }
        }
        let ends = processes.into_iter().map(|process| process?.end());
        ends.collect()
    })))
}

/// A process that waits for its turn.
struct Process {
    server: Server,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process and waits until it is ready.
    fn start(allocator: &Allocator, command: Command, errors: PathBuf) -> Result<Self> {
        let (server, stdin, stdout) = Server::with_pipes(allocator, command, errors)?;
        let mut process = Self {
            server,
            stdin,
            stdout: BufReader::new(stdout),
        };
        process.wait();
        Ok(process)
    }

    /// Lets the process make some steps.
    fn turn(&mut self) {
        if writeln!(self.stdin).is_ok() {
            self.wait();
        }
    }

    /// Waits for a line. Ignores the end of the output, because `end` says why a process failed.
    fn wait(&mut self) {
        let _ = self.stdout.read_line(&mut String::new());
    }

    fn end(self) -> Result<Sample> {
        let Self {
            server,
            stdin,
            mut stdout,
        } = self;
        drop(stdin);
        let mut text = String::new();
        stdout.read_to_string(&mut text)?;
        let used = server.end()?;
        let [time, peak, result] = text.lines().collect::<Vec<_>>()[..] else {
            return Err(format!("the program printed {text:?}").into());
        };
        Ok(Sample {
            time: time.parse()?,
            cpu: measure::seconds(&used),
            peak: peak.parse()?,
            output: measure::hash(result),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell's program for two turns.
    fn ended(script: &str, name: &str) -> Result<Sample> {
        let glibc = Allocator {
            name: "glibc",
            library: None,
        };
        let errors = std::env::temp_dir().join(format!("millpond-turns-{}-{name}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut process = Process::start(&glibc, command, errors.clone())?;
        process.turn();
        process.turn();
        let sample = process.end();
        std::fs::remove_file(errors)?;
        sample
    }

    #[test]
    fn a_process_answers_each_turn_and_then_prints_its_figures() {
        let script =
            "echo ready; n=0; while read line; do n=$((n + 1)); echo done; done; echo $n; echo 7; echo loss";
        let sample = ended(script, "figures").unwrap();
        assert_eq!((sample.time, sample.peak), (2.0, 7));
    }

    #[test]
    fn a_failed_process_reports_the_reason() {
        let error = ended("echo ready; echo 'no room' >&2; echo >&2; exit 3", "fails").err();
        assert_eq!(error.unwrap().to_string(), "exit status: 3: no room");
    }
}
