//! Pools that serve cuda-core's buffers.

use crate::error::CudaCoreError;
use crate::lent::share;
use crate::streams::running_stream_on;
use cuda_core::bytemuck::AnyBitPattern;
use cuda_core::{DeviceCopy, RawDeviceBuffer, Stream};
use millpond::AllocError;
use millpond::cuda::{CudaDevice, CudaStream, DeviceBuffer, DevicePool, DeviceTenant, UnpooledDevice};
use std::sync::Arc;

/// Allocates cuda-core's buffers from a pool, with functions like those of cuda-core itself. The buffers count towards the limits, budgets,
/// recordings and accounts of the pool.
///
/// A buffer may be used like any other of cuda-core. Until the work that was queued on the stream at the allocation is complete, cuda-core
/// refuses work on its other streams. The memory is returned to the pool, in the order of the stream, when no view of it is left and
/// cuda-core has detected that its work on it is complete. cuda-core checks this every millisecond, on a thread of its own.
///
/// ```
/// use cuda_core::Context;
/// use millpond::cuda::DevicePool;
/// use millpond_cuda_core::{CudaCorePool, device_of};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if !cuda_core::sys::is_cuda_driver_available() {
/// #     return Ok(());
/// # }
/// let context = Context::new(0)?;
/// let stream = context.new_stream()?;
/// let pool = DevicePool::builder().limit(8 << 30).build(&device_of(&context)?)?;
///
/// let mut sums = pool.zeroed::<f32>(&stream, 1000)?;
/// let numbers = pool.copied_from_host(&stream, &[1.0f32; 1000])?;
/// sums.copy_from_device_async(&numbers, &stream)?;
/// assert_eq!(sums.to_host_vec(&stream)?[999], 1.0);
/// assert_eq!(pool.stats().requested.current, 8000);
/// # Ok(())
/// # }
/// ```
pub trait CudaCorePool: sealed::Pool {
    /// Allocates elements with arbitrary values for use on a stream.
    ///
    /// # Errors
    /// Returns [`CudaCoreError::Alloc`] if there is not enough memory, an error if the stream belongs to another device or context or is
    /// captured, and the errors of the driver.
    fn uninitialized<T: AnyBitPattern + DeviceCopy>(
        &self,
        stream: &Arc<Stream>,
        len: usize,
    ) -> Result<cuda_core::DeviceBuffer<T>, CudaCoreError> {
        let storage = storage::<T>(self, stream, len, false)?;
        // SAFETY: memory of a device always contains some bytes, and all bytes are valid elements. Only cuda-core's views use the memory.
        Ok(unsafe { cuda_core::DeviceBuffer::from_storage_copy(storage, len) }?)
    }

    /// Allocates elements and queues their zeroing on the stream. Unlike the function of cuda-core, this does not wait for the stream.
    ///
    /// # Errors
    /// Returns the errors of [`uninitialized`](Self::uninitialized).
    fn zeroed<T: DeviceCopy>(
        &self,
        stream: &Arc<Stream>,
        len: usize,
    ) -> Result<cuda_core::DeviceBuffer<T>, CudaCoreError> {
        let storage = storage::<T>(self, stream, len, true)?;
        // SAFETY: zeros are elements. cuda-core refuses work on other streams until they are written. Only its views use the memory.
        Ok(unsafe { cuda_core::DeviceBuffer::from_storage_copy(storage, len) }?)
    }

    /// Allocates elements and copies them from the host. The copy is complete when this returns.
    ///
    /// # Errors
    /// Returns the errors of [`uninitialized`](Self::uninitialized).
    fn copied_from_host<T: DeviceCopy>(
        &self,
        stream: &Arc<Stream>,
        elements: &[T],
    ) -> Result<cuda_core::DeviceBuffer<T>, CudaCoreError> {
        let storage = storage::<T>(self, stream, elements.len(), false)?;
        // SAFETY: the elements are written below, before they can be read. Only cuda-core's views use the memory.
        let buffer = unsafe { cuda_core::DeviceBuffer::from_storage_copy(storage, elements.len()) };
        let mut buffer = buffer?;
        buffer.copy_from_host(stream, elements)?;
        Ok(buffer)
    }
}

impl CudaCorePool for DevicePool {}
impl CudaCorePool for DeviceTenant {}
impl CudaCorePool for UnpooledDevice {}

/// Allocates the memory of elements as an allocation of cuda-core.
fn storage<T>(
    pool: &(impl sealed::Pool + ?Sized),
    stream: &Arc<Stream>,
    len: usize,
    zeroed: bool,
) -> Result<RawDeviceBuffer, CudaCoreError> {
    let bytes = len.checked_mul(size_of::<T>()).ok_or(AllocError::UNCOUNTABLE)?;
    let ours = running_stream_on(pool.on(), stream)?;
    let buffer = pool.bytes(bytes, &ours, zeroed)?;
    share(buffer, stream).1
}

mod sealed {
    use super::{AllocError, CudaDevice, CudaStream, DeviceBuffer};

    pub trait Pool {
        fn on(&self) -> &CudaDevice;
        fn bytes(
            &self,
            len: usize,
            stream: &CudaStream,
            zeroed: bool,
        ) -> Result<DeviceBuffer<u8>, AllocError>;
    }
}

macro_rules! impl_pool {
    ($($pool:ty, $on:expr;)*) => {
        $(impl sealed::Pool for $pool {
            fn on(&self) -> &CudaDevice {
                let on: fn(&Self) -> &CudaDevice = $on;
                on(self)
            }

            fn bytes(&self, len: usize, stream: &CudaStream, zeroed: bool) -> Result<DeviceBuffer<u8>, AllocError> {
                match zeroed {
                    true => self.alloc_zeroed(len, stream),
                    false => self.alloc(len, stream),
                }
            }
        })*
    };
}

impl_pool! {
    DevicePool, |pool| pool.device();
    DeviceTenant, |tenant| tenant.pool().device();
    UnpooledDevice, |direct| direct.device();
}
