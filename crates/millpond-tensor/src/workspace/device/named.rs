//! The named buffers and tensors of a workspace on a device.

use crate::DeviceTensor;
use crate::workspace::WorkspaceError;
use crate::workspace::by_name::ByName;
use crate::workspace::named::Kind;
use millpond_account::error::AllocError;
use millpond_cuda::{CudaQueue, DeviceBuffer};
use millpond_pool::dtype::{DType, Element};
use std::any::Any;
use std::fmt;

type AnyBuffer = Box<dyn Any + Send + Sync>;

/// A buffer or a tensor to be allocated.
pub(super) enum Wanted {
    Buffer {
        name: String,
        kind: Kind,
        len: usize,
        /// The bytes of an element.
        size: usize,
        /// Allocates a `DeviceBuffer` of the kind.
        make: fn(&CudaQueue, usize) -> Result<AnyBuffer, AllocError>,
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
            Self::Buffer { name, kind, .. } => write!(f, "{name:?} of {}", kind.name()),
            Self::Tensor { name, dtype, shape } => write!(f, "{name:?} of {dtype} {shape:?}"),
        }
    }
}

impl Wanted {
    pub(super) fn of<T: Element>(name: &str, len: usize) -> Self {
        Self::Buffer {
            name: name.to_owned(),
            kind: Kind::of::<T>(),
            len,
            size: size_of::<T>(),
            make: |queue, len| {
                let buffer: DeviceBuffer<T> = queue.pool().alloc_zeroed(len, queue.stream())?;
                Ok(Box::new(buffer))
            },
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

/// A `DeviceBuffer` of the kind.
struct Entry {
    kind: Kind,
    bytes: usize,
    buffer: AnyBuffer,
}

/// The named buffers and tensors of a workspace on a device.
pub struct DeviceNamed {
    buffers: ByName<Entry>,
    tensors: ByName<DeviceTensor>,
}

impl fmt::Debug for DeviceNamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffers = self.buffers.iter();
        f.debug_map()
            .entries(buffers.map(|(name, entry)| (name, (entry.kind.name(), entry.bytes))))
            .entries(self.tensors.iter())
            .finish()
    }
}

impl DeviceNamed {
    pub(super) fn new(queue: &CudaQueue, wanted: Vec<Wanted>) -> Result<Self, WorkspaceError> {
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
                    len,
                    size,
                    make,
                } => {
                    let buffer = make(queue, len)?;
                    // The allocation succeeded, so the product does not saturate.
                    let bytes = len.saturating_mul(size);
                    named.buffers.push(name, Entry { kind, bytes, buffer });
                }
                Wanted::Tensor { name, dtype, shape } => {
                    let tensor = DeviceTensor::zeros(queue, shape, dtype)?;
                    named.tensors.push(name, tensor);
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
    pub fn tensor(&self, name: &str) -> Result<&DeviceTensor, WorkspaceError> {
        self.tensors.get(name)
    }

    /// Returns a tensor for writing. It cannot be written while clones or views of it exist
    /// ([`TensorError::Shared`](crate::TensorError::Shared)).
    ///
    /// # Errors
    /// Returns an error if there is no tensor of this name.
    pub fn tensor_mut(&mut self, name: &str) -> Result<&mut DeviceTensor, WorkspaceError> {
        self.tensors_mut([name]).map(|[one]| one)
    }

    /// Returns several tensors for writing, for example outputs together with operands.
    ///
    /// # Errors
    /// Returns an error if there is no tensor of a name, or if a name occurs twice.
    pub fn tensors_mut<const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[&mut DeviceTensor; N], WorkspaceError> {
        self.tensors.get_disjoint_mut(names)
    }

    /// Returns a buffer.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get<T: Element>(&self, name: &str) -> Result<&DeviceBuffer<T>, WorkspaceError> {
        let entry = self.buffers.get(name)?;
        let buffer = entry.buffer.downcast_ref();
        buffer.ok_or_else(|| entry.kind.other::<T>(name))
    }

    /// Returns a buffer for writing.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of this name, or if its elements have another type.
    pub fn get_mut<T: Element>(&mut self, name: &str) -> Result<&mut DeviceBuffer<T>, WorkspaceError> {
        self.get_disjoint_mut([name]).map(|[one]| one)
    }

    /// Returns several buffers for writing.
    ///
    /// # Errors
    /// Returns an error if there is no buffer of a name, if its elements have another type, or if a name occurs twice.
    pub fn get_disjoint_mut<T: Element, const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[&mut DeviceBuffer<T>; N], WorkspaceError> {
        let entries = self.buffers.get_disjoint_mut(names)?;
        let mut found = Vec::with_capacity(N);
        for (entry, name) in entries.into_iter().zip(names) {
            let kind = entry.kind;
            let buffer = entry.buffer.downcast_mut();
            found.push(buffer.ok_or_else(|| kind.other::<T>(name))?);
        }
        // There is one buffer for each name, so the conversion succeeds.
        found
            .try_into()
            .map_err(|_| WorkspaceError::Twice { name: names.concat() })
    }

    pub(super) fn bytes(&self) -> usize {
        let buffers = self.buffers.iter().map(|(_, entry)| entry.bytes);
        let tensors = self.tensors.iter().map(|(_, tensor)| tensor.storage_bytes());
        buffers.chain(tensors).sum()
    }
}
