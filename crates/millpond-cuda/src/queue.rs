//! A pool and a stream, on which tensors are allocated and their work is queued.

mod copies;
pub mod products;

use super::buffer::DeviceBuffer;
use super::device::CudaDevice;
use super::pool::{DevicePool, UnpooledDevice};
use super::staging::Staging;
use super::stream::CudaStream;
use millpond_account::error::AllocError;
use products::Products;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use products::MatmulBackend;

/// The maximum number of partial sums of a large sum.
pub const PARTS: usize = 1024;

/// A pool and a stream of its device, which provide the memory for tensors and the order of their work. It is made by [`DevicePool::on`].
///
/// It holds 8 KiB and 8 bytes of the pool for partial sums, and after a product of matrices the workspace of
/// [cuBLAS](Self::matmul_backend). After a copy of at least 16 MiB of ordinary memory, it also uses 32 MiB of pinned memory that all queues
/// of the device share. Cloning makes another handle.
#[derive(Clone)]
pub struct CudaQueue(Arc<Inner>);

struct Inner {
    pool: DevicePool,
    stream: CudaStream,
    /// The partial sums, and the sum. A thread holds the lock until its work with them is queued on the stream.
    sums: Mutex<DeviceBuffer<u64>>,
    products: Products,
    /// The pinned slots for copies of ordinary memory, after the first large one.
    staging: OnceLock<Staging>,
}

impl DevicePool {
    /// Returns a queue of the pool and a stream, on which `DeviceTensor`s are made.
    ///
    /// # Errors
    /// Returns an error if the stream belongs to another device, or if there is not enough memory for the partial sums (8 KiB).
    pub fn on(&self, stream: &CudaStream) -> Result<CudaQueue, AllocError> {
        Ok(CudaQueue(Arc::new(Inner {
            pool: self.clone(),
            stream: stream.clone(),
            sums: Mutex::new(self.alloc(PARTS + 1, stream)?),
            products: Products::default(),
            staging: OnceLock::new(),
        })))
    }
}

impl UnpooledDevice {
    /// Returns a queue of the device's memory and a stream, on which tensors and workspaces are made.
    ///
    /// # Errors
    /// Returns the errors of [`DevicePool::on`].
    pub fn on(&self, stream: &CudaStream) -> Result<CudaQueue, AllocError> {
        self.requests().0.on(stream)
    }
}

impl CudaQueue {
    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &DevicePool {
        &self.0.pool
    }

    /// Returns the stream.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        &self.0.stream
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        self.0.stream.device()
    }

    fn products(&self) -> &Products {
        &self.0.products
    }

    /// Records that the queue stays until the process ends, so that its partial sums are not reported as a leak.
    #[doc(hidden)]
    pub fn note_kept(&self) {
        if let Some(ledger) = self.pool().ledger() {
            ledger.note_leaked(self.sums().address() as usize);
        }
    }

    #[doc(hidden)]
    pub fn sums(&self) -> MutexGuard<'_, DeviceBuffer<u64>> {
        self.0.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CudaQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaQueue")
            .field("pool", self.pool())
            .field("stream", self.stream())
            .finish_non_exhaustive()
    }
}
