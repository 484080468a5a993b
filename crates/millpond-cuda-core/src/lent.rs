//! Buffers of millpond as allocations of cuda-core.

use crate::error::{CudaCoreError, Refused};
use crate::streams::{expect_running, running_stream_on};
use cuda_core::{Context, DeviceAllocation, DeviceCopy, RawDeviceBuffer, Stream};
use millpond::Element;
use millpond::cuda::{CudaStream, DeviceBuffer};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// A buffer of millpond that is an allocation of cuda-core.
///
/// Invariant: until the buffer is taken, the elements are at the address and are only used through cuda-core. Only the holder of the last
/// view of the allocation takes the buffer, and then drops the view.
pub(crate) struct Owner<T: Element> {
    buffer: Mutex<Option<DeviceBuffer<T>>>,
    address: u64,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: by the invariant, the elements are at the address as long as the address can be used. The context is kept.
unsafe impl<T: Element> DeviceAllocation for Owner<T> {
    fn device_ptr(&self) -> u64 {
        self.address
    }

    fn len_bytes(&self) -> usize {
        self.bytes
    }

    fn context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }
}

impl<T: Element> Owner<T> {
    fn take(&self) -> Option<DeviceBuffer<T>> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.take()
    }
}

/// Converts a buffer into an allocation of cuda-core. cuda-core refuses work on other streams until the work that is queued on the stream
/// now is complete. The stream must be the buffer's stream or must wait for it. It must not be captured.
///
/// If cuda-core refuses, the owner still has the buffer.
pub(crate) fn share<T: Element>(
    buffer: DeviceBuffer<T>,
    stream: &Arc<Stream>,
) -> (Arc<Owner<T>>, Result<RawDeviceBuffer, CudaCoreError>) {
    let owner = Arc::new(Owner {
        address: buffer.address(),
        bytes: buffer.len() * size_of::<T>(),
        context: Arc::clone(stream.context()),
        buffer: Mutex::new(Some(buffer)),
    });
    let storage = RawDeviceBuffer::foreign(Arc::clone(&owner) as _, owner.bytes);
    if owner.bytes == 0 {
        return (owner, Ok(storage));
    }
    let registered = storage.acquire(stream, true, false);
    let registered = registered.and_then(|access| access.retain_until_complete(stream));
    (
        owner,
        registered.map(|()| storage).map_err(CudaCoreError::of_access),
    )
}

/// A buffer of millpond that is lent to cuda-core, and derefs to a [`DeviceBuffer`](cuda_core::DeviceBuffer) of cuda-core.
///
/// When this is dropped, the memory is returned to its pool as soon as no view of it is left and the work of cuda-core on it is complete.
pub struct Lent<T: Element + DeviceCopy> {
    theirs: cuda_core::DeviceBuffer<T>,
    owner: Arc<Owner<T>>,
    /// The identity of the owner's allocation. While the allocation exists, no other has it.
    allocation: usize,
    /// The loan's stream, as a handle of cuda-core and (`ours`) of millpond.
    stream: Arc<Stream>,
    ours: CudaStream,
    /// The buffer's own stream.
    home: CudaStream,
}

/// Lends a buffer to cuda-core, for use on one of its streams. That stream waits, on the device, for the work that is queued on the
/// buffer's stream now. Until this work is complete, cuda-core refuses work on its other streams.
///
/// ```
/// use cuda_core::Context;
/// use millpond::cuda::{CudaStream, DevicePool};
/// use millpond_cuda_core::{device_of, lend};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if !cuda_core::sys::is_cuda_driver_available() {
/// #     return Ok(());
/// # }
/// let context = Context::new(0)?;
/// let theirs = context.new_stream()?;
/// let device = device_of(&context)?;
/// let (pool, ours) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let numbers = pool.alloc_from(&[1.0f32, 2.0], &ours)?;
/// let mut lent = lend(numbers, &theirs)?;
/// assert_eq!(lent.to_host_vec(&theirs)?, [1.0, 2.0]);
/// lent.copy_from_host(&theirs, &[3.0, 4.0])?;
/// let numbers = lent.take_back()?;
/// assert_eq!(numbers.to_vec()?, [3.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns the buffer with an error if the stream belongs to another device or context, if it or the buffer's stream is captured, and with
/// the errors of the driver.
pub fn lend<T: Element + DeviceCopy>(
    buffer: DeviceBuffer<T>,
    stream: &Arc<Stream>,
) -> Result<Lent<T>, Refused<DeviceBuffer<T>>> {
    let mut buffer = buffer;
    let home = buffer.stream().clone();
    let mut ready = || {
        let ours = running_stream_on(home.device(), stream)?;
        expect_running(&home)?;
        buffer.order_before(&ours)?;
        buffer.record_use(&ours)?;
        Ok::<_, CudaCoreError>(ours)
    };
    let ours = match ready() {
        Ok(ours) => ours,
        Err(error) => return Err(Refused::new(error, buffer)),
    };
    let len = buffer.len();
    let (owner, storage) = share(buffer, stream);
    let theirs = storage.and_then(|storage| {
        let allocation = storage.allocation_id();
        // SAFETY: memory of a device always contains some bytes, and all bytes are valid elements. Only cuda-core's views use the memory.
        let theirs = unsafe { cuda_core::DeviceBuffer::from_storage_copy(storage, len) }?;
        Ok((theirs, allocation))
    });
    match theirs {
        Ok((theirs, allocation)) => Ok(Lent {
            theirs,
            owner,
            allocation,
            stream: Arc::clone(stream),
            ours,
            home,
        }),
        Err(error) => match owner.take() {
            Some(buffer) => Err(Refused::new(error, buffer)),
            None => unreachable!("only `take_back` takes the buffer"),
        },
    }
}

impl<T: Element + DeviceCopy> Lent<T> {
    /// Returns the buffer of millpond. Its stream waits, on the device, for the work of cuda-core. The host does not wait.
    ///
    /// # Errors
    /// Returns this value with [`CudaCoreError::Shared`] if another view of the elements exists, with [`CudaCoreError::Busy`] if work on
    /// another stream than the loan's uses them, and with the errors of the driver.
    pub fn take_back(self) -> Result<DeviceBuffer<T>, Refused<Self>> {
        let mut lent = self;
        match lent
            .end()
            .and_then(|()| lent.owner.take().ok_or(CudaCoreError::Shared))
        {
            Ok(buffer) => Ok(buffer),
            Err(error) => Err(Refused::new(error, lent)),
        }
    }

    /// Returns the buffer of cuda-core. It cannot be taken back. The memory is returned to its pool as soon as no view of it is left and
    /// the work of cuda-core on it is complete.
    #[must_use]
    pub fn into_theirs(self) -> cuda_core::DeviceBuffer<T> {
        self.theirs
    }

    /// Makes the buffer's stream wait for all work of cuda-core on the elements. Afterwards, this value has the only view of the elements.
    fn end(&mut self) -> Result<(), CudaCoreError> {
        // If the allocation has ended, no view is left. The caller may have exchanged the buffer for another.
        let has_ended = Arc::get_mut(&mut self.owner).is_some();
        let storage = self.theirs.storage();
        if !has_ended && (storage.allocation_id() != self.allocation || !storage.is_unique()) {
            return Err(CudaCoreError::Shared);
        }
        expect_running(&self.ours)?;
        expect_running(&self.home)?;
        if !has_ended {
            // This is refused unless all unfinished work on the elements is on the stream.
            let access = storage.acquire(&self.stream, true, false);
            drop(access.map_err(CudaCoreError::of_access)?);
        }
        self.home.wait_for(&self.ours)?;
        Ok(())
    }
}

impl<T: Element + DeviceCopy> Deref for Lent<T> {
    type Target = cuda_core::DeviceBuffer<T>;

    fn deref(&self) -> &Self::Target {
        &self.theirs
    }
}

impl<T: Element + DeviceCopy> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.theirs
    }
}

impl<T: Element + DeviceCopy> fmt::Debug for Lent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("storage", self.theirs.storage())
            .field("stream", &self.ours)
            .finish_non_exhaustive()
    }
}
