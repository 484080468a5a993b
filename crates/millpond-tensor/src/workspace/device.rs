//! Workspaces on a device.
//!
//! ```text
//!   named     buffers that exist as long as the workspace
//!   scratch   a scope's access to the arena, whose chunks are device memory
//! ```

#[forbid(unsafe_code)]
mod named;
mod scratch;

pub use named::DeviceNamed;
pub use scratch::DeviceScratch;

use super::arena::Arena;
use super::backing::Backing;
use super::named::Planned;
use super::{WorkspaceBuilderOn, WorkspaceError, WorkspaceOn};
use crate::DeviceTensor;
use millpond_account::error::AllocError;
use millpond_cuda::{CudaError, CudaQueue, DeviceBuffer};
use millpond_pool::dtype::{DType, Element};
use std::any::Any;

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
pub type DeviceWorkspace = WorkspaceOn<CudaQueue>;

/// A builder of a workspace on a device. Nothing is allocated before [`build`](WorkspaceBuilderOn::build).
pub type DeviceWorkspaceBuilder = WorkspaceBuilderOn<CudaQueue>;

impl Backing for CudaQueue {
    type Tensor = DeviceTensor;
    /// A `DeviceBuffer` of the type of the elements.
    type Buffer = Box<dyn Any + Send + Sync>;
    type Scratch<'s> = DeviceScratch<'s>;

    const WORKSPACE: &'static str = "DeviceWorkspace";

    fn expect_usable(&self) -> Result<(), AllocError> {
        scratch::expect_no_capture(self)
    }

    fn zeroed_tensor(&self, shape: Vec<usize>, dtype: DType) -> Result<DeviceTensor, WorkspaceError> {
        Ok(DeviceTensor::zeros(self, shape, dtype)?)
    }

    fn tensor_bytes(tensor: &DeviceTensor) -> usize {
        tensor.storage_bytes()
    }

    fn enter<R>(&self, arena: &mut Arena<Self>, work: impl for<'s> FnOnce(&mut DeviceScratch<'s>) -> R) -> R {
        scratch::enter(arena, self, work)
    }
}

impl DeviceWorkspaceBuilder {
    /// Adds a named buffer of `len` zeroed elements.
    #[must_use]
    pub fn buffer<T: Element>(mut self, name: &str, len: usize) -> Self {
        self.planned.push(Planned::device_buffer::<T>(name, len));
        self
    }
}

impl DeviceWorkspace {
    /// Returns a builder of a workspace that uses a pool and a stream and keeps both open.
    #[must_use]
    pub fn builder(queue: &CudaQueue) -> DeviceWorkspaceBuilder {
        DeviceWorkspaceBuilder::new(queue.clone())
    }

    /// Returns the workspace's pool and stream.
    #[must_use]
    pub fn queue(&self) -> &CudaQueue {
        &self.memory
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
}

/// Converts a driver's error to an allocation error.
fn refused(error: CudaError) -> AllocError {
    AllocError::Cuda(Box::new(error))
}
