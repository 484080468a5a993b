//! A device's memory without a pool.

use super::{DevicePool, DevicePoolError, Terms};
use crate::device::CudaDevice;
use crate::source::CudaMemory;

/// A device's memory without a pool: each allocation and each free of a buffer is a call of the driver.
///
/// No memory is cached, and each free waits for the device, as the driver's own function does. This suits few, large and long-lived
/// buffers, and serves as a comparison for pools. Cloning makes another handle.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, CudaStream, UnpooledDevice};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let (plain, stream) = (UnpooledDevice::new(&device)?, CudaStream::new(&device)?);
/// let weights = plain.alloc_zeroed::<f32>(1 << 20, &stream)?;
/// assert!(weights.pool().is_none() && plain.held_bytes() >= 4 << 20);
/// drop(weights);
/// assert_eq!(plain.held_bytes(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpooledDevice(DevicePool);

impl UnpooledDevice {
    /// Returns a handle to the memory of a device.
    ///
    /// # Errors
    /// Returns the errors of the driver.
    pub fn new(device: &CudaDevice) -> Result<Self, DevicePoolError> {
        let builder = DevicePool::builder().direct().memory(CudaMemory::Plain);
        let whole = builder.settings("").memory_fraction(1.0).track(None);
        whole.build(device).map(Self)
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        self.0.device()
    }

    /// Returns the bytes held from the device.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.0.stats().reserved.current
    }

    pub(crate) fn requests(&self) -> (&DevicePool, &Terms) {
        self.0.requests()
    }
}
