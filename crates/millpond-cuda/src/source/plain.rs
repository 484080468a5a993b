//! Whole segments, from a memory pool of the driver or by one call each.

use super::{CudaSource, Way};
use crate::abi::{DevicePtr, POOL_RELEASE_THRESHOLD, PoolHandle, PoolProperties};
use crate::device::CudaDevice;
use crate::driver::Driver;
use crate::error::{CudaError, insist};

impl CudaSource {
    /// Takes a segment, which is aligned to a page if it is at least a page long. Returns its address and the driver's own start address.
    pub(super) fn take_aligned(&self, bytes: u64) -> Result<(u64, DevicePtr), CudaError> {
        let size = bytes.max(1);
        let start = self.take_plain(size)?;
        if size < self.page || start.is_multiple_of(self.page) {
            return Ok((start, start));
        }
        // If the driver refuses, it frees the memory with the context.
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
        // SAFETY: the pointer is to a local, and the pool and the stream are ours.
        unsafe { driver.allocate_from_pool(&raw mut address, size, *pool, stream.handle()) }?;
        // After the wait, every stream may use the segment.
        if let Err(error) = stream.synchronize() {
            let _ = self.give_plain(address);
            return Err(error);
        }
        Ok(address)
    }

    /// Frees a segment.
    pub(super) fn give_plain(&self, address: DevicePtr) -> Result<(), CudaError> {
        let driver = self.driver();
        let Way::Pooled(pool, stream) = &self.way else {
            // SAFETY: the segment is ours, and its streams were waited for.
            return insist(|| unsafe { driver.free(address) });
        };
        // SAFETY: as above, and the stream is ours.
        insist(|| unsafe { driver.free_async(address, stream.handle()) })?;
        // The segment is freed. The following calls make the driver give the memory back to the device at once.
        let _ = insist(|| stream.synchronize());
        // SAFETY: the pool is ours.
        let _ = insist(|| unsafe { driver.pool_trim(*pool, 0) });
        Ok(())
    }
}

/// Creates a pool of the driver that gives back its free memory at each synchronisation, because this library decides how much is cached.
pub(super) fn make_pool(driver: &Driver, device: &CudaDevice) -> Result<PoolHandle, CudaError> {
    let properties = PoolProperties::on(device.handle());
    let (mut pool, mut threshold) = (PoolHandle::NULL, 0u64);
    // SAFETY: the pointers are to locals.
    unsafe { driver.pool_create(&raw mut pool, &raw const properties) }?;
    let value = (&raw mut threshold).cast();
    // SAFETY: the attribute is a number of 64 bits, in a local.
    if let Err(error) = unsafe { driver.pool_set_attribute(pool, POOL_RELEASE_THRESHOLD, value) } {
        // SAFETY: the pool was made just now.
        let _ = unsafe { driver.pool_destroy(pool) };
        return Err(error);
    }
    Ok(pool)
}
