//! Existing memory of the host that the driver pins for a while.

use super::abi::{HOST_MAPPED, HOST_PORTABLE};
use super::device::CudaDevice;
use super::error::{CudaError, insist};
use super::transfer_error::TransferError;
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::Element;
use millpond_pool::pinned::{is_pinned, note_pinned, note_unpinned};
use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A [`Buffer`] of ordinary memory that the driver has pinned in place. It can be copied like one of [`CudaPinned`](super::CudaPinned). It
/// becomes ordinary memory again by [`into_buffer`](Self::into_buffer) or when it is dropped.
///
/// It owns the buffer, so that the buffer cannot be freed or grown meanwhile. Pinning takes the driver longer than copying the bytes once,
/// so it is worthwhile for a buffer that is copied many times.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, Registered};
/// use millpond::{Pool, source::is_pinned};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let buffer = Pool::host()?.alloc_zeroed::<u8>(1 << 20)?;
/// let mut registered = Registered::new(&device, buffer)?;
/// registered[7] = 1;
/// assert!(is_pinned(registered.as_ptr()));
/// let buffer = registered.into_buffer();
/// assert!(buffer[7] == 1 && !is_pinned(buffer.as_ptr()));
/// # Ok(())
/// # }
/// ```
pub struct Registered<T: Element> {
    /// The registration of the buffer's bytes. It is the first field, so that it is dropped before the buffer.
    registration: Option<Registration>,
    buffer: Buffer<T>,
}

/// Bytes that the driver has pinned, until this is dropped.
struct Registration {
    device: CudaDevice,
    start: *mut c_void,
    bytes: usize,
    /// Whether this registration recorded the memory as pinned. Memory that the system has locked was recorded before.
    noted: bool,
}

// SAFETY: the pointer is never followed here, and the driver takes it from any thread.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.noted {
            note_unpinned(self.start.addr() as u64, self.bytes as u64);
        }
        if let Ok(_current) = self.device.enter_beside() {
            // If the driver refuses, the pages stay pinned, which affects only a later registration of them.
            // SAFETY: the bytes were registered when this was made.
            let _ = insist(|| unsafe { self.device.driver().host_unregister(self.start) });
        }
    }
}

impl<T: Element> Registered<T> {
    /// Pins a buffer for all devices, through this one.
    ///
    /// # Errors
    /// Returns the errors of the driver. The error contains the buffer.
    pub fn new(device: &CudaDevice, buffer: Buffer<T>) -> Result<Self, TransferError<Buffer<T>>> {
        let registration = if buffer.is_empty() {
            None
        } else {
            match register(device, &buffer) {
                Ok(registration) => Some(registration),
                Err(error) => return Err(TransferError::new(error, Some(buffer))),
            }
        };
        Ok(Self { registration, buffer })
    }

    /// Returns the buffer, which is ordinary memory again.
    #[must_use]
    pub fn into_buffer(self) -> Buffer<T> {
        drop(self.registration);
        self.buffer
    }

    pub(super) fn start_mut(&mut self) -> *mut T {
        self.buffer.as_mut_ptr()
    }
}

fn register<T: Element>(device: &CudaDevice, buffer: &Buffer<T>) -> Result<Registration, CudaError> {
    let (start, bytes) = (buffer.as_ptr().cast_mut().cast(), buffer.bytes());
    {
        let _current = device.enter_beside()?;
        // SAFETY: these bytes are the buffer's, which is held until they are unregistered.
        unsafe {
            device
                .driver()
                .host_register(start, bytes, HOST_PORTABLE | HOST_MAPPED)
        }?;
    }
    let noted = !is_pinned(start);
    if noted {
        note_pinned(start.addr() as u64, bytes as u64);
    }
    Ok(Registration {
        device: device.clone(),
        start,
        bytes,
        noted,
    })
}

impl<T: Element> Deref for Registered<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.buffer
    }
}

impl<T: Element> DerefMut for Registered<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.buffer
    }
}

impl<T: Element> fmt::Debug for Registered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("dtype", &T::DTYPE)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
