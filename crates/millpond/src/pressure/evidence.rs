//! What was read, and what could not be.

use super::level::Share;
use std::io;
use std::path::{Path, PathBuf};

/// What kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitKind {
    /// `memory.max` of a cgroup of version 2: past it, processes in it are killed.
    CgroupMax,
    /// `memory.high` of a cgroup of version 2: past it, processes in it are slowed down, and nothing is refused.
    CgroupHigh,
    /// `memory.limit_in_bytes` of a cgroup of version 1: past it, processes in it are killed.
    CgroupV1,
    /// `RLIMIT_AS`, against all addresses the process has mapped: past it, mapping is refused.
    AddressSpace,
    /// `RLIMIT_DATA`, against the process's private writable addresses: past it, mapping is refused.
    Data,
    /// `RLIMIT_RSS`, against the memory the process has: Linux tells it, and keeps nobody to it.
    Resident,
    /// The machine's memory: past it, some process is killed.
    Machine,
    /// What all processes together may map, where the system grants no more than it has
    /// (`vm.overcommit_memory` is 2): past it, mapping is refused.
    Commit,
}

impl LimitKind {
    /// Whether the system keeps anybody to it.
    #[must_use]
    pub fn is_enforced(self) -> bool {
        self != Self::Resident
    }

    /// Whether memory is refused, or a process killed, past it.
    #[must_use]
    pub fn is_hard(self) -> bool {
        self.is_enforced() && self != Self::CgroupHigh
    }
}

/// A limit, and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// What kind.
    pub kind: LimitKind,
    /// The folder of the cgroup that has it; none for what is no cgroup's.
    pub folder: Option<PathBuf>,
    /// Bytes of the limit.
    pub bytes: u64,
    /// Bytes the system counts against it.
    pub used: u64,
    /// Bytes of the used ones that the system takes back by itself when it needs them: of a cgroup, file pages
    /// not used lately and half of those that were; of the machine, what its `MemAvailable` counts.
    pub reclaimable: u64,
}

impl Limit {
    /// Bytes that can still be had under it.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.bytes
            .saturating_sub(self.used.saturating_sub(self.reclaimable))
    }

    /// How much of it is used, less what is reclaimable.
    #[must_use]
    pub fn used_share(&self) -> Share {
        Share::of(self.bytes - self.available(), self.bytes)
    }
}

/// Who waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StallKind {
    /// At least one task.
    Some,
    /// All tasks that had something to do.
    Full,
}

/// Of whom stalls are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The process's own cgroup.
    Cgroup,
    /// All of the machine.
    System,
}

/// How much of the time tasks waited for memory (pressure stall information).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// Of whom.
    pub scope: Scope,
    /// Who waited.
    pub kind: StallKind,
    /// Of the last ten seconds.
    pub avg10: Share,
    /// Of the last minute.
    pub avg60: Share,
    /// Of the last five minutes.
    pub avg300: Share,
    /// Microseconds in all.
    pub total_micros: u64,
}

/// How often the limits of the process's cgroups were met, over all of them, since they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Events {
    /// Slowed down at `memory.high`.
    pub high: u64,
    /// Memory reclaimed at `memory.max`, or at a limit of version 1.
    pub max: u64,
    /// Reclaiming was not enough.
    pub oom: u64,
    /// Processes killed.
    pub oom_kill: u64,
}

/// How many addresses the system lets processes map past what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overcommit {
    /// All but what obviously cannot be (0).
    Guess,
    /// All (1).
    Always,
    /// No more than the commit limit (2).
    Never,
}

/// The machine's memory, all in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// Memory in all.
    pub total: u64,
    /// Memory that can be had without swapping.
    pub available: u64,
    /// Swap space in all.
    pub swap_total: u64,
    /// Swap space free.
    pub swap_free: u64,
    /// What all processes together may map, if the system keeps them to it.
    pub commit_limit: u64,
    /// What all processes together have mapped.
    pub committed: u64,
    /// Whether it keeps them to it; none where it does not say.
    pub overcommit: Option<Overcommit>,
}

/// Why something could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// There is none: this system has no such thing, or it is not made known here.
    Absent,
    /// This process may not.
    Denied,
    /// It does not say what it should.
    Odd,
    /// It is longer than anything the system writes, or of a cgroup more than 64 folders above the process's.
    TooLong,
    /// The cgroup is not below the folder that is mounted.
    Elsewhere,
    /// It does not count: the cgroup of version 1 keeps its children to none of its limits.
    NotInherited,
    /// The system refused it with this code.
    Failed(i32),
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Absent,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Failed(error.raw_os_error().unwrap_or(0)),
        }
    }
}

/// Something that could not be read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unread {
    /// The file, as the system names it.
    pub path: PathBuf,
    /// Why not.
    pub why: Why,
}

/// All that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) limits: Vec<Limit>,
    pub(super) stalls: Vec<Stall>,
    pub(super) machine: Option<Machine>,
    pub(super) events: Events,
    pub(super) cgroup: Option<PathBuf>,
    pub(super) stall_folder: Option<PathBuf>,
    pub(super) unread: Vec<Unread>,
}

impl Evidence {
    /// More is not kept: whoever reads this wants to know what, not how often.
    const MOST_UNREAD: usize = 64;

    pub(super) fn miss(&mut self, path: &Path, why: Why) {
        if self.unread.len() < Self::MOST_UNREAD {
            self.unread.push(Unread {
                path: path.to_owned(),
                why,
            });
        }
    }

    /// What was read, or nothing and a note.
    pub(super) fn keep<T>(&mut self, path: &Path, read: Result<T, Why>) -> Option<T> {
        read.map_err(|why| self.miss(path, why)).ok()
    }
}
