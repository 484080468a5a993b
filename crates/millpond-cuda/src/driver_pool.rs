//! Memory pools of the driver that are installed for the whole process. Programs use them without a change.

use super::abi::{
    POOL_RELEASE_THRESHOLD, POOL_RESERVED, POOL_RESERVED_PEAK, POOL_USED, POOL_USED_PEAK, PoolHandle,
    PoolProperties,
};
use super::device::CudaDevice;
use super::error::{CudaError, insist};
use millpond_engine::{Gauge, display_size};
use std::ffi::{c_uint, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The first version of CUDA that supports limits of pools.
const LIMITS_SINCE: u32 = 12_020;

/// A memory pool of the driver with a limit and statistics. It can be installed for the stream-ordered allocations of the whole process:
/// those of cudarc, and so of candle, luminal and mistral.rs, without a change of their code.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, DriverPool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let pool = DriverPool::builder().limit(2 << 30).keep(256 << 20).build(&device)?;
/// let installed = pool.install()?;
/// // ... whatever the program does with cudarc ...
/// println!("{}", pool.stats()?);
/// drop(installed); // the previous pool is installed again
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DriverPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: CudaDevice,
    /// Invariant: the handle is a live pool of the driver on this device, and this value owns it.
    handle: PoolHandle,
    limit: Option<u64>,
}

/// Returns the live pools of this process.
fn live() -> MutexGuard<'static, Vec<Weak<Inner>>> {
    static LIVE: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds a memory pool of the driver.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a builder creates nothing until `build` is called"]
pub struct DriverPoolBuilder {
    limit: Option<u64>,
    keep: u64,
}

impl DriverPoolBuilder {
    /// Sets the number of bytes that the pool may reserve. Requests beyond the limit fail as if the device were out of memory. The default
    /// is no limit.
    ///
    /// The driver enforces the limit. This requires CUDA 12.2 or newer. The driver reserves whole chunks and rounds the limit
    /// up to whole chunks, so a pool may reserve slightly more than the limit. [`stats`](DriverPool::stats) reports how much is
    /// reserved.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Sets the bytes that the pool keeps when the device is synchronised. The default is 0, as in the driver: all free memory is then
    /// given back to the system and has to be requested again each time.
    pub fn keep(mut self, bytes: u64) -> Self {
        self.keep = bytes;
        self
    }

    /// Creates the pool.
    ///
    /// # Errors
    /// Returns [`CudaError::Missing`] if the device does not support pools of the driver, [`CudaError::NoBytes`] for a limit of zero bytes,
    /// [`CudaError::OldDriver`] for any limit if the driver is older than CUDA 12.2, and any other error of the driver.
    pub fn build(self, device: &CudaDevice) -> Result<DriverPool, CudaError> {
        if !device.has_pools() {
            return Err(CudaError::Missing {
                function: "cuMemPoolCreate",
            });
        }
        // The driver takes a limit of 0 as no limit.
        if self.limit == Some(0) {
            return Err(CudaError::NoBytes);
        }
        // An older driver has no limit in this field and may ignore the value.
        let found = device.driver().version()?;
        if self.limit.is_some() && found < LIMITS_SINCE {
            return Err(CudaError::OldDriver {
                what: "a limit of the driver's pools",
                needed: LIMITS_SINCE,
                found,
            });
        }
        let _current = device.enter_beside()?;
        let most = usize::try_from(self.limit.unwrap_or(0)).unwrap_or(0);
        let properties = PoolProperties {
            most,
            ..PoolProperties::on(device.handle())
        };
        let mut handle = PoolHandle::NULL;
        // SAFETY: the pointers are to locals.
        unsafe {
            device
                .driver()
                .pool_create(&raw mut handle, &raw const properties)
        }?;
        // From here on the pool is destroyed with its last handle.
        let pool = DriverPool(Arc::new(Inner {
            device: device.clone(),
            handle,
            limit: self.limit,
        }));
        let mut live = live();
        live.retain(|inner| inner.strong_count() > 0);
        live.push(Arc::downgrade(&pool.0));
        drop(live);
        pool.set(POOL_RELEASE_THRESHOLD, self.keep)?;
        Ok(pool)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter_beside() {
            // The driver destroys the pool when all of its memory has been freed.
            // SAFETY: the pool is ours by the invariant, and it is not used any more.
            let _ = insist(|| unsafe { self.device.driver().pool_destroy(self.handle) });
        }
    }
}

/// The bytes of a pool of the driver, as counted by the driver. `Display` writes one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverPoolStats {
    /// The bytes of allocated blocks.
    pub allocated: Gauge,
    /// The bytes that are reserved from the device.
    pub reserved: Gauge,
}

impl fmt::Display for DriverPoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |gauge: Gauge| (display_size(gauge.current), display_size(gauge.peak));
        let ((used, most_used), (reserved, most)) = (of(self.allocated), of(self.reserved));
        write!(
            f,
            "{used} in use of {reserved} reserved, peaks {most_used} and {most}"
        )
    }
}

impl DriverPool {
    /// Returns a builder of a pool.
    pub fn builder() -> DriverPoolBuilder {
        DriverPoolBuilder::default()
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.device
    }

    /// Returns the bytes that the pool may reserve, if there is a limit. This is the limit that was
    /// [requested](DriverPoolBuilder::limit), before the driver rounds it up.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.0.limit
    }

    /// Makes this pool serve all stream-ordered allocations of this process on the device, until the returned value is dropped. Existing
    /// allocations stay where they are.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn install(&self) -> Result<InstalledPool, CudaError> {
        let device = self.device();
        let _current = device.enter_beside()?;
        let mut before = PoolHandle::NULL;
        // SAFETY: the pointer is to a local.
        unsafe { device.driver().device_get_pool(&raw mut before, device.handle()) }?;
        // SAFETY: the pool is ours by the invariant, and the returned value keeps it.
        unsafe { device.driver().device_set_pool(device.handle(), self.0.handle) }?;
        Ok(InstalledPool {
            pool: self.clone(),
            _kept: live()
                .iter()
                .filter_map(Weak::upgrade)
                .find(|inner| inner.handle == before),
            before,
        })
    }

    /// Returns the pool's statistics.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn stats(&self) -> Result<DriverPoolStats, CudaError> {
        let gauge = |current, peak| {
            Ok::<_, CudaError>(Gauge {
                current: self.get(current)?,
                peak: self.get(peak)?,
            })
        };
        Ok(DriverPoolStats {
            allocated: gauge(POOL_USED, POOL_USED_PEAK)?,
            reserved: gauge(POOL_RESERVED, POOL_RESERVED_PEAK)?,
        })
    }

    /// Resets the peaks to the current values.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn reset_peak(&self) -> Result<(), CudaError> {
        self.set(POOL_USED_PEAK, 0)?;
        self.set(POOL_RESERVED_PEAK, 0)
    }

    /// Gives free memory back to the device until the pool reserves at most `keep` bytes. Allocated memory, and memory that a stream has
    /// yet to free, stays reserved.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn trim(&self, keep: u64) -> Result<(), CudaError> {
        let device = self.device();
        let _current = device.enter_beside()?;
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        // SAFETY: the pool is ours by the invariant.
        unsafe { device.driver().pool_trim(self.0.handle, keep) }
    }

    fn get(&self, attribute: c_uint) -> Result<u64, CudaError> {
        let device = self.device();
        let _current = device.enter_beside()?;
        let mut value = 0u64;
        let to: *mut c_void = (&raw mut value).cast();
        // SAFETY: the pool is ours by the invariant. The attribute is a number of 64 bits, in a local.
        unsafe { device.driver().pool_get_attribute(self.0.handle, attribute, to) }?;
        Ok(value)
    }

    fn set(&self, attribute: c_uint, mut value: u64) -> Result<(), CudaError> {
        let device = self.device();
        let _current = device.enter_beside()?;
        let from: *mut c_void = (&raw mut value).cast();
        // SAFETY: as above.
        unsafe { device.driver().pool_set_attribute(self.0.handle, attribute, from) }
    }
}

/// The installation of a [`DriverPool`] on its device, which ends when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it installs the previous pool of the device again"]
pub struct InstalledPool {
    pool: DriverPool,
    before: PoolHandle,
    /// The previous pool, if it is a [`DriverPool`]. It must not be destroyed while it may be installed again.
    _kept: Option<Arc<Inner>>,
}

impl InstalledPool {
    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &DriverPool {
        &self.pool
    }
}

impl Drop for InstalledPool {
    fn drop(&mut self) {
        let device = self.pool.device();
        let Ok(_current) = device.enter_beside() else {
            return;
        };
        let (driver, handle) = (device.driver(), device.handle());
        let mut now = PoolHandle::NULL;
        // SAFETY: the pointer is to a local.
        let asked = insist(|| unsafe { driver.device_get_pool(&raw mut now, handle) });
        // A pool that another library has installed since then stays installed.
        if asked.is_ok() && now == self.pool.0.handle {
            // SAFETY: the pool was the device's before, and lives: it is kept here, or by the other library that has installed it.
            let _ = insist(|| unsafe { driver.device_set_pool(handle, self.before) });
        }
    }
}
