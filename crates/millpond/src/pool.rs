//! Pools: memory that is handed out and taken back many times before it goes back to the system.
//!
//! ```text
//!   thread's cache   the block of this size freed last           no lock, nothing shared     (cache.rs)
//!   shelf            small blocks of one size                    a lock for each size        (shelf.rs)
//!   engine           best fit, growth, moving pages              the pool's lock             (core.rs)
//! ```
//!
//! Blocks up to 64 KiB are cut from spans of one size each, larger ones come from the policy as they are.

mod account;
#[cfg(any(feature = "allocator-api2", feature = "allocator-api2-02"))]
mod allocators;
mod ask;
mod broken;
mod builder;
mod by_layout;
mod cache;
mod charged;
mod charges;
mod claim;
mod classes;
mod conf;
mod core;
mod count;
mod detour;
mod exit;
mod figures;
mod fork;
mod fresh;
mod gate;
mod guard;
mod heap;
mod keeper;
mod leak_check;
mod lifetime;
mod live;
mod local;
mod lookout;
#[cfg(all(test, loom))]
mod models;
mod observe;
#[cfg(test)]
mod on_heap;
mod pool_ref;
mod prewarm;
mod raw;
mod shelf;
mod slow;
mod still;
mod sync;
mod terms;
#[cfg(test)]
mod tests;
mod upkeep;
mod watch;
mod watched;
mod zeroed;

pub use builder::{PoolBuilder, PoolError};
pub use conf::ReadSettings;
pub use guard::{FaultPlace, FaultReport, GuardStats, describe_fault};
pub use leak_check::LeakCheck;
pub use pool_ref::PoolRef;
pub use prewarm::Prewarm;

use crate::device::Device;
use crate::error::AllocError;
use crate::memory::MemoryKind;
use crate::stats::PoolStats;
use heap::Heap;
use millpond_engine::{Compaction, ConfError};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The last one closes the pool.
struct Handle(&'static Heap);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A pool of memory that any thread may use.
///
/// Cloning makes another handle of the same pool. When the last handle is gone, memory goes back to the system as
/// soon as the last block has come back; a buffer may outlive its pool.
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
    /// What every address is a multiple of; here, because the fast way touches nothing of the heap.
    align: usize,
    /// The last one closes it.
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
    /// The pool's number, which no other pool of this process ever has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.heap().number()
    }

    /// A pool over ordinary memory of this process, with the defaults.
    ///
    /// # Errors
    /// Where the system has no addresses for it.
    pub fn host() -> Result<Self, PoolError> {
        Self::builder().host()
    }

    /// Begins to describe a pool.
    #[must_use]
    pub fn builder() -> PoolBuilder {
        PoolBuilder::default()
    }

    #[inline]
    pub(crate) fn heap(&self) -> &'static Heap {
        self.heap
    }

    /// The account.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.heap().stats()
    }

    /// External fragmentation: 1 less the largest free range over all that is free; 0 where nothing is. A walk through
    /// the pool's layout, under its lock.
    ///
    /// Free is what the engine has. What threads keep and what small blocks leave free of their spans is not counted;
    /// [`collect_garbage`](Self::collect_garbage) hands back to the engine what it can of it.
    ///
    /// ```
    /// # let pool = millpond::Pool::builder().huge_pages(millpond::HugePages::System).host()?;
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

    /// Starts every peak anew at the current value.
    pub fn reset_peak(&self) {
        self.heap().reset_peaks();
    }

    /// Moves free pages and blocks together and gives back all memory that no block uses, as [`trim`](Self::trim) does;
    /// answers what went back, and why the rest did not. Live blocks stay where they are.
    pub fn compact(&self) -> Compaction {
        self.heap().compact()
    }

    /// Gives everything that no block uses back to the system, what threads keep included, those that are idle too.
    ///
    /// Whole pages of the source are given back and no longer [reserved](PoolStats::reserved). Of a page that a live
    /// block shares the system gets what it can use, in pages of its own; that stays reserved.
    pub fn trim(&self) {
        self.heap().trim();
    }

    /// What [`trim`](Self::trim) does; besides, counts of allocations, frees, hits and refusals begin anew, and so do
    /// peaks. For use before a measurement.
    pub fn clear(&self) {
        self.heap().clear();
    }

    /// Finishes what is pending: takes back what threads keep, joins what is free, and gives back what has not been
    /// used for as long as the settings say.
    pub fn collect_garbage(&self) {
        self.heap().collect_garbage();
    }

    /// Has at least `total` bytes reserved, with memory behind all that is free: what is allocated of it later calls
    /// neither the source nor, by a page fault, the system. It goes back with time and by [`trim`](Self::trim), as other
    /// free memory does, unless the setting `low-water` keeps it.
    ///
    /// # Errors
    /// When there is not so much; what could be had is kept.
    pub fn reserve(&self, total: u64) -> Result<(), AllocError> {
        self.heap().reserve(total)
    }

    /// Has blocks ready.
    ///
    /// # Errors
    /// When there is no memory for them; what could be had is kept.
    pub fn prewarm(&self, prewarm: &Prewarm) -> Result<(), AllocError> {
        self.heap().prewarm(prewarm)
    }

    /// Changes settings while the pool lives: `limit`, `memory-fraction`, `cache-size`, `trim-every`, `trim-at-pressure`,
    /// `zero-on-reuse`, and of the policy `decay`, `low-water`, `high-water` and `compact-at` (which a pool reads and has
    /// no use for: it moves pages more often than that would have it).
    ///
    /// ```
    /// # let pool = millpond::Pool::host()?;
    /// pool.configure("limit:2GiB,cache-size:512MiB,decay:10")?;
    /// assert!(pool.configure("handle:4MiB").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// On a key that is not known, a value that cannot be, a setting that a pool keeps for life, or one that its policy has
    /// not ([`ConfError::Unused`]); then nothing is changed.
    pub fn configure(&self, settings: &str) -> Result<(), ConfError> {
        self.heap().configure(settings)
    }

    /// Changes the most free memory that the pool keeps for longer than the time between two trims, as the setting
    /// `cache-size`.
    ///
    /// # Errors
    /// Where its policy has no such bound ([`ConfError::Unused`]), or it is below `low-water`; then nothing is changed.
    pub fn set_cache_size(&self, bytes: u64) -> Result<(), ConfError> {
        self.configure(&format!("cache-size:{bytes}"))
    }

    /// Changes the [limit](Self::limit) to a share of the source's whole memory, above 0 and up to 1.
    ///
    /// # Errors
    /// On any other share; then nothing is changed.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), ConfError> {
        self.configure(&format!("memory-fraction:{fraction}"))
    }

    /// Changes how often memory that has not been used for a while goes back in the background; never with `None`.
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
    /// On no time at all; then nothing is changed.
    pub fn set_trim_every(&self, time: Option<Duration>) -> Result<(), ConfError> {
        expect_time(time)?;
        keeper::change(self.heap(), Some(time), None);
        Ok(())
    }

    /// Clears each block before it is handed out from now on, or no more.
    pub fn set_zero_on_reuse(&self, on: bool) {
        self.heap().clear_on_reuse(on);
    }

    /// Changes the most bytes the pool may take from its source. Below what it has, it takes no more, and gives back
    /// what nobody uses now, and what is freed, until the limit is met.
    pub fn set_limit(&self, bytes: u64) {
        self.heap().set_limit(bytes);
    }

    /// The most bytes the pool may take from its source; none where only the source's own end is one.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.heap().limit()
    }

    /// Where its memory is: what only a device can touch is a `cuda::DevicePool`'s.
    #[must_use]
    pub fn device(&self) -> Device {
        Device::Host
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.heap().name
    }

    /// The kind of its memory.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.heap().kind
    }
}

/// Refuses a pace of no time at all.
pub(crate) fn expect_time(every: Option<Duration>) -> Result<(), ConfError> {
    if every.is_some_and(|time| time.is_zero()) {
        let expected = "write a time such as 500ms, 1s or 2min, or off";
        return Err(ConfError::value("trim-every", "0s", expected));
    }
    Ok(())
}

#[cfg(all(feature = "cuda", feature = "record"))]
pub(crate) use ask::by_a_source;
#[cfg(feature = "cuda")]
pub(crate) use builder::{budgets, limit_of};
#[cfg(feature = "cuda")]
pub(crate) use charged::Charged;
#[cfg(feature = "cuda")]
pub(crate) use conf::{Change, PoolConf, unused, unused_key};
pub(crate) use guard::{is_filled_around, refill_around};
#[cfg(feature = "cuda")]
pub(crate) use heap::next_number;
pub(crate) use heap::{Heap as PoolHeap, Taken as PoolBlock};
pub(crate) use keeper::{Alarm, wake_at};
pub(crate) use terms::Terms;
#[cfg(feature = "cuda")]
pub(crate) use watch::Flow;
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub(crate) use {
    exit::tell_leaks,
    keeper::{TICK, Ward, change as change_keeping, keep},
    lookout::Lookout,
};
