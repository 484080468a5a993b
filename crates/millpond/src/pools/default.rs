//! The set that holds where no scope says otherwise.

use super::{Pools, here, scope};
use crate::fork::Participant;
use crate::ranked::{InTurn, Rank, Shared};
use crate::reentrancy::inside;
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

/// The default. Read by every thread that looks into any set too, so that around a fork one lock brings all of them to
/// rest.
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

/// As long as it is held no fork begins. Nothing is called under it but locks of sets.
pub(super) struct AtWork(#[expect(dead_code, reason = "held")] Read);

pub(super) fn at_work() -> AtWork {
    AtWork(read())
}

/// The set of pools that holds here: that of the innermost [scope](Pools::enter) this thread is in, else the process's
/// default.
///
/// The default is there without being made. Its pools are made when they are first asked for, with what `MILLPOND_CONF`
/// says; what cannot be read there is an error of the call that needs the pool. The host's pool has blocks of 64 B to
/// 64 KiB ready from the start ([`Prewarm::small_sizes`](crate::Prewarm::small_sizes)), unless `MILLPOND_CONF` says another
/// `prewarm`, or a limit below 16 MiB. They are addresses: memory is behind them when they are first used.
///
/// It takes a lock to ask. Where that counts, ask once for the pool; or draw from it with [`alloc`](crate::alloc()) and the
/// others like it, for which each thread remembers the pool.
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
    // What is not needed after all is dropped outside the lock.
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

/// Makes a set the process's default, for all threads; answers the one before. Threads that are in a scope stay in it,
/// and blocks go back to the pools that they are from. A thread that drew from the set before with the likes of
/// [`alloc`](crate::alloc()) keeps its host's pool open until it does so again, or ends.
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
