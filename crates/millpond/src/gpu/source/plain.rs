//! Whole segments: of a pool of the driver's own, or one call for each.

use super::{CudaSource, Way};
use crate::gpu::abi::{DevicePtr, POOL_RELEASE_THRESHOLD, PoolHandle, PoolProperties};
use crate::gpu::device::CudaDevice;
use crate::gpu::driver::Driver;
use crate::gpu::error::{CudaError, insist};

impl CudaSource {
    /// A segment at a multiple of its page, if it is at least as large: its address, and where the driver has it begin.
    pub(super) fn take_aligned(&self, bytes: u64) -> Result<(u64, DevicePtr), CudaError> {
        let size = bytes.max(1);
        let start = self.take_plain(size)?;
        if size < self.page || start.is_multiple_of(self.page) {
            return Ok((start, start));
        }
        // What the driver will not have back it frees with the context.
        let _ = self.give_plain(start);
        let start = self.take_plain(size.saturating_add(self.page))?;
        Ok((start.next_multiple_of(self.page), start))
    }

    fn take_plain(&self, bytes: u64) -> Result<DevicePtr, CudaError> {
        let (driver, size) = (self.driver(), usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut address = 0;
        let Way::Pooled(pool, stream) = &self.way else {
            // SAFETY: the pointer is to a local.
            unsafe { driver.allocate(&raw mut address, size) }?;
            return Ok(address);
        };
        // SAFETY: the pointer is to a local, the pool and the stream are ours.
        unsafe { driver.allocate_from_pool(&raw mut address, size, *pool, stream.handle()) }?;
        // From here on every stream may use it.
        if let Err(error) = stream.synchronize() {
            let _ = self.give_plain(address);
            return Err(error);
        }
        Ok(address)
    }

    /// Gives a segment back.
    pub(super) fn give_plain(&self, address: DevicePtr) -> Result<(), CudaError> {
        let driver = self.driver();
        let Way::Pooled(pool, stream) = &self.way else {
            // SAFETY: the segment is ours, and its streams were waited for.
            return insist(|| unsafe { driver.free(address) });
        };
        // SAFETY: as above; the stream is ours.
        insist(|| unsafe { driver.free_async(address, stream.handle()) })?;
        // It has gone; these have the driver let go of it at once.
        let _ = insist(|| stream.synchronize());
        // SAFETY: the pool is ours.
        let _ = insist(|| unsafe { driver.pool_trim(*pool, 0) });
        Ok(())
    }
}

/// A pool that gives back what is free whenever it is waited for: what is kept is ours to decide.
pub(super) fn make_pool(driver: &Driver, device: &CudaDevice) -> Result<PoolHandle, CudaError> {
    let properties = PoolProperties::on(device.handle());
    let (mut pool, mut threshold) = (PoolHandle::NULL, 0u64);
    // SAFETY: the pointers are to locals.
    unsafe { driver.pool_create(&raw mut pool, &raw const properties) }?;
    let value = (&raw mut threshold).cast();
    // SAFETY: the attribute is a number of 64 bits, in a local.
    if let Err(error) = unsafe { driver.pool_set_attribute(pool, POOL_RELEASE_THRESHOLD, value) } {
        // SAFETY: made just now.
        let _ = unsafe { driver.pool_destroy(pool) };
        return Err(error);
    }
    Ok(pool)
}
