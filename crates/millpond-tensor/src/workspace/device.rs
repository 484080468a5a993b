//! Workspaces on a device.
//!
//! ```text
//!   named     buffers and tensors that exist as long as the workspace
//!   scratch   a scope's access to the arena, whose chunks are device memory
//! ```

#[forbid(unsafe_code)]
mod named;
mod scratch;

pub use named::DeviceNamed;
pub use scratch::DeviceScratch;

use super::arena::Arena;
use super::{WorkspaceError, WorkspaceStats};
use crate::DeviceTensor;
use millpond_account::error::AllocError;
use millpond_cuda::{CudaError, CudaQueue, DeviceBuffer};
use millpond_pool::dtype::{DType, Element};
use std::fmt;

/// A [`Workspace`](crate::Workspace) on a device: named buffers and tensors, and memory for temporaries that end with a scope. All are
/// allocated from a pool once and used on one stream.
///
/// The next scope reuses the memory of temporaries without waiting, because its work comes later on that stream. If this library uses a
/// temporary on another stream, for example in copies and launches, it orders that work with the workspace's stream. Other work must be
/// declared with [`DeviceScratch::record_use`].
///
/// A graph can be captured from the stream in a scope. The workspace must already have enough memory, because
/// [it cannot grow](CudaError::RoomInCapture) during a capture. Each launch of the graph writes to the workspace's memory, so keep the
/// workspace as long as the graph, and launch the graph on the workspace's stream or order the launches with that stream.
///
/// ```
/// use millpond::DType;
/// use millpond::cuda::{CudaDevice, CudaError, CudaStream, DevicePool, DeviceWorkspace};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = match CudaDevice::get(0) {
///     Err(CudaError::NoDriver) => return Ok(()),
///     device => device?,
/// };
/// let (pool, stream) = (DevicePool::new(&device)?, CudaStream::new(&device)?);
/// let mut workspace = DeviceWorkspace::builder(&pool.on(&stream)?)
///     .buffer::<f32>("input", 6)
///     .tensor("weights", [3, 2], DType::F32)
///     .tensor("sums", [3], DType::F32)
///     .build()?;
/// workspace.get_mut::<f32>("input")?.copy_from_host(&[0.5; 6])?;
/// workspace.tensor_mut("weights")?.fill(2.0)?;
/// let allocations = pool.stats().allocations;
/// for _ in 0..10 {
///     workspace.scope_with(|named, scratch| {
///         let mut squares = scratch.tensor::<f32>([3, 2])?;
///         let [weights, sums] = named.tensors_mut(["weights", "sums"])?;
///         weights.mul_into(&*weights, &mut squares)?;
///         squares.sum_dim_into(1, sums)?;
///         Ok::<(), Box<dyn std::error::Error>>(())
///     })?;
/// }
/// assert_eq!(workspace.tensor("sums")?.to_vec::<f32>()?, [8.0; 3]);
/// assert_eq!(pool.stats().allocations, allocations + 1);
/// # Ok(())
/// # }
/// ```
///
/// A temporary cannot leave its scope:
///
/// ```compile_fail
/// # fn escape(mut workspace: millpond::cuda::DeviceWorkspace) {
/// let escaped = workspace.scope(|scratch| scratch.alloc::<f32>(10).unwrap());
/// # }
/// ```
pub struct DeviceWorkspace {
    named: DeviceNamed,
    arena: Arena<CudaQueue>,
    scopes: u64,
    queue: CudaQueue,
}

/// A builder of a workspace on a device. Nothing is allocated before [`build`](Self::build).
#[derive(Debug)]
pub struct DeviceWorkspaceBuilder {
    queue: CudaQueue,
    named: Vec<named::Wanted>,
    scratch: usize,
}

impl DeviceWorkspaceBuilder {
    /// Adds a named buffer of `len` zeroed elements.
    #[must_use]
    pub fn buffer<T: Element>(mut self, name: &str, len: usize) -> Self {
        self.named.push(named::Wanted::of::<T>(name, len));
        self
    }

    /// Adds a named zeroed tensor.
    #[must_use]
    pub fn tensor(mut self, name: &str, shape: impl AsRef<[usize]>, dtype: DType) -> Self {
        self.named
            .push(named::Wanted::tensor(name, shape.as_ref(), dtype));
        self
    }

    /// Allocates memory for `bytes` bytes of temporaries at the start, so that even the first pass, or a capture, need not allocate.
    #[must_use]
    pub fn scratch_bytes(mut self, bytes: usize) -> Self {
        self.scratch = bytes;
        self
    }

    /// Allocates the memory.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, if a name was given twice, if a tensor's shape is invalid, if the stream is being
    /// captured, or if the driver reports one.
    pub fn build(self) -> Result<DeviceWorkspace, WorkspaceError> {
        scratch::expect_no_capture(&self.queue)?;
        let named = DeviceNamed::new(&self.queue, self.named)?;
        let mut arena = Arena::new(self.queue.clone());
        if self.scratch > 0 {
            arena.grow(self.scratch)?;
        }
        Ok(DeviceWorkspace {
            named,
            arena,
            scopes: 0,
            queue: self.queue,
        })
    }
}

impl fmt::Debug for DeviceWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceWorkspace")
            .field("named", &self.named)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl DeviceWorkspace {
    /// Returns a builder of a workspace that uses a pool and a stream and keeps both open.
    #[must_use]
    pub fn builder(queue: &CudaQueue) -> DeviceWorkspaceBuilder {
        DeviceWorkspaceBuilder {
            queue: queue.clone(),
            named: Vec::new(),
            scratch: 0,
        }
    }

    /// Returns the workspace's pool and stream.
    #[must_use]
    pub fn queue(&self) -> &CudaQueue {
        &self.queue
    }

    /// Returns a named buffer.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get<T: Element>(&self, name: &str) -> Result<&DeviceBuffer<T>, WorkspaceError> {
        self.named.get(name)
    }

    /// Returns a named buffer for writing.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get_mut<T: Element>(&mut self, name: &str) -> Result<&mut DeviceBuffer<T>, WorkspaceError> {
        self.named.get_mut(name)
    }

    /// Returns a named tensor.
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name.
    pub fn tensor(&self, name: &str) -> Result<&DeviceTensor, WorkspaceError> {
        self.named.tensor(name)
    }

    /// Returns a named tensor for writing. It cannot be written while clones or views of it exist.
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name.
    pub fn tensor_mut(&mut self, name: &str) -> Result<&mut DeviceTensor, WorkspaceError> {
        self.named.tensor_mut(name)
    }

    /// Returns the named buffers and tensors.
    pub fn named(&mut self) -> &mut DeviceNamed {
        &mut self.named
    }

    /// Runs `work` with memory for temporaries, all of which end with it, also on a panic.
    pub fn scope<R>(&mut self, work: impl for<'s> FnOnce(&mut DeviceScratch<'s>) -> R) -> R {
        self.scope_with(|_, scratch| work(scratch))
    }

    /// Like [`scope`](Self::scope), with access to the named buffers.
    pub fn scope_with<R>(
        &mut self,
        work: impl for<'s> FnOnce(&mut DeviceNamed, &mut DeviceScratch<'s>) -> R,
    ) -> R {
        self.scopes += 1;
        let named = &mut self.named;
        scratch::enter(&mut self.arena, &self.queue, |scratch| work(named, scratch))
    }

    /// Returns the memory for temporaries to the pool. The next scope allocates again.
    pub fn trim(&mut self) {
        self.arena.clear();
    }

    /// Returns the statistics of the workspace.
    #[must_use]
    pub fn stats(&self) -> WorkspaceStats {
        WorkspaceStats::of(self.named.bytes(), &self.arena, self.scopes)
    }

    /// Frees all memory now.
    pub fn free(self) {}
}

/// Converts a driver's error to an allocation error.
fn refused(error: CudaError) -> AllocError {
    AllocError::Cuda(Box::new(error))
}
