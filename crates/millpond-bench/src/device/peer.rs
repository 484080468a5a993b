//! The driver's own ways to memory, called past the library.

use super::Error;
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::cell::Cell;
use std::sync::Arc;

/// The driver, with a device's primary context on this thread.
pub(super) struct Peer {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    pool: Option<(sys::CUmemoryPool, u64)>,
    /// Calls of `cuMemAlloc` that gave memory.
    taken: Cell<u64>,
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
            taken: Cell::new(0),
        };
        if pools {
            // SAFETY: the device is the context's.
            let pool = unsafe { result::device::get_default_mem_pool(peer.context.cu_device()) }?;
            let before = threshold(pool)?;
            // It keeps what is freed, as programs that want it fast have it do.
            set_threshold(pool, u64::MAX)?;
            peer.pool = Some((pool, before));
        }
        Ok(peer)
    }

    /// `cuMemAlloc`.
    pub(super) fn plain(&self, bytes: usize) -> Result<u64, Error> {
        // SAFETY: nobody reads what is there.
        let address = unsafe { result::malloc_sync(bytes) }?;
        self.taken.set(self.taken.get() + 1);
        Ok(address)
    }

    /// How often that gave memory.
    pub(super) fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// `cuMemFree`.
    pub(super) fn give_plain(&self, address: u64) -> Result<(), Error> {
        // SAFETY: the address came from `plain`, once, and no work is on it.
        Ok(unsafe { result::free_sync(address) }?)
    }

    /// `cuMemAllocAsync` and `cuMemFreeAsync` on a stream.
    pub(super) fn pair_on_stream(&self, bytes: usize) -> Result<(), Error> {
        // SAFETY: nobody reads what is there.
        let address = unsafe { result::malloc_async(self.stream.cu_stream(), bytes) }?;
        // SAFETY: the address was made just now, on the same stream.
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
            // SAFETY: the device's own pool is always there.
            let _ = unsafe { result::mem_pool::trim_to(pool, 0) };
        }
    }
}

fn threshold(pool: sys::CUmemoryPool) -> Result<u64, Error> {
    let mut bytes = 0u64;
    let what = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device's own pool is always there; the attribute is a number of 64 bits, in a local.
    unsafe { result::mem_pool::get_attribute(pool, what, (&raw mut bytes).cast()) }?;
    Ok(bytes)
}

fn set_threshold(pool: sys::CUmemoryPool, mut bytes: u64) -> Result<(), Error> {
    let what = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: as above.
    Ok(unsafe { result::mem_pool::set_attribute(pool, what, (&raw mut bytes).cast()) }?)
}
