//! What the process has now: one value, from which reports, JSON and metrics are made.

use crate::device::Device;
use crate::memory::MemoryKind;
use crate::pressure::{Level, LimitKind};
use crate::stats::PoolStats;
use std::time::SystemTime;

/// What this process has in memory, and what its pools, budgets and devices say, at about one time: each is looked at for
/// itself, one after the other.
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
    /// When it was taken.
    pub time: SystemTime,
    /// Bytes of the process in memory, as the system counts them; none where it does not say.
    pub resident: Option<u64>,
    /// The most there were.
    pub resident_peak: Option<u64>,
    /// The limit that binds the process, and what is used of it.
    pub limit: Option<LimitReading>,
    /// The limit of the process's cgroup with the fewest bytes left; none where no cgroup limits it.
    pub cgroup: Option<LimitReading>,
    /// How scarce memory is for the process; see [`pressure`](crate::pressure()).
    pub pressure: Level,
    /// Every pool that lives, oldest first; at most 256, those with the most reserved bytes.
    pub pools: Vec<PoolReading>,
    /// The budgets that pools are charged to, with all above and below them; at most 256.
    pub budgets: Vec<BudgetReading>,
    /// The CUDA devices that this process has opened.
    pub devices: Vec<DeviceReading>,
    /// What live blocks are for, most bytes first, at most 16; none where no pool keeps an account of them.
    pub tags: Option<Vec<TagReading>>,
    /// What is not in here, or was lost on the way.
    pub losses: Losses,
}

/// A limit on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitReading {
    /// Whose it is.
    pub kind: LimitKind,
    /// Bytes used of it, less those that the system takes back by itself.
    pub used: u64,
    /// Bytes of it.
    pub bytes: u64,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolReading {
    /// No other pool of the process has it.
    pub id: u64,
    /// The pool's name.
    pub name: String,
    /// Where its memory is.
    pub device: Device,
    /// Of which kind it is.
    pub kind: MemoryKind,
    /// The name of the policy that places blocks.
    pub policy: String,
    /// Its account.
    pub stats: PoolStats,
    /// Calls in which it moved pages or gave them back, or waited for its device.
    pub stalls: u64,
    /// The most bytes it may take from its source; none where only the source's own end is one.
    pub limit: Option<u64>,
    /// Whether the figures are those of an earlier look, because a thread was at the pool's engine, waiting for the device.
    pub stale: bool,
}

impl PoolReading {
    /// Allocations for which the source was called.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.stats.allocations.saturating_sub(self.stats.hits)
    }
}

/// A budget.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetReading {
    /// The names from its root to itself, joined by `/`. Of budgets of one path the second ends in ` (2)`, and so on.
    pub path: String,
    /// `reserved` or `allocated`: which bytes it counts.
    pub measure: &'static str,
    /// Bytes charged.
    pub used: u64,
    /// The most that were charged at once.
    pub peak: u64,
    /// Its limit, if it has one.
    pub limit: Option<u64>,
    /// Requests that it refused.
    pub refusals: u64,
    /// Requests that wait at it.
    pub waiting: u64,
}

/// A CUDA device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceReading {
    /// The device.
    pub device: Device,
    /// What its maker calls it.
    pub name: String,
    /// Bytes not in use by any process, as the driver says.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
    /// Bytes that pools of this process have reserved.
    pub ours: u64,
    /// Bytes of each process on the device, as NVML says; none where there is no NVML. In a container the numbers of
    /// processes are those of the machine.
    pub processes: Option<Vec<DeviceProcess>>,
}

impl DeviceReading {
    /// Bytes in use, by whomever.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.free)
    }

    /// Bytes in use that no pool of ours has: the driver's context, libraries, other processes.
    #[must_use]
    pub fn unexplained(&self) -> u64 {
        self.used().saturating_sub(self.ours)
    }
}

/// What a process has of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProcess {
    /// The process.
    pub id: u32,
    /// Its bytes; none where the system does not let us see.
    pub used: Option<u64>,
}

/// What live blocks of one tag come to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagReading {
    /// The tag's name; empty for what has none.
    pub name: String,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// What is not shown, or was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// Live blocks that accounts had no room for.
    pub untracked: u64,
    /// Events that could not be told to subscribers.
    pub undelivered: u64,
    /// Subscribers' calls that panicked.
    pub subscriber_panics: u64,
    /// Pools that are left out.
    pub pools: u64,
    /// Budgets that are left out.
    pub budgets: u64,
    /// Devices that did not answer.
    pub devices: u64,
}

impl Losses {
    /// Whether nothing was lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
