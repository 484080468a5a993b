//! The process's default set.

use super::{Pools, here, scope};
use millpond_os::fork::Participant;
use millpond_os::ranked::{InTurn, Rank, Shared};
use millpond_os::reentrancy::inside;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

/// The default set. Every thread that accesses any set also holds this lock for reading. A fork therefore only needs to hold
/// this lock for writing to keep all sets unchanged.
static DEFAULT: Shared<Option<Pools>> = Shared::new(Rank::Sets, None);

type Read = InTurn<RwLockReadGuard<'static, Option<Pools>>>;
type Write = InTurn<RwLockWriteGuard<'static, Option<Pools>>>;

static FORKS: Participant = Participant::new(Rank::Sets, || Box::new(DEFAULT.write()));

fn read() -> Read {
    FORKS.register();
    DEFAULT.read()
}

fn write() -> Write {
    FORKS.register();
    DEFAULT.write()
}

/// A guard that keeps a fork from beginning. Only locks of sets are taken while it is held.
pub(super) struct AtWork(#[expect(dead_code, reason = "held")] Read);

pub(super) fn at_work() -> AtWork {
    AtWork(read())
}

/// Returns the current set of pools: that of this thread's innermost [scope](Pools::enter), or the process's default set.
///
/// The default set always exists. Its pools are created when they are first requested, with the settings of `MILLPOND_CONF`.
/// Invalid settings cause an error in the call that needs the pool. The host's pool has blocks of 64 B to 64 KiB ready from the
/// start ([`Prewarm::small_sizes`](millpond_pool::Prewarm::small_sizes)), unless `MILLPOND_CONF` sets another `prewarm` or a limit below 16
/// MiB. These are only addresses. They get memory when they are first used.
///
/// This takes a lock. Where the cost matters, get the pool once, or allocate with [`alloc`](crate::alloc()) and similar functions,
/// for which each thread caches the pool.
///
/// ```
/// use millpond::pools;
///
/// let pool = pools().host()?;
/// let buffer = pool.alloc_zeroed::<f32>(1000)?;
/// assert!(millpond::memory_stats().total.requested.current >= 4000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn pools() -> Pools {
    if let Some(pools) = scope::innermost() {
        return pools;
    }
    if let Some(pools) = &*read() {
        return pools.clone();
    }
    let _inside = inside();
    let new = Pools::builder().carve_small_sizes().build();
    // The spare set is dropped outside the lock.
    let spare;
    let pools = {
        let mut default = write();
        match &*default {
            Some(pools) => {
                spare = Some(new);
                pools.clone()
            }
            None => {
                spare = None;
                default.insert(new).clone()
            }
        }
    };
    drop(spare);
    pools
}

/// Makes a set the process's default for all threads, and returns the previous one. Threads that are in a scope stay in it, and
/// blocks return to the pools that they came from. A thread that used the previous set with [`alloc`](crate::alloc()) or similar
/// functions keeps that set's host pool open until it calls one of them again, or ends.
///
/// ```
/// use millpond::{Pool, Pools, set_default_pools};
///
/// let before = set_default_pools(Pools::with(Pool::builder().limit(1 << 30)));
/// assert_eq!(millpond::alloc_zeroed::<f32>(1000)?.len(), 1000);
/// before.clear();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn set_default_pools(pools: Pools) -> Pools {
    let before = write().replace(pools);
    here::changed();
    before.unwrap_or_else(|| Pools::builder().carve_small_sizes().build())
}
