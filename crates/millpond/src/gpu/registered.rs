//! Memory of the host that is there already, pinned by the driver for a while.

use super::abi::{HOST_MAPPED, HOST_PORTABLE};
use super::device::CudaDevice;
use super::error::{CudaError, insist};
use super::transfer::TransferError;
use crate::buffer::Buffer;
use crate::dtype::Element;
use crate::pinned::{is_pinned, note_pinned, note_unpinned};
use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A [`Buffer`] of ordinary memory that the driver has pinned where it is: copied like one of [`CudaPinned`](super::CudaPinned), and
/// ordinary again after [`into_buffer`](Self::into_buffer) or when dropped.
///
/// It owns the buffer, so that nobody gives it back or grows it meanwhile. To pin takes the driver longer than to copy the bytes
/// once: it pays where a buffer is copied again and again.
///
/// ```
/// use millpond::cuda::{CudaDevice, CudaError, Registered};
/// use millpond::{Pool, is_pinned};
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
    /// Of the buffer's bytes. First, so that it ends before they go.
    registration: Option<Registration>,
    buffer: Buffer<T>,
}

/// Bytes that the driver has pinned, until it is dropped.
struct Registration {
    device: CudaDevice,
    start: *mut c_void,
    bytes: usize,
    /// Whether it is us who have noted it as pinned: memory locked by the system was noted before.
    noted: bool,
}

// SAFETY: the pointer is never followed here; the driver takes it from any thread.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.noted {
            note_unpinned(self.start.addr() as u64, self.bytes as u64);
        }
        if let Ok(_current) = self.device.enter_beside() {
            // A driver that refuses leaves the pages where they are, which nobody minds but the next who registers them.
            // SAFETY: registered when this was made.
            let _ = insist(|| unsafe { self.device.driver().host_unregister(self.start) });
        }
    }
}

impl<T: Element> Registered<T> {
    /// Pins a buffer for all devices, by way of this one.
    ///
    /// # Errors
    /// What the driver says: the buffer comes back with it.
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

    /// The buffer, ordinary again.
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
