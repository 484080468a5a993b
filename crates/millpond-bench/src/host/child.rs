//! Runs a workload in a separate process: this program again with a hidden flag.

use crate::host::contender::Contender;
use crate::host::figures::Figures;
use crate::host::spec::Spec;
use crate::host::work::Effort;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt::Display;
use std::io::Write;
use std::process::{Command, Stdio};

/// The first argument of a child: `--cell WORKLOAD PEER EFFORT`.
pub(crate) const FLAG: &str = "--cell";

/// Prefixes of environment variables that would configure an allocator.
const SETTINGS: [&str; 6] = [
    "MALLOC_",
    "MIMALLOC_",
    "_RJEM_",
    "SNMALLOC_",
    "GLIBC_TUNABLES",
    POOLS,
];

/// The variable with settings of our pools.
pub(crate) const POOLS: &str = "MILLPOND_CONF";

/// Returns a note if the environment contains settings of pools, because the children run without them.
pub(crate) fn kept_from_children() -> Option<String> {
    std::env::var_os(POOLS)?;
    Some(format!(
        "{POOLS} is set, but the measured processes run without it."
    ))
}

/// The way to start this program again so that [`run`](crate::host::run) gets the arguments.
#[derive(Clone, Debug, Default)]
pub struct Again {
    words: Vec<String>,
}

impl Again {
    /// For the program `host`, which passes all arguments to [`run`](crate::host::run).
    #[must_use]
    pub fn as_host() -> Self {
        Self::default()
    }

    /// For a program that passes on the arguments after these words.
    #[must_use]
    pub fn behind(words: &[&str]) -> Self {
        Self {
            words: words.iter().map(|&word| word.to_owned()).collect(),
        }
    }

    /// Starts a child with these arguments. Its environment contains no settings of allocators except the given ones. Writes
    /// `input` to its stdin and returns its output.
    pub(crate) fn start(
        &self,
        arguments: &[&str],
        contender: Contender,
        environment: &[(&str, &str)],
        input: &[u8],
    ) -> Result<Figures, String> {
        let fail = |why: &dyn Display| why.to_string();
        let program = std::env::current_exe().map_err(|e| fail(&e))?;
        let mut command = Command::new(program);
        command.args(&self.words).args(arguments);
        for (key, _) in std::env::vars_os() {
            if key
                .to_str()
                .is_some_and(|key| SETTINGS.iter().any(|s| key.starts_with(s)))
            {
                command.env_remove(key);
            }
        }
        command.envs(contender.environment().iter().copied());
        command.envs(environment.iter().copied());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| fail(&e))?;
        if let Some(mut pipe) = child.stdin.take() {
            // A child that ends before it has read everything reports the reason itself.
            let _ = pipe.write_all(input);
        }
        let output = child.wait_with_output().map_err(|e| fail(&e))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim();
            // The error of the child without the program's name.
            let said = ["millpond: ", "error: "]
                .iter()
                .fold(said, |s, name| s.trim_start_matches(name));
            return Err(match (said, output.status.code()) {
                ("", _) => output.status.to_string(),
                (_, Some(_)) => said.to_owned(),
                (_, None) => format!("{}: {said}", output.status),
            });
        }
        String::from_utf8_lossy(&output.stdout).parse()
    }
}

/// Runs a workload in a child and returns its figures.
pub(crate) fn start(
    spec: Spec,
    contender: Contender,
    effort: Effort,
    again: &Again,
) -> Result<Figures, String> {
    let arguments = [FLAG, &spec.to_string(), contender.name(), effort.name()];
    again
        .start(&arguments, contender, &[], &[])
        .map_err(|why| format!("{spec} with {}: {why}", contender.name()))
}

/// Runs the workload in the child.
pub(crate) fn run(spec: Spec, contender: Contender, effort: Effort) -> Result<Figures, String> {
    pin(spec.threads())?;
    contender.run(spec, effort).map_err(|error| error.to_string())
}

/// Pins the process to the last processors that it may use, one for each thread. The system uses the first processors most.
pub(crate) fn pin(threads: usize) -> Result<(), String> {
    let pinned = || {
        let all = sched_getaffinity(None)?;
        let mut some = CpuSet::new();
        let ours = (0..CpuSet::MAX_CPU).rev().filter(|&cpu| all.is_set(cpu));
        ours.take(threads).for_each(|cpu| some.set(cpu));
        sched_setaffinity(None, &some)
    };
    pinned().map_err(|error: rustix::io::Errno| format!("cannot pin the process to processors: {error}"))
}
