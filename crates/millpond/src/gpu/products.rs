//! Products of matrices on a queue: by cuBLAS where it takes them, and what was taken last.
//!
//! One handle of cuBLAS serves a device, for one call at a time. What it works in is a block of the queue's pool, which the queue keeps: so
//! it is counted, and a graph that was captured with it finds it where it was. While work is captured neither is made: both would be
//! the capture's, or spoil it.

use super::buffer::DeviceBuffer;
use super::cublas::{self, Gemm, Handle, Workspace};
use super::cublas_error::CublasError;
use super::device::CudaDevice;
use super::graph;
use super::launch;
use super::queue::CudaQueue;
use super::stream::CudaStream;
use crate::dtype::DType;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What forms products of matrices on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatmulBackend {
    /// NVIDIA's library.
    Cublas {
        /// Its version; 120804 is 12.8.4.
        version: u32,
    },
    /// The kernel of this library, by tiles in shared memory.
    Tiled {
        /// Why cuBLAS did not.
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

/// What a queue knows of products.
#[derive(Default)]
pub(super) struct Products {
    tf32: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What cuBLAS works in. Work that uses it is on the queue's stream.
    workspace: Option<DeviceBuffer<u8>>,
    last: Option<MatmulBackend>,
}

impl Products {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// cuBLAS on a device, or why there is none, which holds for as long as the device is had. What only failed is tried again.
#[derive(Default)]
pub(super) struct OfDevice(Option<Result<Handle, CublasError>>);

impl OfDevice {
    /// The context is this thread's.
    fn handle(&mut self, stream: &CudaStream) -> Result<&mut Handle, CublasError> {
        let found = match self.0.take() {
            Some(found) => found,
            None if is_captured(stream)? => return Err(CublasError::Capturing),
            None => Handle::new(stream.device().is_emulated()),
        };
        if let Err(why @ (CublasError::Failed { .. } | CublasError::Cuda(_))) = found {
            // It may go better another time.
            return Err(why);
        }
        self.0.insert(found).as_mut().map_err(|why| *why)
    }

    pub(super) fn is_made(&self) -> bool {
        matches!(self.0, Some(Ok(_)))
    }

    /// Ends it. The context is this thread's.
    pub(super) fn end(&mut self) {
        // It waits for the device, which nobody may while something is captured: then it goes with the context.
        if let Some(Ok(handle)) = self.0.take()
            && !graph::are_captured()
        {
            handle.end();
        }
    }
}

/// Whether this stream, or any by us, is captured.
fn is_captured(stream: &CudaStream) -> Result<bool, CublasError> {
    Ok(graph::are_captured() || stream.is_capturing()?)
}

/// What NVIDIA recommends: 32 MiB from compute capability 9.0 on, and 4 MiB before.
fn workspace_bytes(device: &CudaDevice) -> usize {
    let (major, _) = device.compute_capability();
    if major >= 9 { 32 << 20 } else { 4 << 20 }
}

impl CudaQueue {
    /// Whether cuBLAS may round factors of single precision to 11 bits (TF32) to multiply them on tensor cores, several times
    /// as fast. Off unless allowed: products of `f32` are then exact to single precision.
    pub fn allow_tf32(&self, allowed: bool) {
        self.products().tf32.store(allowed, Ordering::Relaxed);
    }

    /// What formed the last product of matrices on this queue, and why not cuBLAS; none where there was none yet.
    ///
    /// cuBLAS is loaded with the first product: `libcublas.so` by the loader's path, or what the variable `MILLPOND_CUBLAS` names;
    /// with `off` it is not looked for. Whatever it does not take or fails in, the library's own kernel does. The queue
    /// then holds what cuBLAS works in: 4 MiB of the pool, or 32 MiB from compute capability 9.0 on. Products that are
    /// [captured](super::Capture) are its only where the queue had one before, and the graph needs the queue for as long as it is
    /// launched.
    #[must_use]
    pub fn matmul_backend(&self) -> Option<MatmulBackend> {
        self.products().state().last
    }

    /// Remembers what formed a product.
    fn formed_by(&self, backend: MatmulBackend) {
        self.products().state().last = Some(backend);
    }

    /// The workspace, made with the first product.
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
        // Not under the lock: whoever watches the pool is called from there.
        let made = self.pool().alloc(bytes, self.stream());
        let made = made.map_err(|_| CublasError::Workspace { bytes })?;
        let mut state = self.products().state();
        // Another thread may have made one meanwhile: ours goes back, and not under the lock either.
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

/// Has cuBLAS form products on a queue's stream, with matrices of other streams too. Answers whether it does; where not, nothing that
/// counts was done, and the caller forms them otherwise.
///
/// # Safety
/// The elements that the calls say are of this type and lie in live blocks of the streams: nobody else uses them but in the order of
/// these, and nobody else has the product.
pub(crate) unsafe fn by_cublas(
    (queue, others): (&CudaQueue, &[&CudaStream]),
    dtype: DType,
    calls: impl FnOnce() -> Option<Vec<Gemm>>,
) -> bool {
    let formed = cublas::takes(dtype).and_then(|()| {
        let calls = calls().ok_or(CublasError::Layout)?;
        // SAFETY: the caller's.
        unsafe { multiply(queue, others, dtype, &calls) }
    });
    queue.formed_by(match formed {
        Ok(version) => MatmulBackend::Cublas { version },
        Err(why) => MatmulBackend::Tiled { why },
    });
    formed.is_ok()
}

/// # Safety
/// As [`by_cublas`].
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
    // The first makes what takes memory of the device, whoever captures a stream meanwhile.
    let _current = device.enter_beside()?;
    // Whether there is a cuBLAS at all, before memory is taken for it.
    let version = device.cublas().handle(stream)?.version();
    let workspace = queue.workspace()?;
    launch::among(stream, others, || {
        let mut cublas = device.cublas();
        // SAFETY: the caller's; the workspace is the queue's, whose work with it is all on this stream.
        unsafe {
            cublas
                .handle(stream)?
                .multiply(stream.handle(), workspace, (dtype, tf32), calls)
        }
    })?;
    Ok(version)
}
