//! The process's cgroups, from its own up to the highest that can be seen.
//!
//! What is mounted may begin below the top, and a path may be told from elsewhere than the mount: in a container
//! both say `/` for what the host calls `/kubepods/...`. So a folder is found by taking the mount's own root off
//! the process's path. Where that cannot be, the mount's root may still be known to be above the process.

use super::evidence::{Evidence, Limit, LimitKind, Scope, Why};
use super::figures::{self, Amount, Hierarchy};
use super::files::Files;
use super::machine;
use std::path::{Path, PathBuf};

/// More folders above each other are not looked at.
const MOST_FOLDERS: usize = 64;

const MEMBERSHIP: &str = "/proc/self/cgroup";
const MOUNTS: &str = "/proc/self/mountinfo";

/// Where the process is in a hierarchy.
struct Seat {
    /// Its folder, or the lowest above it that can be seen.
    folder: PathBuf,
    /// Where the hierarchy is mounted: the highest folder.
    top: PathBuf,
    /// Whether the folder is its own.
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
        // Of the topmost cgroup it is the machine's, and said already. Only the topmost has no type.
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

/// Finds the folders of these paths, in the unified hierarchy and in that of version 1.
fn seats(files: &Files, evidence: &mut Evidence, paths: [Option<&str>; 2]) -> [Option<Seat>; 2] {
    let mut seats = [None, None];
    let mut mounted = [false; 2];
    // The highest root sees the most; of equal ones a later mount may hide the earlier.
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
        // What shows the process's own folder is better than what does not.
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

/// Whether a root such as `/../..`, told from the process's namespace, is above a path told from there.
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
    /// The lowest folder that is not visited.
    fn cut(&self) -> Option<&Path> {
        let folder = self.folder.ancestors().nth(MOST_FOLDERS)?;
        folder.starts_with(&self.top).then_some(folder)
    }

    /// Visits the folders, the lowest first, saying whether it is the process's own, and answers whether any
    /// visit did.
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

/// Answers whether the folder counts memory.
fn version_2(files: &Files, evidence: &mut Evidence, folder: &Path, own: bool) -> bool {
    let current = folder.join("memory.current");
    let used = match files.find(&current, figures::number) {
        Ok(used) => used,
        // The topmost counts nothing, and neither does one whose parent gives it no memory controller.
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
    // The folder's own, where the system tells them apart: a neighbour below may meet limits of its own.
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

/// Answers whether the folder counts memory.
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
    // What cannot be read here is missing on many systems, and nothing rests on it.
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

/// Bytes of file pages that go when memory is needed: those not used lately, and half of the others.
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
