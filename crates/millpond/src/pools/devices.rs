//! A set's pools of devices' own memory.

use super::Pools;
use super::member::Member;
use crate::gpu::{CudaDevice, DevicePool, DevicePoolBuilder, DevicePoolError};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One for each device, made when it is first asked for.
#[derive(Debug, Default)]
pub(super) struct Devices {
    made: Mutex<Vec<DevicePool>>,
}

impl Devices {
    fn made(&self) -> MutexGuard<'_, Vec<DevicePool>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that are there; none in a process that was forked, where they serve nobody and the list may be held by a thread that
    /// is not there.
    pub(super) fn pools(&self) -> Vec<DevicePool> {
        if crate::gpu::is_forked() {
            return Vec::new();
        }
        self.made().clone()
    }
}

impl Pools {
    /// The pool of a CUDA device's own memory, made now if it is not there, by its [template](super::PoolsBuilder::cuda_template).
    ///
    /// What acts on the set acts on it too: figures, trims, settings, and whoever watches.
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
    /// Where there is no such device, or its pool cannot be made as the template says.
    pub fn cuda(&self, number: u32) -> Result<DevicePool, DevicePoolError> {
        let device = CudaDevice::get(number)?;
        let pool = {
            let mut made = self.set.devices.made();
            if let Some(pool) = made.iter().find(|pool| pool.device().number() == number) {
                return Ok(pool.clone());
            }
            let pool = self.set.make_cuda(&device)?;
            made.push(pool.clone());
            made.sort_by_key(|pool| pool.device().number());
            pool
        };
        // Whoever hears of it may ask the set for anything.
        self.set.tell_cuda(&pool)?;
        Ok(pool)
    }

    /// Puts a pool into the set, for its device; answers the one that was there. It stays as it is: nothing that the set was told
    /// before changes it.
    pub fn insert_cuda(&self, pool: DevicePool) -> Option<DevicePool> {
        let mut made = self.set.devices.made();
        let number = pool.device().number();
        let before = made.iter().position(|other| other.device().number() == number);
        let before = before.map(|at| made.remove(at));
        made.push(pool);
        made.sort_by_key(|pool| pool.device().number());
        before
    }

    /// Takes a device's pool out of the set; the next one who asks for it has another made.
    pub fn remove_cuda(&self, number: u32) -> Option<DevicePool> {
        let mut made = self.set.devices.made();
        let at = made.iter().position(|pool| pool.device().number() == number)?;
        Some(made.remove(at))
    }
}

/// How the pools of devices are made.
pub(super) fn make(
    template: Option<&DevicePoolBuilder>,
    name: Option<&str>,
    device: &CudaDevice,
) -> Result<DevicePool, DevicePoolError> {
    let mut builder = template.cloned().unwrap_or_default();
    if !builder.has_name() {
        let place = format!("cuda:{}", device.number());
        builder = builder.name(match name {
            Some(name) => format!("{name} {place}"),
            None => place,
        });
    }
    builder.build(device)
}

pub(super) fn member(pool: DevicePool) -> Box<dyn Member> {
    Box::new(pool)
}
