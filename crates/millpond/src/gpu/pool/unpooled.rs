//! A device's memory without a pool.

use super::{DevicePool, DevicePoolError};
use crate::dtype::Element;
use crate::error::AllocError;
use crate::gpu::buffer::DeviceBuffer;
use crate::gpu::device::CudaDevice;
use crate::gpu::queue::CudaQueue;
use crate::gpu::source::CudaMemory;
use crate::gpu::stream::CudaStream;

/// A device's memory used as it is: each buffer is a call of the driver's when it is made, and one when it is freed.
///
/// No pool stands between, so nothing is kept back, and each free waits for the device, as the driver's own does. That suits
/// few, large and long-lived buffers, and shows what a pool saves. Cloning makes another handle.
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
    /// The memory of a device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &CudaDevice) -> Result<Self, DevicePoolError> {
        let builder = DevicePool::builder().direct().memory(CudaMemory::Plain);
        let whole = builder.settings("").memory_fraction(1.0).track(None);
        whole.build(device).map(Self)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        self.0.device()
    }

    /// The device's memory with a stream for work: what [tensors](crate::cuda::DeviceTensor) and
    /// [workspaces](crate::cuda::DeviceWorkspace) are made on.
    ///
    /// # Errors
    /// As [`DevicePool::on`].
    pub fn on(&self, stream: &CudaStream) -> Result<CudaQueue, AllocError> {
        self.0.on(stream)
    }

    /// Bytes held from the device.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.0.stats().reserved.current
    }

    /// As [`DevicePool::alloc`].
    ///
    /// # Errors
    /// As there.
    pub fn alloc<T: Element>(&self, len: usize, stream: &CudaStream) -> Result<DeviceBuffer<T>, AllocError> {
        self.0.alloc(len, stream)
    }

    /// As [`DevicePool::alloc_zeroed`].
    ///
    /// # Errors
    /// As there.
    pub fn alloc_zeroed<T: Element>(
        &self,
        len: usize,
        stream: &CudaStream,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        self.0.alloc_zeroed(len, stream)
    }

    /// As [`DevicePool::alloc_from`].
    ///
    /// # Errors
    /// As there.
    pub fn alloc_from<T: Element>(
        &self,
        elements: &[T],
        stream: &CudaStream,
    ) -> Result<DeviceBuffer<T>, AllocError> {
        self.0.alloc_from(elements, stream)
    }
}
