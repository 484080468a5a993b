//! Bytes on a device, and the operations on them, for all owners.

use super::error::CudaError;
use super::stream::CudaStream;

/// Bytes on a device, and the stream on which work on them is queued.
///
/// Invariant: the bytes exist, and may be read and written in the order of the stream, for as long as the borrow lasts. They are written
/// only by a caller that has them exclusively.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    address: u64,
    bytes: usize,
    stream: &'a CudaStream,
}

impl<'a> Span<'a> {
    /// # Safety
    /// The invariant must hold for `'a`.
    pub(crate) unsafe fn new(address: u64, bytes: usize, stream: &'a CudaStream) -> Self {
        Self {
            address,
            bytes,
            stream,
        }
    }

    /// Returns a part of the bytes, or `None` if it is not inside them.
    #[cfg(feature = "derive")]
    pub fn part(self, offset: usize, bytes: usize) -> Option<Self> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        inside.then(|| Self {
            address: self.address + offset as u64,
            bytes,
            stream: self.stream,
        })
    }

    /// Queues the zeroing of all bytes, and does not wait for it.
    pub(crate) fn fill_zero(self) -> Result<(), CudaError> {
        if self.bytes == 0 {
            return Ok(());
        }
        let device = self.stream.device();
        let _current = self.stream.enter()?;
        // SAFETY: by the invariant. The caller has the bytes exclusively.
        unsafe {
            device
                .driver()
                .set_bytes(self.address, 0, self.bytes, self.stream.handle())
        }
    }

    /// Copies the same number of bytes of the same device to this span, and does not wait for it. The copy comes after the work that is
    /// queued on the other span's stream now, and before work that is queued there later.
    pub(crate) fn copy_from(self, other: Span<'_>) -> Result<(), CudaError> {
        debug_assert_eq!(self.bytes, other.bytes);
        let device = self.stream.device();
        other.stream.expect_on(device)?;
        if self.bytes == 0 {
            return Ok(());
        }
        self.stream.wait_for(other.stream)?;
        let copied = {
            let _current = self.stream.enter()?;
            // SAFETY: by the invariants of both spans. The other span's stream waits for this one below.
            unsafe {
                device
                    .driver()
                    .copy_on_device(self.address, other.address, self.bytes, self.stream.handle())
            }
        };
        // If the other stream cannot wait, this thread waits.
        let ordered = other.stream.wait_for(self.stream);
        ordered.or_else(|_| self.stream.synchronize()).and(copied)
    }

    /// Copies the same number of bytes from the host, and waits until the copy is complete.
    pub fn write(self, bytes: &[u8]) -> Result<(), CudaError> {
        debug_assert_eq!(self.bytes, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        let device = self.stream.device();
        let _current = self.stream.enter()?;
        // SAFETY: both have these bytes. The host's are borrowed until the stream has been waited for below.
        let copied = unsafe {
            device.driver().copy_to_device(
                self.address,
                bytes.as_ptr().cast(),
                bytes.len(),
                self.stream.handle(),
            )
        };
        // The wait is needed even if the driver refused, because the copy may have begun.
        self.stream.wait().and(copied)
    }

    /// Copies the bytes to the host, and waits until the copy is complete.
    pub fn read(self, bytes: &mut [u8]) -> Result<(), CudaError> {
        debug_assert_eq!(self.bytes, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        let device = self.stream.device();
        let _current = self.stream.enter()?;
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: both have these bytes. The host's are borrowed until the stream has been waited for below.
        let copied = unsafe {
            device
                .driver()
                .copy_to_host(to, self.address, bytes.len(), self.stream.handle())
        };
        self.stream.wait().and(copied)
    }
}

/// Returns an error if the number of elements is not the expected one.
pub(crate) fn expect_elements(expected: usize, found: usize) -> Result<(), CudaError> {
    if expected == found {
        return Ok(());
    }
    Err(CudaError::Length { expected, found })
}
