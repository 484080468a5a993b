//! The one pool, made on first use.

use crate::fork;
use crate::os;
use crate::pool::{Pool, PoolBuilder, PoolError, PoolHeap};
use crate::reentrancy::inside;
use std::sync::OnceLock;

/// Where two threads make a pool at once, the one that is late throws its own away. Both are set while no fork can begin: else
/// its child would wait for ever for a thread that was at it.
static POOL: OnceLock<Pool> = OnceLock::new();
static MISREAD: OnceLock<PoolError> = OnceLock::new();

/// Makes the pool, or finds it. Not called inside.
pub(super) fn pool() -> Option<&'static Pool> {
    if let Some(pool) = POOL.get() {
        return Some(pool);
    }
    let _inside = inside();
    // A pool takes the most addresses it could need. Half of those there may be is left to stacks and files.
    let half = os::address_limit().map(|limit| limit / 2);
    let half = half.filter(|half| *half < os::machine_memory().1);
    let builder = Pool::builder().name("program").of_a_program(half);
    let (made, builder) = make(builder)?;
    let forks = fork::prevent();
    let late = POOL.set(made);
    drop(forks);
    if late.is_ok() {
        builder.look_after(POOL.get()?);
    }
    drop(late);
    POOL.get()
}

/// The pool, if it was made. Takes no lock.
pub(super) fn made() -> Option<&'static PoolHeap> {
    POOL.get().map(Pool::heap)
}

pub(super) fn heap() -> Option<&'static PoolHeap> {
    pool().map(Pool::heap)
}

pub(super) fn misread() -> Option<&'static PoolError> {
    MISREAD.get()
}

/// A pool with the settings of the environment, or with the defaults where those are none; and what made it.
fn make(builder: PoolBuilder) -> Option<(Pool, PoolBuilder)> {
    match builder.clone().host() {
        Ok(pool) => Some((pool, builder)),
        Err(error @ (PoolError::Settings(_) | PoolError::Environment(_))) => {
            let line = format!("millpond: the defaults are used: {error}\n");
            let forks = fork::prevent();
            let late = MISREAD.set(error);
            drop(forks);
            if late.is_ok() {
                os::say(&line);
            }
            let builder = builder.settings("");
            builder.clone().host().ok().map(|pool| (pool, builder))
        }
        Err(_) => None,
    }
}
