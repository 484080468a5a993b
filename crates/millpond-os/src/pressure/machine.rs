//! Reads the machine's memory, its overcommit policy, and how long its tasks waited.

use super::evidence::{Evidence, Limit, LimitKind, Machine, Overcommit, Scope, Stall, Why};
use super::figures;
use super::files::Files;
use std::path::Path;

pub(super) fn read(files: &Files, evidence: &mut Evidence) {
    memory(files, evidence);
    let path = Path::new("/proc/pressure/memory");
    stalls(files, evidence, path, Scope::System);
}

/// Adds the stalls in a file.
pub(super) fn stalls(files: &Files, evidence: &mut Evidence, path: &Path, scope: Scope) {
    let mut found = 0;
    let read = files.each(path, |line| {
        let Some(line) = figures::stall(line).filter(|_| found < 2) else {
            return;
        };
        found += 1;
        evidence.stalls.push(Stall {
            scope,
            kind: line.kind,
            avg10: line.avg10,
            avg60: line.avg60,
            avg300: line.avg300,
            total_micros: line.total,
        });
    });
    let read = read.and(if found > 0 { Ok(()) } else { Err(Why::Odd) });
    evidence.keep(path, read);
}

fn memory(files: &Files, evidence: &mut Evidence) {
    let path = Path::new("/proc/meminfo");
    let mut machine = Machine::default();
    let (mut total, mut available) = (None, None);
    // Before Linux 3.14 the system did not report the available memory.
    let (mut free, mut cached, mut shared) = (None, 0u64, 0u64);
    let read = files.each(path, |line| match figures::size(line) {
        Some(("MemTotal", bytes)) => total = Some(bytes),
        Some(("MemAvailable", bytes)) => available = Some(bytes),
        Some(("MemFree", bytes)) => free = Some(bytes),
        Some(("Buffers" | "Cached", bytes)) => cached = cached.saturating_add(bytes),
        Some(("Shmem", bytes)) => shared = bytes,
        Some(("SwapTotal", bytes)) => machine.swap_total = bytes,
        Some(("SwapFree", bytes)) => machine.swap_free = bytes,
        Some(("CommitLimit", bytes)) => machine.commit_limit = bytes,
        Some(("Committed_AS", bytes)) => machine.committed = bytes,
        _ => {}
    });
    let guess = || Some(free?.saturating_add(cached.saturating_sub(shared)));
    let (Some(total), Some(available)) = (total, available.or_else(guess)) else {
        return evidence.miss(path, read.err().unwrap_or(Why::Odd));
    };
    evidence.keep(path, read);
    (machine.total, machine.available) = (total, available.min(total));
    let path = Path::new("/proc/sys/vm/overcommit_memory");
    let overcommit = files.find(path, |line| match figures::number(line)? {
        0 => Some(Overcommit::Guess),
        1 => Some(Overcommit::Always),
        2 => Some(Overcommit::Never),
        _ => None,
    });
    machine.overcommit = evidence.keep(path, overcommit);
    let used = total - free.unwrap_or(machine.available).min(total);
    let counted = total - machine.available;
    evidence.limits.push(Limit {
        kind: LimitKind::Machine,
        folder: None,
        bytes: total,
        used: used.max(counted),
        reclaimable: used.saturating_sub(counted),
    });
    if machine.overcommit == Some(Overcommit::Never) {
        evidence.limits.push(Limit {
            kind: LimitKind::Commit,
            folder: None,
            bytes: machine.commit_limit,
            used: machine.committed,
            reclaimable: 0,
        });
    }
    evidence.machine = Some(machine);
}
