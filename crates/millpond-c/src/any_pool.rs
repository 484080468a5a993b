//! Pools of either kind, for the functions that take both.

use crate::handles::{self, HostPool, Kind, Object, millpond_pool};
use crate::open_device::OpenDevicePool;
use crate::status::Failure;
use std::sync::Arc;

/// A pool of either kind.
pub(crate) enum AnyPool {
    Host(&'static HostPool),
    Device(Arc<OpenDevicePool>),
}

/// Calls a method that pools of both kinds have.
macro_rules! of_both {
    ($pool:expr, $method:ident($($argument:expr),*)) => {
        match &$pool {
            AnyPool::Host(entry) => entry.pool.$method($($argument),*),
            AnyPool::Device(entry) => entry.pool.$method($($argument),*),
        }
    };
}

pub(crate) use of_both;

/// Returns the pool of a handle, even if it was destroyed.
pub(crate) fn any_pool(pool: *mut millpond_pool) -> Result<AnyPool, Failure> {
    match handles::find(pool.addr(), Kind::Pool)? {
        Object::Host(entry) => Ok(AnyPool::Host(entry)),
        Object::Device(entry) => Ok(AnyPool::Device(entry)),
        Object::Budget(_) | Object::Recording(_) => {
            Err(Failure::argument("the handle is not a pool: pass a pool"))
        }
    }
}
