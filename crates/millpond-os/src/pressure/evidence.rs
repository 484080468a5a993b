//! The data that was read, and the data that could not be read.

use super::level::Share;
use std::io;
use std::path::{Path, PathBuf};

/// The kind of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitKind {
    /// `memory.max` of a cgroup of version 2. Processes in it are killed above the limit.
    CgroupMax,
    /// `memory.high` of a cgroup of version 2. Processes in it are slowed down above the limit, and nothing is refused.
    CgroupHigh,
    /// `memory.limit_in_bytes` of a cgroup of version 1. Processes in it are killed above the limit.
    CgroupV1,
    /// `RLIMIT_AS`, which limits all addresses that the process has mapped. Mappings above the limit are refused.
    AddressSpace,
    /// `RLIMIT_DATA`, which limits the private writable addresses of the process. Mappings above the limit are refused.
    Data,
    /// `RLIMIT_RSS`, which limits the process's main memory. Linux reports it but does not enforce it.
    Resident,
    /// The machine's memory. Above it, some process is killed.
    Machine,
    /// The bytes that all processes together may map, if the system does not overcommit (`vm.overcommit_memory` is 2).
    /// Mappings above the limit are refused.
    Commit,
}

impl LimitKind {
    /// Returns the name of the kind, as reports print it.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CgroupMax => "cgroup memory.max",
            Self::CgroupHigh => "cgroup memory.high",
            Self::CgroupV1 => "cgroup limit_in_bytes",
            Self::AddressSpace => "address space",
            Self::Data => "data",
            Self::Resident => "resident set",
            Self::Machine => "machine",
            Self::Commit => "commit",
        }
    }
}

impl LimitKind {
    /// Returns true if the system enforces the limit.
    #[must_use]
    pub fn is_enforced(self) -> bool {
        self != Self::Resident
    }

    /// Returns true if memory is refused or a process is killed above the limit.
    #[must_use]
    pub fn is_hard(self) -> bool {
        self.is_enforced() && self != Self::CgroupHigh
    }
}

/// A limit, and the bytes used of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// The kind.
    pub kind: LimitKind,
    /// The directory of the cgroup with the limit, or `None` for another kind of limit.
    pub folder: Option<PathBuf>,
    /// The bytes of the limit.
    pub bytes: u64,
    /// The bytes that the system counts against it.
    pub used: u64,
    /// The used bytes that the system reclaims by itself when it needs them. For a cgroup, these are the inactive file
    /// pages and half of the active ones. For the machine, they are the ones that `MemAvailable` includes.
    pub reclaimable: u64,
}

impl Limit {
    /// Returns the bytes that are still available under the limit.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.bytes
            .saturating_sub(self.used.saturating_sub(self.reclaimable))
    }

    /// Returns the used share, excluding reclaimable bytes.
    #[must_use]
    pub fn used_share(&self) -> Share {
        Share::of(self.bytes - self.available(), self.bytes)
    }
}

/// The tasks that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StallKind {
    /// At least one task.
    Some,
    /// All tasks that had work to do.
    Full,
}

/// The scope of stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The process's own cgroup.
    Cgroup,
    /// The whole machine.
    System,
}

/// The share of time in which tasks waited for memory (pressure stall information).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// The scope.
    pub scope: Scope,
    /// The tasks that waited.
    pub kind: StallKind,
    /// The share of the last ten seconds.
    pub avg10: Share,
    /// The share of the last minute.
    pub avg60: Share,
    /// The share of the last five minutes.
    pub avg300: Share,
    /// The total in microseconds.
    pub total_micros: u64,
}

/// How many times the limits of the process's cgroups were reached since the cgroups were made, added up over all of
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Events {
    /// The number of slowdowns at `memory.high`.
    pub high: u64,
    /// The number of times that memory was reclaimed at `memory.max`, or at a limit of version 1.
    pub max: u64,
    /// The number of times that reclaiming was not sufficient.
    pub oom: u64,
    /// The number of killed processes.
    pub oom_kill: u64,
}

/// The system's policy for mappings in excess of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overcommit {
    /// All except obvious excesses are permitted (0).
    Guess,
    /// All are permitted (1).
    Always,
    /// None above the commit limit are permitted (2).
    Never,
}

/// The machine's memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// The total memory.
    pub total: u64,
    /// The memory that is available without swapping.
    pub available: u64,
    /// The total swap space.
    pub swap_total: u64,
    /// The free swap space.
    pub swap_free: u64,
    /// The bytes that all processes together may map, if the system enforces the limit.
    pub commit_limit: u64,
    /// The bytes that all processes together have mapped.
    pub committed: u64,
    /// The overcommit policy, or `None` if the system does not report it.
    pub overcommit: Option<Overcommit>,
}

/// The reason why a file could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// It does not exist: the system does not have it, or does not show it to this process.
    Absent,
    /// The process has no permission.
    Denied,
    /// The content is invalid.
    Odd,
    /// It is longer than anything that the system writes, or it belongs to a cgroup more than 64 directories above the
    /// process's.
    TooLong,
    /// The cgroup is not below the mounted directory.
    Elsewhere,
    /// It has no effect: this cgroup of version 1 does not apply its limits to its children.
    NotInherited,
    /// The system returned this error code.
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

/// A file that could not be read, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unread {
    /// The path that the system uses.
    pub path: PathBuf,
    /// The reason.
    pub why: Why,
}

/// All data that was read.
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
    /// The maximum number of stored entries. Readers need the kinds of failures and not their number.
    const MOST_UNREAD: usize = 64;

    pub(super) fn miss(&mut self, path: &Path, why: Why) {
        if self.unread.len() < Self::MOST_UNREAD {
            self.unread.push(Unread {
                path: path.to_owned(),
                why,
            });
        }
    }

    /// Returns the value, or records the failure.
    pub(super) fn keep<T>(&mut self, path: &Path, read: Result<T, Why>) -> Option<T> {
        read.map_err(|why| self.miss(path, why)).ok()
    }
}
