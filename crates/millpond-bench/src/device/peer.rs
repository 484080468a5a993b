//! The driver's own allocation calls, without the library.

use super::Error;
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::cell::Cell;
use std::sync::Arc;

/// The driver with a device's primary context on this thread.
pub(super) struct Peer {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    pool: Option<(sys::CUmemoryPool, u64)>,
    /// The number of `cuMemAlloc` calls that returned memory.
    allocations: Cell<u64>,
}

impl Peer {
    pub(super) fn new(number: u32, pools: bool) -> Result<Self, Error> {
        let context = CudaContext::new(number as usize)?;
        context.bind_to_thread()?;
        let stream = context.new_stream()?;
        let mut peer = Self {
            context,
            stream,
            pool: None,
            allocations: Cell::new(0),
        };
        if pools {
            // SAFETY: the device belongs to the context.
            let pool = unsafe { result::device::get_default_mem_pool(peer.context.cu_device()) }?;
            let before = threshold(pool)?;
            // The pool keeps freed memory, as fast programs configure it.
            set_threshold(pool, u64::MAX)?;
            peer.pool = Some((pool, before));
        }
        Ok(peer)
    }

    /// Calls `cuMemAlloc`.
    pub(super) fn alloc(&self, bytes: usize) -> Result<u64, Error> {
        // SAFETY: the uninitialised memory is never read.
        let address = unsafe { result::malloc_sync(bytes) }?;
        self.allocations.set(self.allocations.get() + 1);
        Ok(address)
    }

    /// Returns how many calls of `alloc` returned memory.
    pub(super) fn allocations(&self) -> u64 {
        self.allocations.get()
    }

    /// Calls `cuMemFree`.
    pub(super) fn free(&self, address: u64) -> Result<(), Error> {
        // SAFETY: the address came from `alloc`, is freed once, and no work uses it.
        Ok(unsafe { result::free_sync(address) }?)
    }

    /// Calls `cuMemAllocAsync` and `cuMemFreeAsync` on a stream.
    pub(super) fn pair_on_stream(&self, bytes: usize) -> Result<(), Error> {
        // SAFETY: the uninitialised memory is never read.
        let address = unsafe { result::malloc_async(self.stream.cu_stream(), bytes) }?;
        // SAFETY: the address was just allocated on the same stream.
        Ok(unsafe { result::free_async(address, self.stream.cu_stream()) }?)
    }

    pub(super) fn synchronize(&self) -> Result<(), Error> {
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some((pool, before)) = self.pool {
            let _ = self.stream.synchronize();
            let _ = set_threshold(pool, before);
            // SAFETY: the device's default pool always exists.
            let _ = unsafe { result::mem_pool::trim_to(pool, 0) };
        }
    }
}

fn threshold(pool: sys::CUmemoryPool) -> Result<u64, Error> {
    let mut bytes = 0u64;
    let what = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device's default pool always exists. The attribute is a 64-bit number in a local variable.
    unsafe { result::mem_pool::get_attribute(pool, what, (&raw mut bytes).cast()) }?;
    Ok(bytes)
}

fn set_threshold(pool: sys::CUmemoryPool, mut bytes: u64) -> Result<(), Error> {
    let what = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: as above.
    Ok(unsafe { result::mem_pool::set_attribute(pool, what, (&raw mut bytes).cast()) }?)
}
