//! Creates the program's pool on first use.

use crate::pool::{Pool, PoolBuilder, PoolError, PoolHeap};
use millpond_os as os;
use millpond_os::fork;
use millpond_os::reentrancy::inside;
use std::sync::OnceLock;

/// If two threads create a pool at once, the later one drops its own. Both variables are set while no fork can begin.
/// Otherwise the child would wait forever for a thread that was setting them.
static POOL: OnceLock<Pool> = OnceLock::new();
static MISREAD: OnceLock<PoolError> = OnceLock::new();

/// Returns the pool, and creates it if necessary. `of_malloc` says whether its blocks are also freed without their sizes. Not called
/// inside a slow path.
pub(super) fn pool(of_malloc: bool) -> Option<&'static Pool> {
    if let Some(pool) = POOL.get() {
        return Some(pool);
    }
    let _inside = inside();
    #[cfg(feature = "record")]
    if of_malloc {
        millpond_record::leave_out_own_code();
    }
    // A pool reserves as many addresses as it could need. Half of the limit is left to stacks and files.
    let half = address_limit().map(|limit| limit / 2);
    let builder = Pool::builder().name("program").of_a_program(half, of_malloc);
    let (made, builder) = make(builder)?;
    let forks = fork::prevent();
    let late = POOL.set(made);
    drop(forks);
    if late.is_ok() {
        let pool = POOL.get()?;
        pool.heap().announce();
        builder.look_after(pool);
    }
    drop(late);
    POOL.get()
}

/// Returns the process's limit on addresses, if the pool needs a limit because of it.
pub(super) fn address_limit() -> Option<u64> {
    os::address_limit().filter(|limit| limit / 2 < os::machine_memory().1)
}

/// Returns the pool, if it was created. Takes no lock.
pub(super) fn made() -> Option<&'static PoolHeap> {
    POOL.get().map(Pool::heap)
}

pub(super) fn heap(of_malloc: bool) -> Option<&'static PoolHeap> {
    pool(of_malloc).map(Pool::heap)
}

pub(super) fn misread() -> Option<&'static PoolError> {
    MISREAD.get()
}

/// Creates a pool with the settings of the environment, or with the defaults if these are invalid. Returns the pool and its
/// builder.
fn make(builder: PoolBuilder) -> Option<(Pool, PoolBuilder)> {
    match builder.clone().host() {
        Ok(pool) => Some((pool, builder)),
        Err(error @ (PoolError::Settings(_) | PoolError::Environment(_))) => {
            let line = format!("millpond: the default settings are used: {error}\n");
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
