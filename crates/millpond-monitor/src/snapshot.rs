//! A snapshot of the process's memory, from which reports, JSON and metrics are made.

use millpond_account::memory::MemoryKind;
use millpond_account::stats::PoolStats;
use millpond_os::device::Device;
use millpond_os::pressure::{Level, LimitKind};
use std::time::SystemTime;

/// The memory of this process and the figures of its pools, budgets and devices at about one time. Each is read
/// separately, one after the other.
///
/// ```
/// use millpond::{Pool, Snapshot};
///
/// let pool = Pool::builder().name("snapshot").host()?;
/// let held = pool.alloc_zeroed::<f32>(1000)?;
/// let now = Snapshot::take();
/// let of = now.pools.iter().find(|of| of.name == "snapshot");
/// assert_eq!(of.map(|of| of.stats.requested.current), Some(4000));
/// assert!(now.resident.is_some_and(|bytes| bytes > 4000));
/// # drop(held);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The time of the snapshot.
    pub time: SystemTime,
    /// The bytes of the process in main memory, or `None` if the system does not report them.
    pub resident: Option<u64>,
    /// The peak of these bytes.
    pub resident_peak: Option<u64>,
    /// The limit that binds the process, and the bytes used of it.
    pub limit: Option<LimitReading>,
    /// The limit of the process's cgroup with the fewest bytes left, or `None` if no cgroup limits it.
    pub cgroup: Option<LimitReading>,
    /// The pressure level of the process. See [`pressure`](millpond_os::pressure()).
    pub pressure: Level,
    /// The live pools, the oldest first. If there are more than 256, those with the most reserved bytes.
    pub pools: Vec<PoolReading>,
    /// The budgets to which pools are charged, with all budgets above and below them, at most 256.
    pub budgets: Vec<BudgetReading>,
    /// The CUDA devices that this process has opened.
    pub devices: Vec<DeviceReading>,
    /// The live blocks by tag, the most bytes first, at most 16 tags. `None` if no pool keeps an account.
    pub tags: Option<Vec<TagReading>>,
    /// The data that is missing from the snapshot or was lost.
    pub losses: Losses,
}

/// A limit on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitReading {
    /// The kind of the limit.
    pub kind: LimitKind,
    /// The used bytes, excluding those that the system reclaims by itself.
    pub used: u64,
    /// The bytes of the limit.
    pub bytes: u64,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolReading {
    /// A number that no other pool of the process has.
    pub id: u64,
    /// The pool's name.
    pub name: String,
    /// The location of its memory.
    pub device: Device,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The name of the policy that places blocks.
    pub policy: String,
    /// The figures of the pool.
    pub stats: PoolStats,
    /// The number of calls in which it moved or returned pages, or waited for its device.
    pub stalls: u64,
    /// The most bytes that it may take from its source, or `None` if only the source limits it.
    pub limit: Option<u64>,
    /// True if the figures come from an earlier snapshot, because a thread was using the pool's engine and waiting for
    /// the device.
    pub stale: bool,
}

impl PoolReading {
    /// Returns the number of allocations for which the source was called.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.stats.allocations.saturating_sub(self.stats.hits)
    }
}

/// A budget.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetReading {
    /// The names from its root to itself, joined by `/`. If several budgets have the same path, the second ends in `
    /// (2)`, and so on.
    pub path: String,
    /// The bytes that it counts: `reserved` or `allocated`.
    pub measure: &'static str,
    /// The charged bytes.
    pub used: u64,
    /// The peak of the charged bytes.
    pub peak: u64,
    /// The limit, if there is one.
    pub limit: Option<u64>,
    /// The number of refused requests.
    pub refusals: u64,
    /// The number of requests that wait at it.
    pub waiting: u64,
}

/// The memory of a CUDA device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceReading {
    /// The device.
    pub device: Device,
    /// The device's product name.
    pub name: String,
    /// The bytes that no process uses, as reported by the driver.
    pub free: u64,
    /// The total bytes.
    pub total: u64,
    /// The bytes that pools of this process have reserved.
    pub ours: u64,
    /// The bytes of each process on the device, as reported by NVML, or `None` without NVML. In a container the process
    /// ids are those of the host.
    pub processes: Option<Vec<DeviceProcess>>,
}

impl DeviceReading {
    /// Returns the bytes used by all processes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    /// Returns the used bytes that no pool of this process has: the driver's context, libraries and other processes.
    #[must_use]
    pub fn unexplained(&self) -> u64 {
        self.used().saturating_sub(self.ours)
    }
}

/// The use of a device by one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProcess {
    /// The process id.
    pub id: u32,
    /// The bytes, or `None` if the system does not permit reading them.
    pub used: Option<u64>,
}

/// The sums of the live blocks with one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagReading {
    /// The name of the tag, or an empty string for untagged blocks.
    pub name: String,
    /// The requested bytes.
    pub requested: u64,
    /// The bytes of the blocks.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// The data that is not shown or was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// The number of live blocks that could not be recorded in accounts.
    pub untracked: u64,
    /// The number of events that could not be delivered to subscribers.
    pub undelivered: u64,
    /// The number of subscribers' calls that panicked.
    pub subscriber_panics: u64,
    /// The number of omitted pools.
    pub pools: u64,
    /// The number of omitted budgets.
    pub budgets: u64,
    /// The number of devices that did not respond.
    pub devices: u64,
}

impl Losses {
    /// Returns true if nothing was lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
