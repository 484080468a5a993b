//! Sets of pools: the pools from which a process, or a scope of it, allocates.
//!
//! ```text
//!   alloc(n)   memory_stats()                         functions that use the current set    (shorthand.rs)
//!   pools()    the set of this thread's innermost scope, or the process's default set   (scope.rs, default.rs)
//!              a thread caches the current host pool                                          (here.rs)
//!   Pools      one pool for each device and kind, created when it is first requested           (set.rs)
//! ```
//!
//! A lock of a set is held only while the set is read or changed. Pools are created, changed, trimmed and closed outside it, so
//! every callback may use the set.

mod builder;
mod default;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod devices;
mod here;
mod observe;
mod pressure;
mod scope;
mod set;
mod shorthand;
mod stats;
mod upkeep;

pub use builder::PoolsBuilder;
pub use default::{pools, set_default_pools};
pub use here::with_host;
pub use observe::{PoolsBlock, PoolsBlocks};
pub use scope::PoolsScope;
pub use shorthand::draw;
pub use shorthand::{
    alloc, alloc_from, alloc_from_fn, alloc_zeroed, collect_garbage, compact, empty_cache, memory_stats,
    storage,
};
pub use stats::{PoolsEntry, PoolsStats};

use millpond_account::memory::MemoryKind;
use millpond_account::registry::LivePool;
use millpond_os::device::Device;
use millpond_pool::pool::{Pool, PoolBuilder, PoolError};
use set::{PoolPlace, Set};
use std::fmt;
use std::sync::Arc;

/// A set of pools for a process, or a scope of it: one pool for each device and kind of memory. A pool is created when it is first
/// requested.
///
/// Cloning returns another handle of the same set. The set keeps its pools open. When its last handle is dropped, its pools
/// close like other pools, and each pool frees its memory when its last block is freed.
///
/// [`pools`] returns the current set: that of this thread's innermost [scope](Self::enter), or the process's default set, which
/// always exists.
///
/// ```
/// use millpond::{Pool, Pools};
///
/// let set = Pools::with(Pool::builder().limit(1 << 30));
/// assert!(set.stats().pools.is_empty(), "nothing is made before it is asked for");
///
/// let weights = set.host()?.alloc_zeroed::<f32>(1000)?;
/// assert_eq!(set.stats().total.requested.current, 4000);
///
/// // Whatever draws from `pools()` draws from this set in here.
/// set.scope(|| {
///     let temporary = millpond::alloc_zeroed::<f32>(1000)?;
///     assert_eq!(temporary.pool().map(|pool| pool.id()), weights.pool().map(|pool| pool.id()));
///     Ok::<(), millpond::AllocError>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pools {
    set: Arc<Set>,
}

impl Default for Pools {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools")
            .field("pools", &self.set.pools())
            .finish_non_exhaustive()
    }
}

impl Pools {
    /// Creates a set whose pools have the default settings of [`PoolBuilder`].
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Creates a set whose pools are all created by this template. Its limit, capacity and blocks apply to each pool separately. A
    /// [`budget`](PoolBuilder::budget) limits all of them together.
    #[must_use]
    pub fn with(template: PoolBuilder) -> Self {
        Self::builder().template(template).build()
    }

    /// Returns a builder.
    #[must_use]
    pub fn builder() -> PoolsBuilder {
        PoolsBuilder::default()
    }

    /// Returns the pool of ordinary host memory, or of locked memory if the settings contain `pinned:on`.
    ///
    /// # Errors
    /// Returns the errors of [`pool`](Self::pool).
    pub fn host(&self) -> Result<Pool, PoolError> {
        self.pool(Device::Host, MemoryKind::Host)
    }

    /// Returns the pool of locked host memory.
    ///
    /// # Errors
    /// Returns the errors of [`pool`](Self::pool).
    pub fn pinned(&self) -> Result<Pool, PoolError> {
        self.pool(Device::Host, MemoryKind::Pinned)
    }

    /// Returns the pool of a device and kind of memory, and creates it if necessary. It is created once, even if several threads
    /// request it. If this fails, the next call tries again.
    ///
    /// ```
    /// use millpond::{Device, MemoryKind, Pools};
    ///
    /// let set = Pools::new();
    /// let pool = set.pool(Device::Host, MemoryKind::Host)?;
    /// assert_eq!(pool.id(), set.host()?.id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the pool cannot be created with its template or with the settings of `MILLPOND_CONF`. Returns
    /// [`PoolError::Reentered`] if a callback requests the pool while this thread creates it.
    pub fn pool(&self, device: Device, kind: MemoryKind) -> Result<Pool, PoolError> {
        self.set.pool(PoolPlace { device, kind })
    }

    /// Inserts a pool for the device and kind of its memory, and returns the pool that it replaces. The inserted pool does not
    /// receive settings or observers that the set was given before.
    ///
    /// ```
    /// use millpond::{Pool, Pools};
    ///
    /// let set = Pools::new();
    /// let pool = Pool::builder().name("mine").host()?;
    /// assert!(set.insert(pool).is_none());
    /// assert_eq!(set.host()?.name(), "mine");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert(&self, pool: Pool) -> Option<Pool> {
        self.set.insert(pool)
    }

    /// Removes a pool from the set. The next request creates another one.
    pub fn remove(&self, device: Device, kind: MemoryKind) -> Option<Pool> {
        self.set.remove(PoolPlace { device, kind })
    }

    /// Returns the existing pools whose memory the host can access, by device and kind.
    ///
    /// ```
    /// # let set = millpond::Pools::new();
    /// # set.host()?;
    /// for pool in set.iter() {
    ///     println!("{}: {:.1} % in use", pool.name(), 100.0 * pool.stats().utilisation());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> std::vec::IntoIter<Pool> {
        self.set.pools().into_iter()
    }

    /// Returns all existing pools, including those of device memory.
    pub(crate) fn members(&self) -> Vec<Box<dyn LivePool>> {
        let hosts = self.iter().map(|pool| live(&pool));
        #[cfg(feature = "cuda")]
        let devices = self.set.devices.pools().into_iter();
        #[cfg(feature = "cuda")]
        let hosts = hosts.chain(devices.map(|pool| Box::new(pool) as Box<dyn LivePool>));
        hosts.collect()
    }

    /// Returns whether both are handles of one set.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.set, &other.set)
    }
}

impl IntoIterator for &Pools {
    type Item = Pool;
    type IntoIter = std::vec::IntoIter<Pool>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Returns a host pool as a live pool. The result does not keep the pool open.
pub(crate) fn live(pool: &Pool) -> Box<dyn LivePool> {
    Box::new(pool.heap())
}
