//! Memory pressure: how scarce memory is for this process according to the system, on request or by a callback.
//!
//! [`pressure`] reads every limit that applies to the process (its cgroups up to the highest visible one, its own
//! resource limits, the machine), and how long tasks recently waited for memory. It returns a [`Pressure`]: the limit
//! that *binds*, which is the one with the fewest bytes left, and a [`Level`]. Values that cannot be read are reported
//! with the reason, and the level is computed without them. A [`Watch`] reads the pressure regularly on its own thread
//! and runs callbacks when the level changes, so that pools can free their caches before the system kills the process.
//!
//! The level is the highest of these:
//!
//! - *A limit*: the used share, without the memory that the system reclaims by itself. File pages count against a
//!   cgroup and are dropped when memory is needed, so a program that reads a large file is not short of memory. The
//!   limit `memory.high` refuses nothing, so it raises the level at most to [`Level::High`]. Swap space is reported but
//!   never counted as available, because callers want to avoid swapping.
//! - *Stalls* of the process's own cgroup. If they cannot be read, the machine's stalls count instead, up to
//!   [`Level::High`], because another process that has reached its own limit may cause them.
//!
//! The memory of CUDA devices is separate. [`Pressure::devices`] contains the used bytes and a level for each device that this
//! process has opened, and a watch reports its changes separately ([`DeviceChange`]).
//!
//! Nothing here panics, whatever the files contain. Reading takes no locks and allocates only the result, which consists
//! of some paths and of small lists of bounded length.
//!
//! ```
//! use millpond::pressure::Level;
//!
//! let now = millpond::pressure();
//! if let Some(limit) = now.limit() {
//!     println!("{:?} of {} bytes, {} available", limit.kind, limit.bytes, limit.available());
//! }
//! for missing in now.unread() {
//!     println!("not read: {} ({:?})", missing.path.display(), missing.why);
//! }
//! if now.level() >= Level::High {
//!     // free caches
//! }
//! ```

mod cgroup;
mod devices;
mod evidence;
mod figures;
mod files;
mod level;
mod machine;
mod process;
mod readings;
mod watch;

pub use devices::DevicePressure;
pub use evidence::{Events, Limit, LimitKind, Machine, Overcommit, Scope, Stall, StallKind, Unread, Why};
pub use level::{Level, Share, Steps, StepsError, Thresholds};
pub use readings::Readings;
pub use watch::WatchCall;
pub use watch::{Change, DeviceChange, Means, Subscription, Turn, Watch, WatchBuilder, WatchError};

use evidence::Evidence;
use std::path::Path;

/// Returns the current pressure, by the default [`Thresholds`].
#[must_use]
pub fn pressure() -> Pressure {
    Readings::system().pressure(&Thresholds::default())
}

/// The cause of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Nothing raises the level.
    Nothing,
    /// The used share of a limit.
    Limit(LimitKind),
    /// The time that tasks waited for memory.
    Stall(Scope, StallKind),
    /// The system notified a watch that tasks stall now.
    Trigger(Scope),
    /// Limits were reached since the last check of a watch.
    Events,
}

/// The pressure on memory, with the data from which it was computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pressure {
    level: Level,
    cause: Cause,
    evidence: Evidence,
    devices: Vec<DevicePressure>,
}

impl Pressure {
    fn judge(evidence: Evidence, thresholds: &Thresholds) -> Self {
        let (level, cause) = level(&evidence, thresholds);
        Self {
            level,
            cause,
            evidence,
            devices: Vec::new(),
        }
    }

    /// Returns the level.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the cause of the level. If there are several, it is the first of the limits, or else of the stalls.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// Returns the limit that binds: of the limits that the system enforces, the one with the fewest bytes available,
    /// and of equal ones the smallest. Returns `None` if no limit could be read.
    #[must_use]
    pub fn limit(&self) -> Option<&Limit> {
        let enforced = self.evidence.limits.iter().filter(|l| l.kind.is_enforced());
        enforced.min_by_key(|limit| (limit.available(), limit.bytes))
    }

    /// Returns the bytes used of the limit that binds, including reclaimable ones.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        self.limit().map(|limit| limit.used)
    }

    /// Returns the bytes that are still available.
    #[must_use]
    pub fn available(&self) -> Option<u64> {
        self.limit().map(Limit::available)
    }

    /// Returns every limit that could be read.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.evidence.limits
    }

    /// Returns how long tasks waited for memory, for the machine and for the process's cgroup.
    #[must_use]
    pub fn stalls(&self) -> &[Stall] {
        &self.evidence.stalls
    }

    /// Returns the machine's memory.
    #[must_use]
    pub fn machine(&self) -> Option<&Machine> {
        self.evidence.machine.as_ref()
    }

    /// Returns how many times the limits of the process's cgroups were reached.
    #[must_use]
    pub fn events(&self) -> Events {
        self.evidence.events
    }

    /// Returns the directory of the cgroup that counts the process's memory, or of the lowest visible one above it.
    #[must_use]
    pub fn cgroup(&self) -> Option<&Path> {
        self.evidence.cgroup.as_deref()
    }

    /// Returns the directory of the cgroup whose stalls are used, or `None` if the machine's are used.
    fn stall_folder(&self) -> Option<&Path> {
        self.evidence.stall_folder.as_deref()
    }

    /// Returns the memory of the CUDA devices that this process has opened, by their numbers. It is empty if the
    /// process has opened none, and no driver is loaded. Each device has its own level. The level of the process's
    /// memory and the [limit](Self::limit) that binds do not depend on the devices.
    #[must_use]
    pub fn devices(&self) -> &[DevicePressure] {
        &self.devices
    }

    /// Returns the data that could not be read. Many entries only mean that a file does not exist, because few systems
    /// have all of them.
    #[must_use]
    pub fn unread(&self) -> &[Unread] {
        &self.evidence.unread
    }
}

fn level(evidence: &Evidence, thresholds: &Thresholds) -> (Level, Cause) {
    let of_limit = |limit: &Limit| {
        let most = if limit.kind.is_hard() {
            Level::Critical
        } else {
            Level::High
        };
        let level = thresholds.used.level(limit.used_share()).min(most);
        (level, Cause::Limit(limit.kind))
    };
    let own = evidence.stalls.iter().any(|stall| stall.scope == Scope::Cgroup);
    let (scope, most) = match own {
        true => (Scope::Cgroup, Level::Critical),
        false => (Scope::System, Level::High),
    };
    let of_stall = |stall: &Stall| {
        let steps = match stall.kind {
            StallKind::Some => &thresholds.some,
            StallKind::Full => &thresholds.full,
        };
        let level = steps.level(stall.avg10).min(most);
        (level, Cause::Stall(stall.scope, stall.kind))
    };
    let limits = evidence
        .limits
        .iter()
        .filter(|limit| limit.kind.is_enforced())
        .map(of_limit);
    let stalls = evidence
        .stalls
        .iter()
        .filter(|stall| stall.scope == scope)
        .map(of_stall);
    let highest = (Level::Low, Cause::Nothing);
    limits.chain(stalls).fold(
        highest,
        |highest, next| if next.0 > highest.0 { next } else { highest },
    )
}
