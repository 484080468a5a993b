//! Sets of pools: what a process, or a scope of it, draws from.
//!
//! ```text
//!   alloc(n)   memory_stats()                      what acts on the set that holds here      (shorthand.rs)
//!   pools()    this thread's innermost scope,      else the process's default                (scope.rs, default.rs)
//!              as a thread remembers it                                           (here.rs)
//!   Pools      a pool for each device and kind     made when first asked for                 (set.rs)
//! ```
//!
//! A lock of a set is held for a look and no longer: pools are made, changed, trimmed and closed outside it, so
//! whoever is called on the way may ask the set for anything.

mod builder;
mod default;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod devices;
mod here;
mod member;
mod observe;
mod pressure;
mod scope;
mod set;
mod shorthand;
mod stats;
mod upkeep;

pub use builder::PoolsBuilder;
pub use default::{pools, set_default_pools};
#[cfg(feature = "derive")]
pub(crate) use here::with_host;
pub use observe::{PoolsBlock, PoolsBlocks};
pub use scope::PoolsScope;
pub(crate) use shorthand::draw;
pub use shorthand::{
    alloc, alloc_from, alloc_from_fn, alloc_zeroed, collect_garbage, compact, empty_cache, memory_stats,
    storage,
};
pub use stats::{PoolsEntry, PoolsStats};

use crate::device::Device;
use crate::memory::MemoryKind;
use crate::pool::{Pool, PoolBuilder, PoolError};
pub(crate) use member::Member;
use set::{Place, Set};
use std::fmt;
use std::sync::Arc;

/// The pools that a process, or a scope of it, draws from: one for each device and kind of memory, made when it is first
/// asked for.
///
/// Cloning makes another handle of the same set. The set keeps its pools open; when its last handle is gone, they close
/// as pools do, and memory goes back with its last block.
///
/// [`pools`] answers the set that holds here: the [scope](Self::enter) this thread is in, or the process's default, which
/// is there without being made.
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
    /// A set whose pools are as a [`PoolBuilder`] makes them by itself.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A set whose pools are all made by this template; the limit, capacity and blocks it names hold for each of them.
    /// What all of them together may take is a [`budget`](PoolBuilder::budget).
    #[must_use]
    pub fn with(template: PoolBuilder) -> Self {
        Self::builder().template(template).build()
    }

    /// Begins to describe a set.
    #[must_use]
    pub fn builder() -> PoolsBuilder {
        PoolsBuilder::default()
    }

    /// The pool of ordinary memory of this process, or of locked memory where the settings say `pinned:on`.
    ///
    /// # Errors
    /// As [`pool`](Self::pool).
    pub fn host(&self) -> Result<Pool, PoolError> {
        self.pool(Device::Host, MemoryKind::Host)
    }

    /// The pool of memory that is locked in place.
    ///
    /// # Errors
    /// As [`pool`](Self::pool).
    pub fn pinned(&self) -> Result<Pool, PoolError> {
        self.pool(Device::Host, MemoryKind::Pinned)
    }

    /// The pool of a device and kind of memory, made now if it is not there: once, however many threads ask. Where it
    /// could not be made, the next call tries again.
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
    /// Where it cannot be made, by its template or by what `MILLPOND_CONF` says; and [`PoolError::Reentered`] where what
    /// is called while this thread makes it asks for it.
    pub fn pool(&self, device: Device, kind: MemoryKind) -> Result<Pool, PoolError> {
        self.set.pool(Place { device, kind })
    }

    /// Puts a pool into the set, for the device and kind of its memory; answers the one that was there. It stays as it
    /// is: nothing that the set was told before changes it.
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

    /// Takes a pool out of the set; the next one who asks for it has another made.
    pub fn remove(&self, device: Device, kind: MemoryKind) -> Option<Pool> {
        self.set.remove(Place { device, kind })
    }

    /// The pools that are there now, by device and kind, of memory that the host can touch.
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

    /// All that are there, those of devices' own memory too.
    pub(crate) fn members(&self) -> Vec<Box<dyn Member>> {
        let hosts = self.iter().map(|pool| Box::new(pool) as Box<dyn Member>);
        #[cfg(feature = "cuda")]
        let hosts = hosts.chain(self.set.devices.pools().into_iter().map(devices::member));
        hosts.collect()
    }

    /// Whether both are handles of one set.
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
