//! PyTorch on the CPU.

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
