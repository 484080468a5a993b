//! Words written into memory of a device and read back, in the order of a stream, past the library that placed it.

use super::Error;
use cudarc::driver::{CudaContext, result, sys};
use millpond::cuda::CudaStream;
use std::sync::Arc;

/// Writes and reads single words of a device's memory.
pub(super) struct Stamps {
    context: Arc<CudaContext>,
}

impl Stamps {
    /// For memory of this device, on the calling thread.
    ///
    /// # Errors
    /// Where there is no driver or device.
    pub(super) fn new(number: u32) -> Result<Self, Error> {
        let context = CudaContext::new(number as usize)?;
        Ok(Self { context })
    }

    /// Writes a word at an address, after what the stream does before.
    ///
    /// # Errors
    /// Where the driver refuses.
    ///
    /// # Safety
    /// The four bytes are the caller's, on this device, until the stream has passed them.
    pub(super) unsafe fn write(&self, address: u64, word: u32, stream: &CudaStream) -> Result<(), Error> {
        self.context.bind_to_thread()?;
        // SAFETY: the caller's; the stream is of this device's primary context.
        let code = unsafe { sys::cuMemsetD32Async(address, word, 1, stream.as_raw().cast()) };
        Ok(code.result()?)
    }

    /// Reads the words at these addresses, after what the stream does before, and waits for them.
    ///
    /// # Errors
    /// Where the driver refuses.
    ///
    /// # Safety
    /// The four bytes at each are the caller's, on this device.
    pub(super) unsafe fn read(&self, addresses: &[u64], stream: &CudaStream) -> Result<Vec<u32>, Error> {
        self.context.bind_to_thread()?;
        let mut words = vec![0u32; addresses.len()];
        let stream: sys::CUstream = stream.as_raw().cast();
        let mut outcome = Ok(());
        for (address, word) in addresses.iter().zip(&mut words) {
            // SAFETY: the caller's; the word outlives the copy, which is waited for below.
            let code = unsafe { sys::cuMemcpyDtoHAsync_v2((&raw mut *word).cast(), *address, 4, stream) };
            outcome = code.result();
            if outcome.is_err() {
                break;
            }
        }
        // SAFETY: a stream of this device's primary context, which the caller has.
        let waited = unsafe { result::stream::synchronize(stream) };
        outcome.and(waited)?;
        Ok(words)
    }
}
