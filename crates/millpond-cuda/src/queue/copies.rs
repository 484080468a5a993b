//! Copies between ordinary memory of the host and the tensors of a queue.
//!
//! Large copies go through pinned slots, because the driver copies ordinary memory with one thread and without overlap. If there is no free
//! slot, or slots would not make the copy faster, the driver copies directly. So no copy fails because pinned memory is short.

use super::CudaQueue;
use crate::buffer::DeviceBuffer;
use crate::error::CudaError;
use crate::kernels;
use crate::pinned::is_known;
use crate::staging::Staging;
use crate::stream::CudaStream;
use crate::stream::mark::expect_uncaptured;

/// The smallest copy through pinned slots, in bytes. On a machine with an H200 and 16 threads, a copy of 1 MiB is slower through slots, one
/// of 16 MiB twice as fast, and one of 256 MiB four to six times as fast (`docs/measured/h200.md`).
const LEAST: usize = 16 << 20;

impl CudaQueue {
    /// Returns the slots for a copy, or `None` if the copy is faster without slots or cannot use them.
    fn slots_for(&self, stream: &CudaStream, host: *const u8, bytes: usize) -> Option<&Staging> {
        let is_large = bytes >= LEAST && millpond_os::threads() > 1;
        if !is_large || expect_uncaptured(stream).is_err() {
            return None;
        }
        // The driver copies memory that it has pinned at the full speed of the link.
        if is_known(self.device(), host, bytes).unwrap_or(true) {
            return None;
        }
        if self.0.staging.get().is_none() {
            let staging = Staging::of_queues(self.device()).ok()?;
            // Another thread may have set the same one.
            let _ = self.0.staging.set(staging);
        }
        self.0.staging.get()
    }

    /// Copies bytes from the host. Returns when they have been read, in the order of the buffer's stream.
    #[doc(hidden)]
    pub fn write(&self, bytes: &[u8], to: &mut DeviceBuffer<u8>) -> Result<(), CudaError> {
        match self.slots_for(to.stream(), bytes.as_ptr(), bytes.len()) {
            Some(staging) => staging.upload(bytes, to),
            None => to.copy_from_host(bytes),
        }
    }

    /// Copies bytes to the host, in the order of the stream, and waits until the copy is complete.
    ///
    /// # Safety
    /// The address must have at least that many bytes of this device, and they must be used only in the order of the stream.
    #[doc(hidden)]
    pub unsafe fn read(&self, stream: &CudaStream, from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        match self.slots_for(stream, bytes.as_ptr(), bytes.len()) {
            // SAFETY: the caller guarantees the address, and the stream is not captured.
            Some(staging) => unsafe { staging.receive(stream, from, bytes) },
            // SAFETY: the caller guarantees the address.
            None => unsafe { kernels::read(stream, from, bytes) },
        }
    }
}
