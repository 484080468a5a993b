//! The one pool, made on first use.

use super::arena::Space;
use super::{ARENA, inside};
use crate::os;
use crate::pool::{Pool, PoolBuilder, PoolError, PoolHeap, watch_forks};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Held by the thread that makes the pool. It, the arena and what else is asked for on the way are the futex kind of
/// lock, which allocates nothing.
static START: Mutex<()> = Mutex::new(());
static POOL: OnceLock<Pool> = OnceLock::new();
static MISREAD: OnceLock<PoolError> = OnceLock::new();

/// Makes the pool, or finds it. Not called inside.
pub(super) fn pool() -> Option<&'static Pool> {
    if let Some(pool) = POOL.get() {
        return Some(pool);
    }
    let _inside = inside();
    // Before the lock is taken: a fork in between would leave the child a lock that nobody lets go of.
    watch_forks();
    let _start = lock();
    if POOL.get().is_none() {
        // An allocator starts no threads: what is to go back goes by `trim`.
        let mut builder = Pool::builder()
            .name("program")
            .trim_every(None)
            .trim_at_pressure(None);
        let half = os::address_limit().map(|limit| limit / 2);
        if let Some(half) = half.filter(|half| *half < os::machine_memory().1) {
            // A pool takes the most addresses it could need. Half of those there may be is left to stacks and files.
            builder = builder.limit(half);
        }
        let pool = make(builder)?;
        // Nobody else sets it: we have the lock.
        let _ = POOL.set(pool);
    }
    POOL.get()
}

pub(super) fn heap() -> Option<&'static PoolHeap> {
    pool().map(Pool::heap)
}

pub(super) fn misread() -> Option<&'static PoolError> {
    MISREAD.get()
}

/// A pool with the settings of the environment, or with the defaults where those are none.
fn make(builder: PoolBuilder) -> Option<Pool> {
    match builder.clone().host() {
        Ok(pool) => Some(pool),
        Err(error @ (PoolError::Settings(_) | PoolError::Environment(_))) => {
            os::say(&format!("millpond: the defaults are used: {error}\n"));
            let _ = MISREAD.set(error);
            builder.settings("").host().ok()
        }
        Err(_) => None,
    }
}

fn lock() -> MutexGuard<'static, ()> {
    START.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As long as it is held no pool is made for the program. The first lock of a fork.
pub(crate) struct NoStart(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

/// As long as it is held the arena does not change. The last lock of a fork.
pub(crate) struct NoTables(#[expect(dead_code, reason = "held")] MutexGuard<'static, Space>);

pub(crate) fn no_start() -> NoStart {
    NoStart(lock())
}

pub(crate) fn no_tables() -> NoTables {
    NoTables(ARENA.lock())
}
