//! Writes words to device memory and reads them back in stream order, without the library that allocated the memory.

use super::Error;
use cudarc::driver::{CudaContext, result, sys};
use millpond::cuda::CudaStream;
use std::sync::Arc;

/// Writes and reads single words of a device's memory.
pub(super) struct Stamps {
    context: Arc<CudaContext>,
}

impl Stamps {
    /// Prepares access to a device's memory on the calling thread.
    ///
    /// # Errors
    /// Returns an error if there is no driver or no such device.
    pub(super) fn new(number: u32) -> Result<Self, Error> {
        let context = CudaContext::new(number as usize)?;
        Ok(Self { context })
    }

    /// Writes a word at an address, after the work that is already queued on the stream.
    ///
    /// # Errors
    /// Returns an error if the driver refuses the write.
    ///
    /// # Safety
    /// The four bytes at the address must be on this device and belong to the caller until the stream has written them.
    pub(super) unsafe fn write(&self, address: u64, word: u32, stream: &CudaStream) -> Result<(), Error> {
        self.context.bind_to_thread()?;
        // SAFETY: the caller guarantees the address. The stream is of this device's primary context.
        let code = unsafe { sys::cuMemsetD32Async(address, word, 1, stream.as_raw().cast()) };
        Ok(code.result()?)
    }

    /// Reads the words at these addresses, after the work that is already queued on the stream, and waits for the stream.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a read.
    ///
    /// # Safety
    /// The four bytes at each address must be on this device and belong to the caller.
    pub(super) unsafe fn read(&self, addresses: &[u64], stream: &CudaStream) -> Result<Vec<u32>, Error> {
        self.context.bind_to_thread()?;
        let mut words = vec![0u32; addresses.len()];
        let stream: sys::CUstream = stream.as_raw().cast();
        let mut outcome = Ok(());
        for (address, word) in addresses.iter().zip(&mut words) {
            // SAFETY: the caller guarantees the address. The word outlives the copy, because this function waits for the stream below.
            let code = unsafe { sys::cuMemcpyDtoHAsync_v2((&raw mut *word).cast(), *address, 4, stream) };
            outcome = code.result();
            if outcome.is_err() {
                break;
            }
        }
        // SAFETY: the stream is of this device's primary context, and the caller holds it.
        let waited = unsafe { result::stream::synchronize(stream) };
        outcome.and(waited)?;
        Ok(words)
    }
}
