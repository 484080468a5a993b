//! The named buffers and tensors of a workspace.

use super::HostMemory;
use super::backing::Backing;
use super::by_name::ByName;
use crate::TensorError;
use bytemuck::Pod;
use millpond_account::error::AllocError;
use millpond_pool::block::{ALIGN, Memory, bytes_of};
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::DType;
use std::any::TypeId;
use std::fmt;
use thiserror::Error;

/// An error of creating a workspace or of requesting a buffer or a tensor.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// There is no buffer or tensor of this name.
    #[error("the workspace has no {what} {name:?}: it has {known}")]
    Unknown {
        /// The requested kind: a buffer or a tensor.
        what: &'static str,
        /// The name.
        name: String,
        /// The existing names of this kind.
        known: String,
    },
    /// The elements have another type.
    #[error("the elements of {name:?} are {found}, not {expected}")]
    Type {
        /// The name.
        name: String,
        /// The type of the elements.
        found: &'static str,
        /// The requested type.
        expected: &'static str,
    },
    /// A name was given twice.
    #[error(
        "the name {name:?} was defined or requested twice: each buffer and each tensor needs a unique name"
    )]
    Twice {
        /// The name.
        name: String,
    },
    /// Memory cannot be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The tensor's shape is invalid.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// The type of the elements of a named buffer.
#[derive(Clone, Copy)]
pub(super) struct ElementType {
    id: TypeId,
    name: &'static str,
}

impl ElementType {
    fn of<T: 'static>() -> Self {
        Self {
            id: TypeId::of::<T>(),
            name: std::any::type_name::<T>(),
        }
    }

    /// Returns an error if `T` is not the type of the elements of this name.
    fn expect<T: 'static>(self, name: &str) -> Result<(), WorkspaceError> {
        if self.id == TypeId::of::<T>() {
            return Ok(());
        }
        Err(self.other::<T>(name))
    }

    /// Returns the error that the elements of this name have this type and not `T`.
    pub(super) fn other<T: 'static>(self, name: &str) -> WorkspaceError {
        WorkspaceError::Type {
            name: name.to_owned(),
            found: self.name,
            expected: Self::of::<T>().name,
        }
    }
}

/// A named buffer or tensor to be allocated.
pub(super) enum Planned<B: Backing> {
    Buffer {
        name: String,
        elements: ElementType,
        len: usize,
        /// The bytes of an element.
        size: usize,
        /// Allocates this many zeroed elements.
        make: fn(&B, usize) -> Result<B::Buffer, AllocError>,
    },
    Tensor {
        name: String,
        dtype: DType,
        shape: Vec<usize>,
    },
}

impl<B: Backing> fmt::Debug for Planned<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer { name, elements, .. } => write!(f, "{name:?} of {}", elements.name),
            Self::Tensor { name, dtype, shape } => write!(f, "{name:?} of {dtype} {shape:?}"),
        }
    }
}

impl<B: Backing> Planned<B> {
    /// Plans a buffer of `len` elements of the type `T`, which `make` allocates.
    pub(super) fn buffer<T: 'static>(
        name: &str,
        len: usize,
        make: fn(&B, usize) -> Result<B::Buffer, AllocError>,
    ) -> Self {
        Self::Buffer {
            name: name.to_owned(),
            elements: ElementType::of::<T>(),
            len,
            size: size_of::<T>(),
            make,
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Buffer { name, .. } | Self::Tensor { name, .. } => name,
        }
    }
}

impl Planned<HostMemory> {
    pub(super) fn host_buffer<T: Pod>(name: &str, len: usize) -> Self {
        Self::buffer::<T>(name, len, |memory, len| {
            Buffer::zeroed(memory.owner(), bytes_of::<T>(len)?, ALIGN.max(align_of::<T>()))
        })
    }
}

/// A named buffer, and the type of its elements.
pub(super) struct NamedBuffer<B: Backing> {
    pub(super) elements: ElementType,
    bytes: usize,
    pub(super) buffer: B::Buffer,
}

/// The named buffers and tensors of a workspace in memory of the kind `B`.
pub struct NamedOn<B: Backing> {
    pub(super) buffers: ByName<NamedBuffer<B>>,
    tensors: ByName<B::Tensor>,
}

/// The named buffers and tensors of a workspace.
pub type Named = NamedOn<HostMemory>;

impl<B: Backing> fmt::Debug for NamedOn<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffers = self.buffers.iter();
        f.debug_map()
            .entries(buffers.map(|(name, named)| (name, (named.elements.name, named.bytes))))
            .entries(self.tensors.iter())
            .finish()
    }
}

impl<B: Backing> NamedOn<B> {
    pub(super) fn new(memory: &B, planned: Vec<Planned<B>>) -> Result<Self, WorkspaceError> {
        let mut named = Self {
            buffers: ByName::new("buffer"),
            tensors: ByName::new("tensor"),
        };
        for planned in planned {
            if named.names().any(|name| name == planned.name()) {
                let name = planned.name().to_owned();
                return Err(WorkspaceError::Twice { name });
            }
            match planned {
                Planned::Buffer {
                    name,
                    elements,
                    len,
                    size,
                    make,
                } => {
                    let buffer = NamedBuffer {
                        elements,
                        buffer: make(memory, len)?,
                        // The allocation succeeded, so the product does not saturate.
                        bytes: len.saturating_mul(size),
                    };
                    named.buffers.push(name, buffer);
                }
                Planned::Tensor { name, dtype, shape } => {
                    named.tensors.push(name, memory.zeroed_tensor(shape, dtype)?);
                }
            }
        }
        Ok(named)
    }

    /// Returns the names: those of the buffers, in the order in which they were added, and then those of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.buffers.names().chain(self.tensors.names())
    }

    /// Returns a tensor.
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name.
    pub fn tensor(&self, name: &str) -> Result<&B::Tensor, WorkspaceError> {
        self.tensors.get(name)
    }

    /// Returns a tensor for writing. It cannot be written while clones or views of it exist ([`TensorError::Shared`]).
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name.
    pub fn tensor_mut(&mut self, name: &str) -> Result<&mut B::Tensor, WorkspaceError> {
        self.tensors_mut([name]).map(|[one]| one)
    }

    /// Returns several tensors for writing, for example outputs together with operands.
    ///
    /// # Errors
    /// Returns an error if a name has no tensor or occurs twice.
    pub fn tensors_mut<const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[&mut B::Tensor; N], WorkspaceError> {
        self.tensors.get_disjoint_mut(names)
    }

    pub(super) fn bytes(&self) -> usize {
        let buffers = self.buffers.iter().map(|(_, named)| named.bytes);
        let tensors = self.tensors.iter().map(|(_, tensor)| B::tensor_bytes(tensor));
        buffers.chain(tensors).sum()
    }
}

impl Named {
    /// Returns a buffer.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get<T: Pod>(&self, name: &str) -> Result<&[T], WorkspaceError> {
        let named = self.buffers.get(name)?;
        named.elements.expect::<T>(name)?;
        Ok(bytemuck::cast_slice(&named.buffer))
    }

    /// Returns a buffer for writing.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get_mut<T: Pod>(&mut self, name: &str) -> Result<&mut [T], WorkspaceError> {
        self.get_disjoint_mut([name]).map(|[one]| one)
    }

    /// Returns several buffers for writing.
    ///
    /// # Errors
    /// Returns an error if a name has no buffer, if the elements of a buffer have another type, or if a name occurs
    /// twice.
    ///
    /// ```
    /// # let pool = millpond::Pool::host()?;
    /// # let builder = millpond::Workspace::builder(&pool);
    /// let mut workspace = builder.buffer::<f32>("x", 8).buffer::<f32>("y", 8).build()?;
    /// let [x, y] = workspace.named().get_disjoint_mut::<f32, 2>(["x", "y"])?;
    /// x.swap_with_slice(y);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_disjoint_mut<T: Pod, const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[&mut [T]; N], WorkspaceError> {
        let found = self.buffers.get_disjoint_mut(names)?;
        for (named, name) in found.iter().zip(names) {
            named.elements.expect::<T>(name)?;
        }
        Ok(found.map(|named| bytemuck::cast_slice_mut(&mut named.buffer)))
    }
}
