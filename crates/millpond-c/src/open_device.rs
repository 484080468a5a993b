//! A device pool with the blocks that the program holds.

use crate::status::{Failure, millpond_status};
use millpond::cuda::{DeviceBuffer, DevicePool};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A block that the program holds. It is locked while its bytes are copied.
pub(crate) type Block = Arc<Mutex<DeviceBuffer<u8>>>;

/// A device pool with its blocks.
pub(crate) struct OpenDevicePool {
    pub(crate) pool: DevicePool,
    blocks: Mutex<BTreeMap<usize, Block>>,
    /// Whether the program has destroyed the pool. Its blocks can still be freed.
    destroyed: AtomicBool,
    /// The process that created the pool. In the child of a fork, another thread may have held the lock of the blocks.
    process: u32,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic in the library leaves no partial change, so a poisoned lock is used.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenDevicePool {
    pub(crate) fn new(pool: DevicePool) -> Self {
        Self {
            pool,
            blocks: Mutex::default(),
            destroyed: AtomicBool::new(false),
            process: std::process::id(),
        }
    }

    /// Returns whether this process created the pool. In the child of a fork, it did not.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    /// Refuses later allocations. Returns false if this was called before.
    pub(crate) fn destroy(&self) -> bool {
        !self.destroyed.swap(true, Ordering::AcqRel)
    }

    /// Returns whether the program holds no block. In the child of a fork there are none.
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_of_this_process() || lock(&self.blocks).is_empty()
    }

    /// Adds a block, and returns its address.
    pub(crate) fn add(&self, buffer: DeviceBuffer<u8>) -> usize {
        let address = buffer.address() as usize;
        lock(&self.blocks).insert(address, Arc::new(Mutex::new(buffer)));
        address
    }

    /// Takes the live block at an address out of the list. Only one thread gets it.
    pub(crate) fn remove(&self, address: *const c_void) -> Result<Block, Failure> {
        let block = lock(&self.blocks).remove(&address.addr());
        block.ok_or_else(|| no_block(address))
    }

    /// Returns the live block at an address.
    pub(crate) fn block(&self, address: *const c_void) -> Result<Block, Failure> {
        let block = lock(&self.blocks).get(&address.addr()).cloned();
        block.ok_or_else(|| no_block(address))
    }
}

fn no_block(address: *const c_void) -> Failure {
    Failure::new(
        millpond_status::MILLPOND_INVALID_POINTER,
        format!(
            "no live block of this pool begins at {address:p}: it was freed before, is of another pool, or points into a block"
        ),
    )
}
