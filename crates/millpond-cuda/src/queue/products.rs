//! Products of matrices on a queue, by cuBLAS if it supports them, and the record of the last backend.
//!
//! One handle of cuBLAS serves a device, for one call at a time. Its workspace is a block of the queue's pool, which the queue keeps. The
//! workspace is therefore counted, and a graph that was captured with it finds it at the same address. Neither the handle nor the workspace
//! is created while work is captured: they would belong to the capture, or invalidate it.

use super::CudaQueue;
use crate::buffer::DeviceBuffer;
use crate::cublas::{self, Gemm, Workspace};
use crate::cublas_error::CublasError;
use crate::device::CudaDevice;
use crate::stream::CudaStream;
use crate::{captured, launch};
use millpond_pool::dtype::DType;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The implementation that computed a product of matrices on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatmulBackend {
    /// NVIDIA's library.
    Cublas {
        /// The version of the library. 120804 is 12.8.4.
        version: u32,
    },
    /// This library's kernel, by tiles in shared memory.
    Tiled {
        /// The reason why cuBLAS was not used.
        why: CublasError,
    },
}

impl fmt::Display for MatmulBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cublas { version } => write!(f, "cuBLAS {}.{}", version / 10_000, version / 100 % 100),
            Self::Tiled { why } => write!(f, "the tiled kernel: {why}"),
        }
    }
}

/// The state of products on a queue.
#[derive(Default)]
pub(super) struct Products {
    tf32: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The workspace of cuBLAS. Work that uses it is on the queue's stream.
    workspace: Option<DeviceBuffer<u8>>,
    last: Option<MatmulBackend>,
}

impl Products {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether this stream is captured, or this library captures any stream.
fn is_captured(stream: &CudaStream) -> Result<bool, CublasError> {
    Ok(captured::any() || stream.is_capturing()?)
}

/// Returns the size that NVIDIA recommends: 32 MiB from compute capability 9.0 on, and 4 MiB before.
fn workspace_bytes(device: &CudaDevice) -> usize {
    let (major, _) = device.compute_capability();
    if major >= 9 { 32 << 20 } else { 4 << 20 }
}

impl CudaQueue {
    /// Sets whether cuBLAS may round factors of single precision to 11 bits (TF32) and multiply them on tensor cores, which is several
    /// times as fast. The default is no: products of `f32` are then exact to single precision.
    pub fn allow_tf32(&self, allowed: bool) {
        self.products().tf32.store(allowed, Ordering::Relaxed);
    }

    /// Returns the backend of the last product of matrices on this queue, with the reason if it was not cuBLAS. Returns `None` before the
    /// first product.
    ///
    /// cuBLAS is loaded with the first product: `libcublas.so` from the loader's path, or the library that the environment variable
    /// `MILLPOND_CUBLAS` names. The value `off` disables it. Products that cuBLAS does not support or fails in are computed by this
    /// library's own kernel. The queue then holds the workspace of cuBLAS: 4 MiB of the pool, or 32 MiB from compute capability 9.0 on.
    /// [Captured](crate::Capture) products use cuBLAS only if the queue has used it before, and the queue must exist as long as the graph
    /// is launched.
    #[must_use]
    pub fn matmul_backend(&self) -> Option<MatmulBackend> {
        self.products().state().last
    }

    /// Records the backend of a product.
    fn formed_by(&self, backend: MatmulBackend) {
        self.products().state().last = Some(backend);
    }

    /// Returns the workspace. The first product allocates it.
    fn workspace(&self) -> Result<Workspace, CublasError> {
        let place = |buffer: &DeviceBuffer<u8>| Workspace {
            address: buffer.address(),
            bytes: buffer.len(),
        };
        if let Some(there) = &self.products().state().workspace {
            return Ok(place(there));
        }
        if is_captured(self.stream())? {
            return Err(CublasError::Capturing);
        }
        let bytes = workspace_bytes(self.device());
        // This allocates outside of the lock, because it calls the pool's observers.
        let made = self.pool().alloc(bytes, self.stream());
        let made = made.map_err(|_| CublasError::Workspace { bytes })?;
        let mut state = self.products().state();
        // Another thread may have allocated one meanwhile. Then this one is freed, also outside of the lock.
        let surplus = match &state.workspace {
            Some(_) => Some(made),
            None => state.workspace.replace(made),
        };
        let there = state.workspace.as_ref().map(place);
        drop(state);
        drop(surplus);
        there.ok_or(CublasError::Workspace { bytes })
    }
}

/// Computes products with cuBLAS on a queue's stream, with matrices of this and other streams. Returns whether that succeeded. If not, the
/// content of the products is unspecified, and the caller must compute them by other means.
///
/// # Safety
/// The elements that the calls describe must be of this type and in live blocks of the streams. Other code may use them only in the order
/// of these streams, and the caller must have exclusive access to the products.
pub unsafe fn by_cublas(
    (queue, others): (&CudaQueue, &[&CudaStream]),
    dtype: DType,
    calls: impl FnOnce() -> Option<Vec<Gemm>>,
) -> bool {
    let formed = cublas::takes(dtype).and_then(|()| {
        let calls = calls().ok_or(CublasError::Layout)?;
        // SAFETY: the caller guarantees the elements.
        unsafe { multiply(queue, others, dtype, &calls) }
    });
    queue.formed_by(match formed {
        Ok(version) => MatmulBackend::Cublas { version },
        Err(why) => MatmulBackend::Tiled { why },
    });
    formed.is_ok()
}

/// # Safety
/// The requirements of [`by_cublas`].
unsafe fn multiply(
    queue: &CudaQueue,
    others: &[&CudaStream],
    dtype: DType,
    calls: &[Gemm],
) -> Result<u32, CublasError> {
    let (device, stream) = (queue.device(), queue.stream());
    for other in others {
        other.expect_on(device)?;
    }
    let tf32 = queue.products().tf32.load(Ordering::Relaxed);
    // The first call allocates memory of the device, which must work even if other code captures a stream meanwhile.
    let _current = device.enter_beside()?;
    // This checks whether cuBLAS is available before a workspace is allocated for it.
    let version = device
        .cublas()
        .handle(stream.device().is_emulated(), || is_captured(stream))?
        .version();
    let workspace = queue.workspace()?;
    launch::among(stream, others, || {
        let mut cublas = device.cublas();
        // SAFETY: the caller guarantees the matrices. The workspace is the queue's, whose work with it is all on this stream.
        unsafe {
            cublas
                .handle(stream.device().is_emulated(), || is_captured(stream))?
                .multiply(stream.handle(), workspace, (dtype, tf32), calls)
        }
    })?;
    Ok(version)
}
