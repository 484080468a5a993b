//! A pool and a stream together: where tensors on a device come from, and where work on them goes.

use super::buffer::DeviceBuffer;
use super::device::CudaDevice;
use super::pool::DevicePool;
use super::products::Products;
use super::stream::CudaStream;
use crate::error::AllocError;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sums that a large sum is made of at most.
pub(crate) const PARTS: usize = 1024;

/// A pool and a stream of its device: memory for tensors, and the order of work on them. Made by [`DevicePool::on`].
///
/// It holds 8 KiB and 8 bytes of the pool for sums on their way, and after a product of matrices what
/// [cuBLAS](Self::matmul_backend) works in. Cloning makes another handle.
#[derive(Clone)]
pub struct CudaQueue(Arc<Inner>);

struct Inner {
    pool: DevicePool,
    stream: CudaStream,
    /// Room for the parts of a sum, and for the sum. Whoever has it is alone until his work with it is on the stream.
    sums: Mutex<DeviceBuffer<u64>>,
    products: Products,
}

impl DevicePool {
    /// The pool with a stream for work: what [`DeviceTensor`](super::DeviceTensor)s are made on.
    ///
    /// # Errors
    /// Where the stream is another device's, and when there is no memory for what it needs (8 KiB).
    pub fn on(&self, stream: &CudaStream) -> Result<CudaQueue, AllocError> {
        Ok(CudaQueue(Arc::new(Inner {
            pool: self.clone(),
            stream: stream.clone(),
            sums: Mutex::new(self.alloc(PARTS + 1, stream)?),
            products: Products::default(),
        })))
    }
}

impl CudaQueue {
    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &DevicePool {
        &self.0.pool
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        &self.0.stream
    }

    /// Their device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        self.0.stream.device()
    }

    pub(super) fn products(&self) -> &Products {
        &self.0.products
    }

    pub(crate) fn sums(&self) -> MutexGuard<'_, DeviceBuffer<u64>> {
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
