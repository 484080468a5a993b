//! Contexts and streams of both libraries.

use crate::error::CudaCoreError;
use cuda_core::{Context, Stream};
use millpond::cuda::{CudaDevice, CudaError, CudaStream};
use std::sync::Arc;

/// Returns the device of a context of cuda-core.
///
/// ```
/// use cuda_core::Context;
/// use millpond::cuda::CudaDevice;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if !cuda_core::sys::is_cuda_driver_available() {
/// #     return Ok(());
/// # }
/// let context = Context::new(0)?;
/// let device = millpond_cuda_core::device_of(&context)?;
/// assert_eq!(device.number(), 0);
/// // The other way.
/// assert_eq!(*Context::new(0)?, *context);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns [`CudaError::OtherContext`] if the context is not the device's primary one, and the errors of the driver.
pub fn device_of(context: &Context) -> Result<CudaDevice, CudaError> {
    let device = CudaDevice::get(number_of(context))?;
    expect_context(&device, context)?;
    Ok(device)
}

/// Returns millpond's handle of a stream of cuda-core. The stream lives as long as either library has a handle of it.
///
/// ```
/// use cuda_core::Context;
/// use millpond::cuda::DevicePool;
/// use millpond_cuda_core::{device_of, stream_of};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if !cuda_core::sys::is_cuda_driver_available() {
/// #     return Ok(());
/// # }
/// let context = Context::new(0)?;
/// let stream = context.new_stream()?;
/// let pool = DevicePool::new(&device_of(&context)?)?;
/// let numbers = pool.alloc_from(&[1.0f32, 2.0], &stream_of(&stream)?)?;
/// assert_eq!(numbers.to_vec()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns the errors of [`device_of`], and [`CudaError::PerThread`] for the per-thread default stream.
pub fn stream_of(stream: &Arc<Stream>) -> Result<CudaStream, CudaError> {
    stream_on(&device_of(stream.context())?, stream)
}

/// Returns cuda-core's handle of a stream of millpond, in a context of cuda-core. The stream lives as long as either library has a handle
/// of it.
///
/// ```
/// use cuda_core::{Context, DeviceBuffer};
/// use millpond::cuda::CudaStream;
/// use millpond_cuda_core::{device_of, stream_in};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if !cuda_core::sys::is_cuda_driver_available() {
/// #     return Ok(());
/// # }
/// let context = Context::new(0)?;
/// let ours = CudaStream::new(&device_of(&context)?)?;
/// let theirs = stream_in(&context, &ours)?;
/// let zeros = DeviceBuffer::<u32>::zeroed(&theirs, 10)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns [`CudaError::OtherDevice`] if the stream and the context belong to different devices, and [`CudaError::OtherContext`] if the
/// context is not the device's primary one. Returns [`CudaCoreError::NotKept`] for a stream that was made by [`CudaStream::from_raw`].
pub fn stream_in(context: &Arc<Context>, stream: &CudaStream) -> Result<Arc<Stream>, CudaCoreError> {
    expect_context(stream.device(), context)?;
    if !stream.is_kept() {
        return Err(CudaCoreError::NotKept);
    }
    let owner = Arc::new(stream.clone());
    // SAFETY: the stream belongs to this context, and its handle keeps it alive.
    Ok(unsafe { Stream::borrow_with_owner(stream.as_raw(), context, owner) })
}

/// Returns a handle of a stream of cuda-core. The stream must belong to the device.
pub(crate) fn stream_on(device: &CudaDevice, stream: &Arc<Stream>) -> Result<CudaStream, CudaError> {
    expect_context(device, stream.context())?;
    // The header's `CU_STREAM_PER_THREAD`.
    if stream.cu_stream().addr() == 2 {
        return Err(CudaError::PerThread);
    }
    let keeper = Arc::new(Arc::clone(stream));
    // SAFETY: the stream belongs to the device's primary context and lives as long as the keeper.
    Ok(unsafe { CudaStream::kept_by(device, stream.cu_stream().cast(), keeper) })
}

/// Returns a handle of a stream of cuda-core for memory of a device. The stream must not be captured: captured work runs later, when the
/// memory may belong to another buffer.
pub(crate) fn running_stream_on(device: &CudaDevice, stream: &Arc<Stream>) -> Result<CudaStream, CudaError> {
    let ours = stream_on(device, stream)?;
    expect_running(&ours)?;
    Ok(ours)
}

/// Checks that a stream is not captured.
pub(crate) fn expect_running(stream: &CudaStream) -> Result<(), CudaError> {
    match stream.is_capturing()? {
        true => Err(CudaError::Capturing),
        false => Ok(()),
    }
}

/// Checks that a context is the device's primary one.
fn expect_context(device: &CudaDevice, context: &Context) -> Result<(), CudaError> {
    let (expected, found) = (device.number(), number_of(context));
    if expected != found {
        return Err(CudaError::OtherDevice { expected, found });
    }
    match device.raw_context() == context.cu_ctx().cast() {
        true => Ok(()),
        false => Err(CudaError::OtherContext { device: expected }),
    }
}

fn number_of(context: &Context) -> u32 {
    u32::try_from(context.ordinal()).unwrap_or(u32::MAX)
}
