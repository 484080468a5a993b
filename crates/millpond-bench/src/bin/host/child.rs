//! One run in a process of its own: this program again, under a hidden flag.

use crate::contender::Contender;
use crate::figures::Figures;
use crate::spec::Spec;
use crate::work::Effort;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::process::{Command, ExitCode};

/// `--cell WORKLOAD PEER` is what a child is started with.
pub(crate) const FLAG: &str = "--cell";

/// What begins so in our own environment would reach an allocator.
const SETTINGS: [&str; 5] = ["MALLOC_", "MIMALLOC_", "_RJEM_", "SNMALLOC_", "GLIBC_TUNABLES"];

/// Runs a workload in a child, and reads what it answers.
pub(crate) fn start(spec: Spec, contender: Contender) -> Result<Figures, String> {
    let fail = |why: &dyn std::fmt::Display| format!("{spec} under {}: {why}", contender.name());
    let program = std::env::current_exe().map_err(|e| fail(&e))?;
    let mut command = Command::new(program);
    command.args([FLAG, &spec.to_string(), contender.name()]);
    for (key, _) in std::env::vars_os() {
        if key
            .to_str()
            .is_some_and(|key| SETTINGS.iter().any(|s| key.starts_with(s)))
        {
            command.env_remove(key);
        }
    }
    command.envs(contender.environment().iter().copied());
    let output = command.output().map_err(|e| fail(&e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(fail(&format!("{}: {}", output.status, said.trim())));
    }
    text.parse().map_err(|e: String| fail(&e))
}

/// The child's side.
pub(crate) fn run(spec: Spec, contender: Contender) -> ExitCode {
    let pinned = pin(spec.threads()).map_err(|e| format!("it cannot be pinned: {e}").into());
    match pinned.and_then(|()| contender.run(spec, Effort::Full)) {
        Ok(figures) => {
            print!("{figures}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// To the last processors that this process may use, as many as there are threads: the first serve the system most.
fn pin(threads: usize) -> rustix::io::Result<()> {
    let all = sched_getaffinity(None)?;
    let mut some = CpuSet::new();
    let ours = (0..CpuSet::MAX_CPU).rev().filter(|&cpu| all.is_set(cpu));
    ours.take(threads).for_each(|cpu| some.set(cpu));
    sched_setaffinity(None, &some)
}
