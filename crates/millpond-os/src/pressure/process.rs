//! Reads the process's own limits.

use super::evidence::{Evidence, Limit, LimitKind, Why};
use super::figures::{self, Amount};
use super::files::Files;
use std::path::Path;

/// The kind of each limit, its name in `limits`, and the name of its usage in `status`.
const RESOURCES: [(LimitKind, &str, &str); 3] = [
    (LimitKind::AddressSpace, "Max address space", "VmSize"),
    (LimitKind::Data, "Max data size", "VmData"),
    (LimitKind::Resident, "Max resident set", "VmRSS"),
];

pub(super) fn read(files: &Files, evidence: &mut Evidence) {
    let path = Path::new("/proc/self/limits");
    let mut limits = [None; 3];
    let read = files.each(path, |line| {
        for (limit, (_, name, _)) in limits.iter_mut().zip(RESOURCES) {
            *limit = limit.or(figures::resource(line, name));
        }
    });
    let complete = limits.iter().all(Option::is_some);
    evidence.keep(path, read.and(if complete { Ok(()) } else { Err(Why::Odd) }));
    let set = limits.map(|limit| match limit {
        Some(Amount::Bytes(bytes)) => Some(bytes),
        Some(Amount::Unlimited) | None => None,
    });
    if set.iter().all(Option::is_none) {
        return;
    }
    let path = Path::new("/proc/self/status");
    let mut used = [None; 3];
    let read = files.each(path, |line| {
        for (used, (_, _, name)) in used.iter_mut().zip(RESOURCES) {
            *used = used.or(figures::size(line)
                .filter(|(n, _)| *n == name)
                .map(|(_, bytes)| bytes));
        }
    });
    let complete = set
        .iter()
        .zip(used)
        .all(|(set, used)| set.is_none() || used.is_some());
    evidence.keep(path, read.and(if complete { Ok(()) } else { Err(Why::Odd) }));
    for ((set, used), (kind, ..)) in set.into_iter().zip(used).zip(RESOURCES) {
        if let (Some(bytes), Some(used)) = (set, used) {
            evidence.limits.push(Limit {
                kind,
                folder: None,
                bytes,
                used,
                reclaimable: 0,
            });
        }
    }
}
