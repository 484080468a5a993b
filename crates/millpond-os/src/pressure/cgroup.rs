//! Reads the process's cgroups, from its own up to the highest visible one.
//!
//! A mount may begin below the top of the hierarchy, and the process's path may be relative to another root than the
//! mount. For example, in a container both are `/` for a cgroup that the host calls `/kubepods/...`. A directory is
//! therefore found by removing the mount's own root from the process's path. If that is not possible, the mount's root
//! may still be known to be above the process.

use super::evidence::{Evidence, Limit, LimitKind, Scope, Why};
use super::figures::{self, Amount, Hierarchy};
use super::files::Files;
use super::machine;
use std::path::{Path, PathBuf};

/// The maximum number of nested directories that are read.
const MOST_FOLDERS: usize = 64;

const MEMBERSHIP: &str = "/proc/self/cgroup";
const MOUNTS: &str = "/proc/self/mountinfo";

/// The position of the process in a hierarchy.
struct Seat {
    /// Its directory, or the lowest visible one above it.
    folder: PathBuf,
    /// The mount point of the hierarchy, which is the highest directory.
    top: PathBuf,
    /// True if the directory is its own.
    own: bool,
}

pub(super) fn read(files: &Files, evidence: &mut Evidence) {
    let (mut unified, mut memory) = (None, None);
    let read = files.each(Path::new(MEMBERSHIP), |line| match figures::membership(line) {
        Some((Hierarchy::Unified, path)) => unified = Some(path.to_owned()),
        Some((Hierarchy::Memory, path)) => memory = Some(path.to_owned()),
        None => {}
    });
    let none = unified.is_none() && memory.is_none();
    if evidence
        .keep(
            Path::new(MEMBERSHIP),
            read.and(if none { Err(Why::Odd) } else { Ok(()) }),
        )
        .is_none()
        && none
    {
        return;
    }
    let [unified_seat, memory_seat] = seats(files, evidence, [unified.as_deref(), memory.as_deref()]);
    for seat in [&unified_seat, &memory_seat].into_iter().flatten() {
        if let Some(folder) = seat.cut() {
            evidence.miss(folder, Why::TooLong);
        }
    }
    if let Some(seat) = unified_seat {
        let limited = seat.walk(|folder, own| version_2(files, evidence, folder, own));
        if limited {
            evidence.cgroup = Some(seat.folder.clone());
        }
        let path = seat.folder.join("memory.pressure");
        // The stalls of the topmost cgroup are those of the machine, which are already recorded. Only the topmost
        // cgroup has no type.
        if seat.own && files.find(&seat.folder.join("cgroup.type"), |_| Some(())).is_ok() {
            let before = evidence.stalls.len();
            machine::stalls(files, evidence, &path, Scope::Cgroup);
            if evidence.stalls.len() > before {
                evidence.stall_folder = Some(seat.folder);
            }
        }
    }
    if let Some(seat) = memory_seat
        && seat.walk(|folder, own| version_1(files, evidence, folder, own))
    {
        evidence.cgroup = Some(seat.folder);
    }
}

/// Finds the directories of these paths, in the unified hierarchy and in that of version 1.
fn seats(files: &Files, evidence: &mut Evidence, paths: [Option<&str>; 2]) -> [Option<Seat>; 2] {
    let mut seats = [None, None];
    let mut mounted = [false; 2];
    // The mount with the highest root shows the most directories. Of equal ones, a later mount may hide the earlier.
    let mut roots = [usize::MAX; 2];
    let read = files.each(Path::new(MOUNTS), |line| {
        let Some(mount) = figures::mount(line) else { return };
        let n = match mount.hierarchy {
            Hierarchy::Unified => 0,
            Hierarchy::Memory => 1,
        };
        let Some(path) = paths[n] else { return };
        mounted[n] = true;
        let top = PathBuf::from(&*mount.point);
        let seat = match figures::below(path, &mount.root) {
            Some(way) => Seat {
                folder: if way.is_empty() {
                    top.clone()
                } else {
                    top.join(way)
                },
                top,
                own: true,
            },
            None if is_above(&mount.root, path) => Seat {
                folder: top.clone(),
                top,
                own: false,
            },
            None => return,
        };
        // A mount that shows the process's own directory is preferred.
        let rank = mount.root.len() + if seat.own { 0 } else { usize::MAX / 2 };
        if rank <= roots[n] {
            (seats[n], roots[n]) = (Some(seat), rank);
        }
    });
    evidence.keep(Path::new(MOUNTS), read);
    for (n, path) in paths.into_iter().enumerate() {
        let Some(path) = path else { continue };
        match &seats[n] {
            Some(seat) if seat.own => {}
            _ if mounted[n] => evidence.miss(Path::new(path), Why::Elsewhere),
            _ => evidence.miss(Path::new(path), Why::Absent),
        }
    }
    seats
}

/// Returns true if a root such as `/../..`, relative to the process's namespace, is above a path in the same namespace.
fn is_above(root: &str, path: &str) -> bool {
    let steps = |text: &str| {
        text.split('/')
            .filter(|step| !step.is_empty())
            .map(|s| s == "..")
            .collect::<Vec<_>>()
    };
    let (root, path) = (steps(root), steps(path));
    let up = |steps: &[bool]| steps.iter().take_while(|up| **up).count();
    !root.is_empty()
        && up(&root) == root.len()
        && up(&path) < root.len()
        && !path[up(&path)..].contains(&true)
}

impl Seat {
    /// Returns the lowest directory that is not visited.
    fn cut(&self) -> Option<&Path> {
        let folder = self.folder.ancestors().nth(MOST_FOLDERS)?;
        folder.starts_with(&self.top).then_some(folder)
    }

    /// Visits the directories, the lowest first, with a flag for the process's own. Returns true if any visit did.
    fn walk(&self, mut visit: impl FnMut(&Path, bool) -> bool) -> bool {
        let mut any = false;
        for (n, folder) in self.folder.ancestors().take(MOST_FOLDERS).enumerate() {
            any |= visit(folder, n == 0 && self.own);
            if folder == self.top {
                break;
            }
        }
        any
    }
}

/// Reads the limits and events of a directory of version 2. Returns true if the directory counts memory.
fn version_2(files: &Files, evidence: &mut Evidence, folder: &Path, own: bool) -> bool {
    let current = folder.join("memory.current");
    let used = match files.find(&current, figures::number) {
        Ok(used) => used,
        // The topmost cgroup counts nothing, and neither does one whose parent does not enable the memory controller.
        Err(Why::Absent) if !own => return false,
        Err(why) => {
            evidence.miss(&current, why);
            return false;
        }
    };
    let mut reclaimable = None;
    for (kind, name) in [
        (LimitKind::CgroupMax, "memory.max"),
        (LimitKind::CgroupHigh, "memory.high"),
    ] {
        let path = folder.join(name);
        let limit = files.find(&path, figures::amount);
        if let Some(Amount::Bytes(bytes)) = evidence.keep(&path, limit) {
            let reclaimable = *reclaimable
                .get_or_insert_with(|| file_pages(files, evidence, folder, ["inactive_file", "active_file"]));
            evidence.limits.push(Limit {
                kind,
                folder: Some(folder.to_owned()),
                bytes,
                used,
                reclaimable: reclaimable.min(used),
            });
        }
    }
    // The counts of the directory itself are preferred, because a neighbour below it may reach limits of its own.
    let local = folder.join("memory.events.local");
    let mut events = evidence.events;
    let mut read = files.each(&local, |line| add_event(&mut events, line));
    let mut path = local;
    if read == Err(Why::Absent) && own {
        path = folder.join("memory.events");
        read = files.each(&path, |line| add_event(&mut events, line));
    }
    evidence.events = events;
    if read != Err(Why::Absent) {
        evidence.keep(&path, read);
    }
    true
}

/// Reads the limits and events of a directory of version 1. Returns true if the directory counts memory.
fn version_1(files: &Files, evidence: &mut Evidence, folder: &Path, own: bool) -> bool {
    let path = folder.join("memory.limit_in_bytes");
    let limit = match files.find(&path, figures::amount_v1) {
        Ok(limit) => limit,
        Err(Why::Absent) if !own => return false,
        Err(why) => {
            evidence.miss(&path, why);
            return false;
        }
    };
    let inherited = folder.join("memory.use_hierarchy");
    if !own && files.find(&inherited, figures::number) == Ok(0) {
        evidence.miss(&path, Why::NotInherited);
        return false;
    }
    if let Amount::Bytes(bytes) = limit {
        let path = folder.join("memory.usage_in_bytes");
        let used = files.find(&path, figures::number);
        if let Some(used) = evidence.keep(&path, used) {
            let names = ["total_inactive_file", "total_active_file"];
            let reclaimable = file_pages(files, evidence, folder, names).min(used);
            evidence.limits.push(Limit {
                kind: LimitKind::CgroupV1,
                folder: Some(folder.to_owned()),
                bytes,
                used,
                reclaimable,
            });
        }
    }
    let failures = files.find(&folder.join("memory.failcnt"), figures::number);
    let events = &mut evidence.events;
    events.max = events.max.saturating_add(failures.unwrap_or(0));
    let control = folder.join("memory.oom_control");
    // Many systems do not have this file, and nothing depends on it.
    let _ = files.each(&control, |line| {
        if let Some(("oom_kill", kills)) = figures::entry(line) {
            events.oom_kill = events.oom_kill.saturating_add(kills);
        }
    });
    true
}

fn add_event(events: &mut super::evidence::Events, line: &str) {
    let Some((name, count)) = figures::entry(line) else {
        return;
    };
    let counter = match name {
        "high" => &mut events.high,
        "max" => &mut events.max,
        "oom" => &mut events.oom,
        "oom_kill" => &mut events.oom_kill,
        _ => return,
    };
    *counter = counter.saturating_add(count);
}

/// Returns the bytes of file pages that are reclaimed when memory is needed: the inactive ones and half of the active
/// ones.
fn file_pages(files: &Files, evidence: &mut Evidence, folder: &Path, names: [&str; 2]) -> u64 {
    let path = folder.join("memory.stat");
    let mut pages = [None; 2];
    let read = files.each(&path, |line| {
        for (pages, wanted) in pages.iter_mut().zip(names) {
            *pages = pages.or(figures::entry(line)
                .filter(|(name, _)| *name == wanted)
                .map(|(_, n)| n));
        }
    });
    let complete = pages.iter().all(Option::is_some);
    evidence.keep(&path, read.and(if complete { Ok(()) } else { Err(Why::Odd) }));
    let [inactive, active] = pages.map(|pages| pages.unwrap_or(0));
    inactive.saturating_add(active / 2)
}
