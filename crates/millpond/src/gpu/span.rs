//! Bytes on a device, and what is done with them whoever they belong to.

use super::error::CudaError;
use super::stream::CudaStream;

/// Bytes on a device, with the stream that work on them is put on.
///
/// Invariant: they are there, and may be read and written in the order of the stream, as long as what this borrows is; written only
/// by who has them alone.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    address: u64,
    bytes: usize,
    stream: &'a CudaStream,
}

impl<'a> Span<'a> {
    /// # Safety
    /// The invariant holds for `'a`.
    pub(crate) unsafe fn new(address: u64, bytes: usize, stream: &'a CudaStream) -> Self {
        Self {
            address,
            bytes,
            stream,
        }
    }

    /// Returns a part of the bytes, or `None` if it is not inside them.
    #[cfg(feature = "derive")]
    pub(crate) fn part(self, offset: usize, bytes: usize) -> Option<Self> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        inside.then(|| Self {
            address: self.address + offset as u64,
            bytes,
            stream: self.stream,
        })
    }

    /// Makes all bytes zero; does not wait for it.
    pub(crate) fn fill_zero(self) -> Result<(), CudaError> {
        if self.bytes == 0 {
            return Ok(());
        }
        let device = self.stream.device();
        let _current = self.stream.enter()?;
        // SAFETY: the invariant; whoever asks has them alone.
        unsafe {
            device
                .driver()
                .set_bytes(self.address, 0, self.bytes, self.stream.handle())
        }
    }

    /// Copies as many bytes of the same device here and does not wait for it: after what the other's stream has to do by now, and
    /// before what is put there later.
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
            // SAFETY: the invariants of both, of which the other's stream waits for this one below.
            unsafe {
                device
                    .driver()
                    .copy_on_device(self.address, other.address, self.bytes, self.stream.handle())
            }
        };
        // Where the other stream cannot wait, this thread does.
        let ordered = other.stream.wait_for(self.stream);
        ordered.or_else(|_| self.stream.synchronize()).and(copied)
    }

    /// Copies as many bytes from the host, and waits until they are there.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), CudaError> {
        debug_assert_eq!(self.bytes, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        let device = self.stream.device();
        let _current = self.stream.enter()?;
        // SAFETY: both have these bytes; the host's are borrowed until the stream was waited for below.
        let copied = unsafe {
            device.driver().copy_to_device(
                self.address,
                bytes.as_ptr().cast(),
                bytes.len(),
                self.stream.handle(),
            )
        };
        // Also where the driver refused: it may have begun.
        self.stream.wait().and(copied)
    }

    /// Copies the bytes to the host, and waits for them.
    pub(crate) fn read(self, bytes: &mut [u8]) -> Result<(), CudaError> {
        debug_assert_eq!(self.bytes, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        let device = self.stream.device();
        let _current = self.stream.enter()?;
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: both have these bytes; the host's are borrowed until the stream was waited for below.
        let copied = unsafe {
            device
                .driver()
                .copy_to_host(to, self.address, bytes.len(), self.stream.handle())
        };
        self.stream.wait().and(copied)
    }
}

/// Refuses another number of elements.
pub(crate) fn expect_elements(expected: usize, found: usize) -> Result<(), CudaError> {
    if expected == found {
        return Ok(());
    }
    Err(CudaError::Length { expected, found })
}
