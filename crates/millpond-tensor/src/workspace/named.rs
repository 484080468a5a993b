//! The named buffers and tensors of a workspace.

use super::by_name::ByName;
use crate::{Tensor, TensorError};
use bytemuck::Pod;
use millpond_account::error::AllocError;
use millpond_pool::block::Memory;
use millpond_pool::block::{ALIGN, bytes_of};
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::DType;
use millpond_pool::storage::Storage;
use std::any::TypeId;
use std::fmt;
use thiserror::Error;

/// An error of creating a workspace or of requesting a buffer or a tensor.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// There is no buffer or tensor of this name.
    #[error("there is no {what} {name:?}: there are {known}")]
    Unknown {
        /// The requested sort: a buffer or a tensor.
        what: &'static str,
        /// The name.
        name: String,
        /// The existing names of this sort.
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
        "{name:?} was asked for twice, or named twice: each buffer and each tensor has a name of its own"
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

/// The type of elements.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    id: TypeId,
    name: &'static str,
}

impl Kind {
    pub(super) fn of<T: 'static>() -> Self {
        Self {
            id: TypeId::of::<T>(),
            name: std::any::type_name::<T>(),
        }
    }

    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(super) fn name(self) -> &'static str {
        self.name
    }

    /// Returns an error if `T` is not the type of the elements of this name.
    pub(super) fn expect<T: 'static>(self, name: &str) -> Result<(), WorkspaceError> {
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

/// A buffer or a tensor to be allocated.
pub(super) enum Wanted {
    Buffer {
        name: String,
        kind: Kind,
        bytes: Result<usize, AllocError>,
        align: usize,
    },
    Tensor {
        name: String,
        dtype: DType,
        shape: Vec<usize>,
    },
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer { name, kind, .. } => write!(f, "{name:?} of {}", kind.name),
            Self::Tensor { name, dtype, shape } => write!(f, "{name:?} of {dtype} {shape:?}"),
        }
    }
}

impl Wanted {
    pub(super) fn of<T: Pod>(name: &str, len: usize) -> Self {
        Self::Buffer {
            name: name.to_owned(),
            kind: Kind::of::<T>(),
            bytes: bytes_of::<T>(len),
            align: ALIGN.max(align_of::<T>()),
        }
    }

    pub(super) fn tensor(name: &str, shape: &[usize], dtype: DType) -> Self {
        Self::Tensor {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Buffer { name, .. } | Self::Tensor { name, .. } => name,
        }
    }
}

/// A buffer. Its bytes are whole elements of the kind and are aligned for it.
struct Entry {
    kind: Kind,
    bytes: Buffer<u8>,
}

/// The named buffers and tensors of a workspace.
pub struct Named {
    buffers: ByName<Entry>,
    tensors: ByName<Tensor>,
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffers = self.buffers.iter();
        f.debug_map()
            .entries(buffers.map(|(name, entry)| (name, (entry.kind.name, entry.bytes.len()))))
            .entries(self.tensors.iter())
            .finish()
    }
}

impl Named {
    pub(super) fn new(from: &dyn Memory, wanted: Vec<Wanted>) -> Result<Self, WorkspaceError> {
        let mut named = Self {
            buffers: ByName::new("buffer"),
            tensors: ByName::new("tensor"),
        };
        for wanted in wanted {
            if named.names().any(|name| name == wanted.name()) {
                let name = wanted.name().to_owned();
                return Err(WorkspaceError::Twice { name });
            }
            match wanted {
                Wanted::Buffer {
                    name,
                    kind,
                    bytes,
                    align,
                } => {
                    let bytes = Buffer::zeroed(from.owner(), bytes?, align)?;
                    named.buffers.push(name, Entry { kind, bytes });
                }
                Wanted::Tensor { name, dtype, shape } => {
                    let elements = crate::count(&shape)?;
                    let storage = Storage::zeroed(from.owner(), dtype, elements)?;
                    named.tensors.push(name, Tensor::from_storage(storage, shape)?);
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
    pub fn tensor(&self, name: &str) -> Result<&Tensor, WorkspaceError> {
        self.tensors.get(name)
    }

    /// Returns a tensor for writing. It cannot be written while clones or views of it exist ([`TensorError::Shared`]).
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name.
    pub fn tensor_mut(&mut self, name: &str) -> Result<&mut Tensor, WorkspaceError> {
        self.tensors_mut([name]).map(|[one]| one)
    }

    /// Returns several tensors for writing, for example outputs together with operands.
    ///
    /// # Errors
    /// Returns an error if there is no tensor of a name, or if a name occurs twice.
    pub fn tensors_mut<const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[&mut Tensor; N], WorkspaceError> {
        self.tensors.get_disjoint_mut(names)
    }

    /// Returns a buffer.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get<T: Pod>(&self, name: &str) -> Result<&[T], WorkspaceError> {
        let entry = self.buffers.get(name)?;
        entry.kind.expect::<T>(name)?;
        Ok(bytemuck::cast_slice(&entry.bytes))
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
    /// Returns an error if there is no buffer of a name, if its elements have another type, or if a name occurs twice.
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
        let entries = self.buffers.get_disjoint_mut(names)?;
        for (entry, name) in entries.iter().zip(names) {
            entry.kind.expect::<T>(name)?;
        }
        Ok(entries.map(|entry| bytemuck::cast_slice_mut(&mut entry.bytes)))
    }

    pub(super) fn bytes(&self) -> usize {
        let buffers = self.buffers.iter().map(|(_, entry)| entry.bytes.len());
        let tensors = self.tensors.iter().map(|(_, tensor)| tensor.storage().bytes());
        buffers.chain(tensors).sum()
    }
}
