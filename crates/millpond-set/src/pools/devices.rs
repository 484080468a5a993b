//! The pools of device memory in a set, and a queue of each for tensors.

use super::Pools;
use millpond_account::error::AllocError;
use millpond_cuda::{CudaDevice, CudaQueue, CudaStream, DevicePool, DevicePoolError};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One pool for each device, created when it is first requested.
#[derive(Debug, Default)]
pub(super) struct Devices {
    made: Mutex<BTreeMap<u32, DevicePool>>,
    /// The queues of these pools that were requested.
    queues: Mutex<BTreeMap<u32, CudaQueue>>,
}

impl Devices {
    fn made(&self) -> MutexGuard<'_, BTreeMap<u32, DevicePool>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<u32, CudaQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the existing pools. Returns none in the child of a fork: the child cannot use the pools, and a thread that does not
    /// exist in the child may hold the lock of the list.
    pub(super) fn pools(&self) -> Vec<DevicePool> {
        if !millpond_cuda::is_in_use() {
            return Vec::new();
        }
        self.made().values().cloned().collect()
    }
}

impl Pools {
    /// Returns the pool of a CUDA device's memory, and creates it by its [template](super::PoolsBuilder::cuda_template) if
    /// necessary.
    ///
    /// Operations on the set also apply to this pool: statistics, trims, settings, and observers.
    ///
    /// ```
    /// use millpond::cuda::{CudaStream, DevicePoolError};
    /// use millpond::{Device, Pools};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let set = Pools::new();
    /// let pool = match set.cuda(0) {
    ///     Err(DevicePoolError::Cuda(error)) => {
    ///         println!("{error}");
    ///         return Ok(());
    ///     }
    ///     pool => pool?,
    /// };
    /// let held = pool.alloc::<f32>(1000, &CudaStream::new(pool.device())?)?;
    /// assert_eq!(set.stats().on(Device::Cuda(0)).requested.current, 4000);
    /// # drop(held);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if there is no such device, or if its pool cannot be created by the template.
    pub fn cuda(&self, number: u32) -> Result<DevicePool, DevicePoolError> {
        let device = CudaDevice::get(number)?;
        let pool = {
            let mut made = self.set.devices.made();
            if let Some(pool) = made.get(&number) {
                return Ok(pool.clone());
            }
            let pool = self.set.rules.make_cuda(&device)?;
            made.insert(number, pool.clone());
            pool
        };
        // This is called without a lock, because observers of the pool may use the set.
        self.set.tell_cuda(&pool)?;
        Ok(pool)
    }

    /// Returns the queue of a CUDA device's [pool](Self::cuda) and its legacy default stream, and creates it if necessary. Tensors that
    /// are created on a device without an explicit queue use this queue.
    ///
    /// ```
    /// use millpond::cuda::DeviceTensor;
    /// use millpond::{DType, Device};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # if millpond::cuda::CudaDevice::get(0).is_err() { return Ok(()) }
    /// let tensor = DeviceTensor::zeros(Device::Cuda(0), [2, 3], DType::F32)?;
    /// assert_eq!(tensor.pool(), Some(&millpond::pools().cuda(0)?));
    /// assert_eq!(tensor.stream(), millpond::pools().cuda_queue(0)?.stream());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if there is no such device, if its pool cannot be created by the template, or if there is not enough memory for
    /// the queue (8 KiB).
    pub fn cuda_queue(&self, number: u32) -> Result<CudaQueue, AllocError> {
        let pool = self.cuda(number);
        let pool = pool.map_err(|error| AllocError::Pool(Box::new(error)))?;
        let made = |queues: &BTreeMap<u32, CudaQueue>| {
            let queue = queues.get(&number).filter(|queue| *queue.pool() == pool);
            queue.cloned()
        };
        if let Some(queue) = made(&self.set.devices.queues()) {
            return Ok(queue);
        }
        // This is called without a lock, because observers of the pool may use the set.
        let new = pool.on(&CudaStream::legacy(pool.device()))?;
        let mut queues = self.set.devices.queues();
        if let Some(queue) = made(&queues) {
            return Ok(queue);
        }
        let old = queues.insert(number, new.clone());
        drop(queues);
        drop(old);
        new.note_kept();
        Ok(new)
    }

    /// Inserts a pool for its device, and returns the pool that it replaces. The inserted pool does not receive settings or
    /// observers that the set was given before.
    pub fn insert_cuda(&self, pool: DevicePool) -> Option<DevicePool> {
        let number = pool.device().number();
        self.set.devices.made().insert(number, pool)
    }

    /// Removes a device's pool from the set. The next request creates another one.
    pub fn remove_cuda(&self, number: u32) -> Option<DevicePool> {
        if !millpond_cuda::is_in_use() {
            return None;
        }
        let queue = self.set.devices.queues().remove(&number);
        drop(queue);
        self.set.devices.made().remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_os::end_of_child;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn a_child_does_not_wait_for_the_list_of_device_pools() {
        let set = Pools::new();
        let (locked, forked) = (Barrier::new(2), Barrier::new(2));
        let end = thread::scope(|scope| {
            scope.spawn(|| {
                let _made = set.set.devices.made();
                locked.wait();
                forked.wait();
            });
            locked.wait();
            let end = end_of_child(|| {
                set.trim();
                set.remove_cuda(0).is_none()
            });
            forked.wait();
            end
        });
        assert_eq!(end, 0);
    }
}
