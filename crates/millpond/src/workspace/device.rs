//! Workspaces on a device.
//!
//! ```text
//!   named     buffers and tensors that are there from the beginning to the end
//!   scratch   a scope's hold on the arena, whose chunks are the device's
//! ```

#[forbid(unsafe_code)]
mod named;
mod scratch;

pub use named::DeviceNamed;
pub use scratch::DeviceScratch;

use super::arena::Arena;
use super::{WorkspaceError, WorkspaceStats};
use crate::dtype::{DType, Element};
use crate::error::AllocError;
use crate::gpu::{CudaError, CudaQueue, DeviceBuffer};
use crate::tensor::DeviceTensor;
use std::fmt;

/// A [`Workspace`](crate::Workspace) on a device: named buffers and tensors, and room for temporaries that end with a scope, all
/// taken from a pool once and used on one stream.
///
/// What temporaries had, the next scope hands out again without waiting, as its work comes after theirs on that stream. Whatever this
/// library does with a temporary on another stream, copies and launches among it, is ordered with the workspace's own; work that it
/// does not see has to be told of: [`DeviceScratch::record_use`].
///
/// A graph can be captured from the stream in a scope, but finds all its room there: it is
/// [refused](CudaError::RoomInCapture) to grow then. The graph writes to the workspace's memory whenever it is launched, so the
/// workspace is to be kept as long, and launches are to go to its stream, or be ordered with it.
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
/// Nothing made in a scope leaves it:
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

/// Describes a workspace on a device. Nothing is taken before [`build`](Self::build).
#[derive(Debug)]
pub struct DeviceWorkspaceBuilder {
    queue: CudaQueue,
    named: Vec<named::Wanted>,
    scratch: usize,
}

impl DeviceWorkspaceBuilder {
    /// A named buffer of `len` elements, all zero.
    #[must_use]
    pub fn buffer<T: Element>(mut self, name: &str, len: usize) -> Self {
        self.named.push(named::Wanted::of::<T>(name, len));
        self
    }

    /// A named tensor, all zero.
    #[must_use]
    pub fn tensor(mut self, name: &str, shape: impl AsRef<[usize]>, dtype: DType) -> Self {
        self.named
            .push(named::Wanted::tensor(name, shape.as_ref(), dtype));
        self
    }

    /// Room for so many bytes of temporaries from the beginning, so that even the first pass finds all it needs, and a capture.
    #[must_use]
    pub fn scratch_bytes(mut self, bytes: usize) -> Self {
        self.scratch = bytes;
        self
    }

    /// Takes the memory.
    ///
    /// # Errors
    /// When there is no memory for it, a name was given twice, or there is no tensor of a shape; while the stream is captured; and
    /// what the driver says.
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
    /// Begins to describe a workspace over a pool and a stream, which it keeps. It owns the pool where no other handle is left.
    #[must_use]
    pub fn builder(queue: &CudaQueue) -> DeviceWorkspaceBuilder {
        DeviceWorkspaceBuilder {
            queue: queue.clone(),
            named: Vec::new(),
            scratch: 0,
        }
    }

    /// Its pool and stream.
    #[must_use]
    pub fn queue(&self) -> &CudaQueue {
        &self.queue
    }

    /// A named buffer.
    ///
    /// # Errors
    /// Where there is none of the name, or its elements are of another type.
    pub fn get<T: Element>(&self, name: &str) -> Result<&DeviceBuffer<T>, WorkspaceError> {
        self.named.get(name)
    }

    /// A named buffer, to be written too.
    ///
    /// # Errors
    /// Where there is none of the name, or its elements are of another type.
    pub fn get_mut<T: Element>(&mut self, name: &str) -> Result<&mut DeviceBuffer<T>, WorkspaceError> {
        self.named.get_mut(name)
    }

    /// A named tensor.
    ///
    /// # Errors
    /// Where there is none of the name.
    pub fn tensor(&self, name: &str) -> Result<&DeviceTensor, WorkspaceError> {
        self.named.tensor(name)
    }

    /// A named tensor, to be written too. While clones or views of it are held elsewhere it cannot be.
    ///
    /// # Errors
    /// Where there is none of the name.
    pub fn tensor_mut(&mut self, name: &str) -> Result<&mut DeviceTensor, WorkspaceError> {
        self.named.tensor_mut(name)
    }

    /// The named buffers and tensors.
    pub fn named(&mut self) -> &mut DeviceNamed {
        &mut self.named
    }

    /// Runs `work` with room for temporaries, all of which end with it, also when it panics.
    pub fn scope<R>(&mut self, work: impl for<'s> FnOnce(&mut DeviceScratch<'s>) -> R) -> R {
        self.scope_with(|_, scratch| work(scratch))
    }

    /// The same, with the named buffers at hand.
    pub fn scope_with<R>(
        &mut self,
        work: impl for<'s> FnOnce(&mut DeviceNamed, &mut DeviceScratch<'s>) -> R,
    ) -> R {
        self.scopes += 1;
        let named = &mut self.named;
        scratch::enter(&mut self.arena, &self.queue, |scratch| work(named, scratch))
    }

    /// Gives the room for temporaries back to the pool; the next scope asks again.
    pub fn trim(&mut self) {
        self.arena.clear();
    }

    /// What the workspace holds and has done.
    #[must_use]
    pub fn stats(&self) -> WorkspaceStats {
        WorkspaceStats::of(self.named.bytes(), &self.arena, self.scopes)
    }

    /// Gives everything back now.
    pub fn free(self) {}
}

/// What a driver said, to somebody who asked a workspace for memory.
fn refused(error: CudaError) -> AllocError {
    AllocError::Cuda(Box::new(error))
}
