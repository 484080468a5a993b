//! Buffers of cuda-core as buffers of millpond.

use crate::error::{CudaCoreError, Refused};
use crate::streams::{device_of, running_stream_on};
use cuda_core::{DeviceCopy, RawDeviceBuffer, Stream, completion};
use millpond::Element;
use millpond::cuda::DeviceBuffer;
use std::sync::Arc;

/// Converts a buffer of cuda-core into a buffer of millpond, without a copy. The new buffer's stream is `stream`. When the new buffer is
/// dropped, the memory returns to cuda-core, which frees it after the work on the stream is complete.
///
/// ```
/// use cuda_core::{Context, DeviceBuffer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if !cuda_core::sys::is_cuda_driver_available() {
/// #     return Ok(());
/// # }
/// let stream = Context::new(0)?.new_stream()?;
/// let theirs = DeviceBuffer::from_host(&stream, &[1.0f32, 2.0])?;
/// let ours = millpond_cuda_core::adopt(theirs, &stream)?;
/// assert_eq!(ours.to_vec()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns the buffer with one of these errors:
/// - [`CudaCoreError::Shared`] if another view of its memory exists;
/// - [`CudaCoreError::Busy`] if work on another stream uses it;
/// - [`CudaCoreError::Cuda`] if the stream is captured, or if its context is not the device's primary one;
/// - [`CudaCoreError::Driver`] if the buffer belongs to another context than the stream, and for the errors of the driver.
pub fn adopt<T: Element + DeviceCopy>(
    buffer: cuda_core::DeviceBuffer<T>,
    stream: &Arc<Stream>,
) -> Result<DeviceBuffer<T>, Refused<cuda_core::DeviceBuffer<T>>> {
    let ready = || {
        let ours = running_stream_on(&device_of(stream.context())?, stream)?;
        if !buffer.storage().is_unique() {
            return Err(CudaCoreError::Shared);
        }
        // cuda-core refuses this if unfinished work on the elements is on another stream, or if the stream belongs to another context.
        let access = buffer.storage().acquire(stream, true, false);
        drop(access.map_err(CudaCoreError::of_access)?);
        Ok(ours)
    };
    let ours = match ready() {
        Ok(ours) => ours,
        Err(error) => return Err(Refused::new(error, buffer)),
    };
    let (address, len) = (buffer.cu_deviceptr(), buffer.len());
    let keeper = Adopted {
        storage: Some(buffer.into_storage()),
        stream: Arc::clone(stream),
    };
    // SAFETY: the storage has these elements, and no other view of it exists. All unfinished work on them is on the stream. When the keeper
    // is dropped, it frees them after the work that is on the stream at that moment.
    Ok(unsafe { DeviceBuffer::foreign(address, len, &ours, Box::new(keeper)) })
}

/// The memory of a buffer of cuda-core that is used by millpond.
///
/// Invariant: the storage is `Some` until the drop, and has no other view.
struct Adopted {
    storage: Option<RawDeviceBuffer>,
    stream: Arc<Stream>,
}

impl Drop for Adopted {
    fn drop(&mut self) {
        if let Some(storage) = self.storage.take() {
            // If the stream cannot be marked, cuda-core never frees the memory.
            let _ = completion::retain_until_complete(storage, &self.stream);
        }
    }
}
