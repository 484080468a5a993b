//! Buffers and tensors that a workspace holds by name.

use crate::block::{ALIGN, bytes_of};
use crate::buffer::{Buffer, Memory};
use crate::dtype::DType;
use crate::error::AllocError;
use crate::storage::Storage;
use crate::tensor::{Tensor, TensorError};
use bytemuck::Pod;
use std::any::TypeId;
use std::fmt;
use thiserror::Error;

/// Why a workspace could not be made, or has no such buffer or tensor.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// There is no buffer, or tensor, of this name.
    #[error("there is no {what} {name:?}: there are {known}")]
    Unknown {
        /// What was asked for: a buffer or a tensor.
        what: &'static str,
        /// The name.
        name: String,
        /// Those there are of them.
        known: String,
    },
    /// The elements are of another type.
    #[error("the elements of {name:?} are {found}, not {expected}")]
    Type {
        /// The name.
        name: String,
        /// Their type.
        found: &'static str,
        /// What was asked for.
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
    /// There is no memory for it.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// There is no tensor of the shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

fn unknown<'n>(what: &'static str, name: &str, known: impl Iterator<Item = &'n str>) -> WorkspaceError {
    let known = known.collect::<Vec<_>>();
    WorkspaceError::Unknown {
        what,
        name: name.to_owned(),
        known: if known.is_empty() {
            "none".to_owned()
        } else {
            known.join(", ")
        },
    }
}

/// The type of elements.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    id: TypeId,
    name: &'static str,
}

impl Kind {
    fn of<T: 'static>() -> Self {
        Self {
            id: TypeId::of::<T>(),
            name: std::any::type_name::<T>(),
        }
    }
}

/// A buffer or a tensor to be made.
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

/// Whole elements of the kind, aligned for it.
struct Entry {
    name: String,
    kind: Kind,
    bytes: Buffer<u8>,
}

impl Entry {
    fn expect<T: Pod>(&self) -> Result<(), WorkspaceError> {
        if self.kind.id == TypeId::of::<T>() {
            return Ok(());
        }
        Err(WorkspaceError::Type {
            name: self.name.clone(),
            found: self.kind.name,
            expected: Kind::of::<T>().name,
        })
    }
}

/// The named buffers and tensors of a workspace.
pub struct Named {
    entries: Vec<Entry>,
    tensors: Vec<(String, Tensor)>,
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter();
        let tensors = self.tensors.iter();
        f.debug_map()
            .entries(entries.map(|entry| (&entry.name, (entry.kind.name, entry.bytes.len()))))
            .entries(tensors.map(|(name, tensor)| (name, tensor)))
            .finish()
    }
}

impl Named {
    pub(super) fn new(from: &dyn Memory, wanted: Vec<Wanted>) -> Result<Self, WorkspaceError> {
        let mut named = Self {
            entries: Vec::new(),
            tensors: Vec::new(),
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
                    named.entries.push(Entry { name, kind, bytes });
                }
                Wanted::Tensor { name, dtype, shape } => {
                    let elements = crate::tensor::count(&shape)?;
                    let storage = Storage::zeroed(from.owner(), dtype, elements)?;
                    named.tensors.push((name, Tensor::from_storage(storage, shape)?));
                }
            }
        }
        Ok(named)
    }

    fn no_buffer(&self, name: &str) -> WorkspaceError {
        unknown("buffer", name, self.buffers())
    }

    fn no_tensor(&self, name: &str) -> WorkspaceError {
        unknown("tensor", name, self.tensors())
    }

    /// Their names: the buffers' in the order in which they were described, then the tensors'.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.buffers().chain(self.tensors())
    }

    fn buffers(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    fn tensors(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|(name, _)| name.as_str())
    }

    /// A tensor.
    ///
    /// # Errors
    /// Where there is none of the name.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, WorkspaceError> {
        let found = self.tensors.iter().find(|(of, _)| of == name);
        found
            .map(|(_, tensor)| tensor)
            .ok_or_else(|| self.no_tensor(name))
    }

    /// A tensor, to be written too. While clones or views of it are held elsewhere it cannot be
    /// ([`TensorError::Shared`]).
    ///
    /// # Errors
    /// Where there is none of the name.
    pub fn tensor_mut(&mut self, name: &str) -> Result<&mut Tensor, WorkspaceError> {
        self.tensors_mut([name]).map(|[one]| one)
    }

    /// Several tensors at once, to be written too: outputs beside their operands.
    ///
    /// # Errors
    /// Where there is none of a name, or a name is there twice.
    pub fn tensors_mut<const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[&mut Tensor; N], WorkspaceError> {
        let mut places = [0; N];
        for (at, name) in names.iter().enumerate() {
            let found = self.tensors.iter().position(|(of, _)| of == name);
            places[at] = found.ok_or_else(|| self.no_tensor(name))?;
        }
        let twice = (0..N).find(|at| places[..*at].contains(&places[*at]));
        let tensors = self.tensors.get_disjoint_mut(places);
        // All are inside, so that one is there twice where this fails.
        let tensors = tensors.map_err(|_| WorkspaceError::Twice {
            name: names[twice.unwrap_or(0)].to_owned(),
        })?;
        Ok(tensors.map(|(_, tensor)| tensor))
    }

    /// A buffer.
    ///
    /// # Errors
    /// Where there is none of the name, or its elements are of another type.
    pub fn get<T: Pod>(&self, name: &str) -> Result<&[T], WorkspaceError> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        let entry = found.ok_or_else(|| self.no_buffer(name))?;
        entry.expect::<T>()?;
        Ok(bytemuck::cast_slice(&entry.bytes))
    }

    /// A buffer, to be written too.
    ///
    /// # Errors
    /// Where there is none of the name, or its elements are of another type.
    pub fn get_mut<T: Pod>(&mut self, name: &str) -> Result<&mut [T], WorkspaceError> {
        self.get_disjoint_mut([name]).map(|[one]| one)
    }

    /// Several buffers at once, to be written too.
    ///
    /// # Errors
    /// Where there is none of a name, its elements are of another type, or a name is there twice.
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
        for (place, name) in names.iter().enumerate() {
            let found = self.entries.iter().find(|entry| entry.name == *name);
            found.ok_or_else(|| self.no_buffer(name))?.expect::<T>()?;
            if names[..place].contains(name) {
                let name = (*name).to_owned();
                return Err(WorkspaceError::Twice { name });
            }
        }
        let mut found = [const { None }; N];
        for entry in &mut self.entries {
            if let Some(place) = names.iter().position(|name| *name == entry.name) {
                found[place] = Some(bytemuck::cast_slice_mut(&mut entry.bytes));
            }
        }
        // All were found above.
        Ok(found.map(Option::unwrap_or_default))
    }

    pub(super) fn bytes(&self) -> usize {
        let buffers = self.entries.iter().map(|entry| entry.bytes.len());
        let tensors = self.tensors.iter().map(|(_, tensor)| tensor.storage().bytes());
        buffers.chain(tensors).sum()
    }
}
