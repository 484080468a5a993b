//! Pools: memory that is allocated and freed many times before it is returned to the system.
//!
//! ```text
//!   thread's cache   the block of this size that was freed last   no lock, nothing shared     (cache.rs)
//!   shelf            small blocks of one size                     one lock for each size      (shelf.rs)
//!   engine           best fit, growth, moving pages               the pool's lock             (core.rs)
//! ```
//!
//! Blocks of up to 64 KiB are cut from spans that hold blocks of one size. Larger blocks are placed by the policy.

mod account;
#[cfg(any(feature = "allocator-api2", feature = "allocator-api2-02"))]
mod allocators;
mod background;
mod biased_lock;
mod broken;
mod budgeted;
mod builder;
mod by_layout;
mod cache;
mod charges;
mod classes;
mod compaction_trigger;
mod conf;
mod core;
mod count;
mod exit;
mod fast;
mod figures;
mod fork;
mod guard;
mod heap;
mod leak_check;
mod lifetime;
mod live;
mod mapped;
#[cfg(all(test, loom))]
mod models;
mod observe;
#[cfg(test)]
mod on_heap;
mod page_map;
mod pool_ref;
mod pressure_trigger;
mod prewarm;
mod range_set;
mod raw;
mod request;
mod settings;
mod shelf;
mod slow;
mod slow_path_reason;
mod still;
mod sync;
mod terms;
#[cfg(test)]
mod tests;
mod upkeep;
mod watch;
mod watched;
mod zero_tracking;
mod zeroed;

pub use builder::{PoolBuilder, PoolError};
pub use conf::ReadSettings;
pub use guard::{FaultPlace, FaultReport, GuardStats, describe_fault};
pub use leak_check::LeakCheck;
pub use pool_ref::PoolRef;
pub use prewarm::Prewarm;

use heap::Heap;
use millpond_account::error::AllocError;
use millpond_account::memory::MemoryKind;
use millpond_account::stats::PoolStats;
use millpond_engine::{Compaction, ConfError};
use millpond_os::device::Device;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A handle on a heap. Dropping it closes the pool.
struct Handle(&'static Heap);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A pool of memory that any thread may use.
///
/// Cloning creates another handle of the same pool. After the last handle is dropped, the memory returns to the system as
/// soon as the last block is freed. A buffer may outlive its pool.
///
/// ```
/// use millpond::Pool;
///
/// let pool = Pool::host()?;
/// let mut buffer = pool.alloc_zeroed::<f32>(1000)?;
/// buffer[7] = 1.0;
/// assert_eq!(buffer.iter().sum::<f32>(), 1.0);
/// drop(buffer);
/// assert_eq!((pool.stats().allocations, pool.stats().requested.peak), (1, 4000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    heap: &'static Heap,
    /// The alignment of every address. A copy is stored here because the fast path does not read the heap.
    align: usize,
    /// Closes the pool when the last clone is dropped.
    #[expect(dead_code, reason = "held for its drop")]
    handle: Arc<Handle>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Returns the pool's number. It is unique within this process and is never used again.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.heap().number()
    }

    /// Creates a pool over ordinary memory of this process, with the default settings.
    ///
    /// # Errors
    /// Returns an error if the system has no address space for the pool.
    pub fn host() -> Result<Self, PoolError> {
        Self::builder().host()
    }

    /// Returns a builder for a pool.
    #[must_use]
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    /// Closes the pool as if its last handle was dropped. This is for bindings to languages that do not drop handles. The caller keeps
    /// this handle until the process ends. Blocks can still be freed, and requests are refused.
    #[doc(hidden)]
    pub fn close(&self) {
        self.heap.close();
    }

    #[inline]
    #[doc(hidden)]
    pub fn heap(&self) -> &'static Heap {
        self.heap
    }

    /// Returns the pool's counters.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.heap().stats()
    }

    /// Returns the external fragmentation: 1 minus the share of the largest free range in all free memory, or 0 if no
    /// memory is free. This walks the pool's layout under its lock.
    ///
    /// Free memory is the free memory of the engine. Blocks in thread caches and free slots in the spans of small blocks
    /// are not counted. [`collect_garbage`](Self::collect_garbage) returns to the engine as many of them as it can.
    ///
    /// ```
    /// # let pool = millpond::Pool::builder().huge_pages(millpond::source::HugePages::System).host()?;
    /// let mut held: Vec<_> = (0..16).map(|_| pool.alloc::<u8>(1 << 20)).collect::<Result<_, _>>()?;
    /// let mut at = 0;
    /// held.retain(|_| { at += 1; at % 2 == 0 });
    /// pool.collect_garbage();
    /// assert!(pool.external_fragmentation() > 0.5, "eight holes and more");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn external_fragmentation(&self) -> f64 {
        self.heap().external_fragmentation()
    }

    /// Resets every peak to the current value.
    pub fn reset_peak(&self) {
        self.heap().reset_peaks();
    }

    /// Gives all memory that no block uses back to the system, like [`trim`](Self::trim). Returns a report of the memory that
    /// was given back, and of the reasons why the rest was not. Live blocks do not move.
    ///
    /// The memory that was given back is no longer reserved, so [`fragmentation_ratio`](PoolStats::fragmentation_ratio)
    /// falls.
    pub fn compact(&self) -> Compaction {
        self.heap().compact()
    }

    /// Gives all memory that no block uses back to the system, including the caches of all threads, even of idle ones.
    ///
    /// Unused pages of the source are given back whole. If a page of the source still contains a live block, its unused
    /// system pages are given back. In both cases the memory is no longer [reserved](PoolStats::reserved).
    pub fn trim(&self) {
        self.heap().trim();
    }

    /// Trims the pool like [`trim`](Self::trim) and resets the counts of allocations, frees, hits and refusals, and the
    /// peaks. It is intended for use before a measurement.
    pub fn clear(&self) {
        self.heap().clear();
    }

    /// Finishes pending work: returns the threads' cached blocks to the engine, merges free memory, and gives back memory that
    /// has been unused for as long as the settings say.
    pub fn collect_garbage(&self) {
        self.heap().collect_garbage();
    }

    /// Reserves at least `total` bytes and backs all free memory with physical memory. Later allocations from this memory
    /// neither call the source nor cause page faults. Like other free memory it is given back after some time and by
    /// [`trim`](Self::trim), unless the setting `low-water` keeps it.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory. The memory that was reserved until then is kept.
    pub fn reserve(&self, total: u64) -> Result<(), AllocError> {
        self.heap().reserve(total)
    }

    /// Prepares free blocks for later allocations.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory for the blocks. The blocks that were prepared until then are kept.
    pub fn prewarm(&self, prewarm: &Prewarm) -> Result<(), AllocError> {
        self.heap().prewarm(prewarm)
    }

    /// Changes settings of the live pool: `limit`, `memory-fraction`, `cache-size`, `trim-every`, `trim-at-pressure` and
    /// `zero-on-reuse`, and of the policy `decay`, `low-water`, `high-water` and `compact-at`. If more than `compact-at`
    /// percent of the reserved memory is unused for `decay` ticks and `low-water` is 0, the pool gives free memory back.
    ///
    /// ```
    /// # let pool = millpond::Pool::host()?;
    /// pool.configure("limit:2GiB,cache-size:512MiB,decay:10")?;
    /// assert!(pool.configure("handle:4MiB").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a key is unknown, if a value is invalid, if a setting cannot be changed after the pool is
    /// created, or if the pool's policy does not have it ([`ConfError::Unused`]). In that case nothing is changed.
    pub fn configure(&self, settings: &str) -> Result<(), ConfError> {
        self.heap().configure(settings)
    }

    /// Changes the setting `cache-size`: the maximum amount of free memory that the pool keeps for longer than the time between two
    /// trims.
    ///
    /// # Errors
    /// Returns an error if the pool's policy has no such bound ([`ConfError::Unused`]), or if the value is below
    /// `low-water`. In that case nothing is changed.
    pub fn set_cache_size(&self, bytes: u64) -> Result<(), ConfError> {
        self.configure(&format!("cache-size:{bytes}"))
    }

    /// Changes the [limit](Self::limit) to a fraction of the source's whole memory, above 0 and up to 1.
    ///
    /// # Errors
    /// Returns an error if the fraction is outside of this range. In that case nothing is changed.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), ConfError> {
        self.configure(&format!("memory-fraction:{fraction}"))
    }

    /// Changes the interval at which memory that has been unused for a while is given back in the background. `None` turns
    /// this off.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let pool = millpond::Pool::host()?;
    /// pool.set_trim_every(Some(Duration::from_millis(250)))?;
    /// pool.set_cache_size(64 << 20)?;
    /// pool.set_zero_on_reuse(true);
    /// pool.set_memory_fraction(0.5)?;
    /// assert!(pool.limit().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the interval is zero. In that case nothing is changed.
    pub fn set_trim_every(&self, time: Option<Duration>) -> Result<(), ConfError> {
        conf::expect_time(time)?;
        background::change(self.heap(), Some(time), None);
        Ok(())
    }

    /// Sets whether each block is cleared before it is allocated from now on.
    pub fn set_zero_on_reuse(&self, on: bool) {
        self.heap().clear_on_reuse(on);
    }

    /// Changes the maximum number of bytes that the pool may take from its source. If the pool already has more, it takes no more
    /// memory. It gives back unused memory now, and freed memory later, until it meets the limit.
    pub fn set_limit(&self, bytes: u64) {
        self.heap().set_limit(bytes);
    }

    /// Returns the maximum number of bytes that the pool may take from its source, or `None` if only the source's own capacity
    /// limits it.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.heap().limit()
    }

    /// Returns the device of the pool's memory, which is always the host. Pools of memory that only a device can access are
    /// of the type `cuda::DevicePool`.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::Host
    }

    /// Returns the pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.heap().name
    }

    /// Returns the kind of the pool's memory.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.heap().kind
    }
}

pub use budgeted::BudgetedSource;
pub use conf::{PoolConf, SettingsChange, expect_time, limit_of};
pub(crate) use guard::{is_filled_around, refill_around};
pub use heap::next_number;
pub use heap::{Heap as PoolHeap, RawBlock};
pub use request::by_a_source;
pub(crate) use request::optionally;
pub use terms::Terms;
pub use watch::SourceTraffic;
pub use {
    background::{Alarm, Maintained, change as change_maintenance, maintain, wake_at},
    exit::report_leaks_at_exit,
    pressure_trigger::PressureTrigger,
    settings::{PoolSettings, budgets},
};
