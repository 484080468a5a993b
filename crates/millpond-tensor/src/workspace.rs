//! Workspaces: memory that is allocated once, for repeated work.
//!
//! ```text
//!   named     buffers and tensors that exist as long as the workspace
//!   arena     memory for temporaries, which end with their scope
//!   scratch   a scope's access to the arena
//!   by_name   finds named buffers and tensors
//!   backing   the memory of a workspace: that of the host or of a device
//!   device    workspaces on a device
//! ```

mod arena;
mod backing;
mod by_name;
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub mod device;
#[forbid(unsafe_code)]
mod named;
mod scratch;
#[cfg(test)]
mod tests;

pub use named::{Named, NamedOn, WorkspaceError};
pub use scratch::Scratch;

use crate::Tensor;
use arena::Arena;
use backing::Backing;
use bytemuck::Pod;
use millpond_pool::block::{Memory, Owner};
use millpond_pool::dtype::DType;
use millpond_pool::pool::Pool;
use millpond_pool::storage::Storage;
use millpond_pool::unpooled::Unpooled;
use std::fmt;
use std::sync::Arc;

/// The statistics of a workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceStats {
    /// The bytes of the named buffers and tensors.
    pub named_bytes: u64,
    /// The bytes of memory for temporaries.
    pub scratch_bytes: u64,
    /// The maximum number of bytes of temporaries that existed at the same time, including padding for alignment.
    pub scratch_peak: u64,
    /// The number of allocations of memory for temporaries from the pool. It stays constant when the work repeats.
    pub growths: u64,
    /// The number of outermost scopes that were entered.
    pub scopes: u64,
}

/// Named buffers and tensors, and memory for temporaries that end with a scope. All are allocated from a pool once and reused.
///
/// The memory for temporaries grows on demand in the first pass. A pass that requests the same temporaries again does not call the
/// pool. The workspace keeps its pool open. All memory is freed when the workspace is dropped.
///
/// ```
/// use millpond::{Pool, Workspace};
///
/// let pool = Pool::host()?;
/// let mut workspace = Workspace::builder(&pool)
///     .buffer::<f32>("input", 1000)
///     .buffer::<f32>("output", 1000)
///     .build()?;
/// for pass in 0..10 {
///     workspace.get_mut::<f32>("input")?.fill(pass as f32);
///     workspace.scope_with(|named, scratch| {
///         let squares = scratch.alloc::<f32>(1000)?;
///         for (square, x) in squares.iter_mut().zip(named.get::<f32>("input")?) {
///             *square = x * x;
///         }
///         named.get_mut::<f32>("output")?.copy_from_slice(squares);
///         Ok::<(), Box<dyn std::error::Error>>(())
///     })?;
/// }
/// assert_eq!(workspace.get::<f32>("output")?[999], 81.0);
/// assert_eq!(workspace.stats().growths, 1);
/// assert_eq!(pool.stats().allocations, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Tensors can also be named or temporary:
///
/// ```
/// use millpond::{DType, Pool, Workspace};
///
/// let pool = Pool::host()?;
/// let mut workspace = Workspace::builder(&pool)
///     .tensor("weights", [3, 2], DType::F32)
///     .tensor("sums", [3], DType::F32)
///     .build()?;
/// workspace.named().tensor_mut("weights")?.fill(2.0)?;
/// for _ in 0..10 {
///     workspace.scope_with(|named, scratch| {
///         let mut squares = scratch.tensor::<f32>([3, 2])?;
///         let [weights, sums] = named.tensors_mut(["weights", "sums"])?;
///         weights.mul_into(&*weights, &mut squares)?;
///         squares.as_ref().sum_dim_into(1, sums)?;
///         Ok::<(), Box<dyn std::error::Error>>(())
///     })?;
/// }
/// assert_eq!(workspace.tensor("sums")?.as_slice::<f32>()?, [8.0; 3]);
/// assert_eq!(pool.stats().allocations, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A temporary cannot leave its scope:
///
/// ```compile_fail
/// # let pool = millpond::Pool::host().unwrap();
/// # let mut workspace = millpond::Workspace::builder(&pool).build().unwrap();
/// let escaped = workspace.scope(|scratch| scratch.alloc::<f32>(10).unwrap());
/// ```
pub type Workspace = WorkspaceOn<HostMemory>;

/// A builder of a workspace. Nothing is allocated before [`build`](WorkspaceBuilderOn::build).
pub type WorkspaceBuilder = WorkspaceBuilderOn<HostMemory>;

/// A workspace in memory of the kind `B`.
pub struct WorkspaceOn<B: Backing> {
    named: NamedOn<B>,
    arena: Arena<B>,
    scopes: u64,
    // This is declared last, so that memory is freed while the pool is open.
    memory: B,
}

/// A builder of a workspace in memory of the kind `B`. Nothing is allocated before [`build`](Self::build).
#[derive(Debug)]
pub struct WorkspaceBuilderOn<B: Backing> {
    memory: B,
    planned: Vec<named::Planned<B>>,
    scratch: usize,
}

/// A pool of host memory, or a source without a pool.
#[derive(Clone, Debug)]
pub struct HostMemory(Arc<dyn Memory + Send + Sync>);

impl Memory for HostMemory {
    fn owner(&self) -> Owner {
        self.0.owner()
    }
}

impl Backing for HostMemory {
    type Tensor = Tensor;
    type Buffer = millpond_pool::buffer::Buffer<u8>;
    type Scratch<'s> = Scratch<'s>;

    const WORKSPACE: &'static str = "Workspace";

    fn zeroed_tensor(&self, shape: Vec<usize>, dtype: DType) -> Result<Tensor, WorkspaceError> {
        let storage = Storage::zeroed(self.owner(), dtype, crate::count(&shape)?)?;
        Ok(Tensor::from_storage(storage, shape)?)
    }

    fn tensor_bytes(tensor: &Tensor) -> usize {
        tensor.storage().bytes()
    }

    fn enter<R>(&self, arena: &mut Arena<Self>, work: impl for<'s> FnOnce(&mut Scratch<'s>) -> R) -> R {
        scratch::enter(arena, work)
    }
}

impl<B: Backing> WorkspaceBuilderOn<B> {
    fn new(memory: B) -> Self {
        Self {
            memory,
            planned: Vec::new(),
            scratch: 0,
        }
    }

    /// Adds a named zeroed tensor.
    #[must_use]
    pub fn tensor(mut self, name: &str, shape: impl AsRef<[usize]>, dtype: DType) -> Self {
        self.planned.push(named::Planned::Tensor {
            name: name.to_owned(),
            dtype,
            shape: shape.as_ref().to_vec(),
        });
        self
    }

    /// Allocates memory for `bytes` bytes of temporaries in advance, so that not even the first pass or a capture calls the pool.
    #[must_use]
    pub fn scratch_bytes(mut self, bytes: usize) -> Self {
        self.scratch = bytes;
        self
    }

    /// Allocates the memory.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated, if a name was given twice, or if a tensor's shape is invalid. On a device it
    /// also returns an error if the stream is being captured, or if the driver reports one.
    pub fn build(self) -> Result<WorkspaceOn<B>, WorkspaceError> {
        self.memory.expect_usable()?;
        let named = NamedOn::new(&self.memory, self.planned)?;
        let mut arena = Arena::new(self.memory.clone());
        if self.scratch > 0 {
            arena.grow(self.scratch)?;
        }
        Ok(WorkspaceOn {
            named,
            arena,
            scopes: 0,
            memory: self.memory,
        })
    }
}

impl WorkspaceBuilder {
    /// Adds a named buffer of `len` zeroed elements.
    #[must_use]
    pub fn buffer<T: Pod>(mut self, name: &str, len: usize) -> Self {
        self.planned.push(named::Planned::host_buffer::<T>(name, len));
        self
    }
}

impl<B: Backing> fmt::Debug for WorkspaceOn<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(B::WORKSPACE)
            .field("named", &self.named)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Workspace {
    /// Returns a builder of a workspace that uses a pool and keeps it open.
    #[must_use]
    pub fn builder(pool: &Pool) -> WorkspaceBuilder {
        WorkspaceBuilder::new(HostMemory(Arc::new(pool.clone())))
    }

    /// Returns a builder of a workspace that uses a source without a pool.
    #[must_use]
    pub fn unpooled(source: &Unpooled) -> WorkspaceBuilder {
        WorkspaceBuilder::new(HostMemory(Arc::new(source.clone())))
    }

    /// Returns a named buffer.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get<T: Pod>(&self, name: &str) -> Result<&[T], WorkspaceError> {
        self.named.get(name)
    }

    /// Returns a named buffer for writing.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get_mut<T: Pod>(&mut self, name: &str) -> Result<&mut [T], WorkspaceError> {
        self.named.get_mut(name)
    }
}

impl<B: Backing> WorkspaceOn<B> {
    /// Returns a named tensor.
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name.
    pub fn tensor(&self, name: &str) -> Result<&B::Tensor, WorkspaceError> {
        self.named.tensor(name)
    }

    /// Returns a named tensor for writing. It cannot be written while clones or views of it exist.
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name.
    pub fn tensor_mut(&mut self, name: &str) -> Result<&mut B::Tensor, WorkspaceError> {
        self.named.tensor_mut(name)
    }

    /// Returns the named buffers and tensors.
    pub fn named(&mut self) -> &mut NamedOn<B> {
        &mut self.named
    }

    /// Runs `work` with memory for temporaries. All temporaries end when `work` returns or panics.
    pub fn scope<R>(&mut self, work: impl for<'s> FnOnce(&mut B::Scratch<'s>) -> R) -> R {
        self.scope_with(|_, scratch| work(scratch))
    }

    /// Like [`scope`](Self::scope), with access to the named buffers.
    pub fn scope_with<R>(
        &mut self,
        work: impl for<'s> FnOnce(&mut NamedOn<B>, &mut B::Scratch<'s>) -> R,
    ) -> R {
        self.scopes += 1;
        let named = &mut self.named;
        self.memory.enter(&mut self.arena, |scratch| work(named, scratch))
    }

    /// Returns the memory for temporaries to the pool. The next scope allocates again.
    pub fn trim(&mut self) {
        self.arena.clear();
    }

    /// Returns the statistics of the workspace.
    #[must_use]
    pub fn stats(&self) -> WorkspaceStats {
        WorkspaceStats {
            named_bytes: self.named.bytes() as u64,
            scratch_bytes: self.arena.bytes() as u64,
            scratch_peak: self.arena.peak() as u64,
            growths: self.arena.growths(),
            scopes: self.scopes,
        }
    }

    /// Frees all memory now.
    pub fn free(self) {}
}
