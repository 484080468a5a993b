//! Buffers that a workspace holds by name.

use crate::block::{ALIGN, bytes_of};
use crate::buffer::{Buffer, Memory};
use crate::error::AllocError;
use bytemuck::Pod;
use std::any::TypeId;
use std::fmt;
use thiserror::Error;

/// Why a workspace could not be made, or has no such buffer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// There is no buffer of this name.
    #[error("there is no buffer {name:?}: there are {known}")]
    Unknown {
        /// The name.
        name: String,
        /// Those there are.
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
    #[error("there are two buffers {name:?}, or one was asked for twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// There is no memory for it.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// The type of elements.
#[derive(Clone, Copy)]
struct Kind {
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

/// A buffer to be made.
pub(super) struct Wanted {
    name: String,
    kind: Kind,
    bytes: Result<usize, AllocError>,
    align: usize,
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.name, self.kind.name)
    }
}

impl Wanted {
    pub(super) fn of<T: Pod>(name: &str, len: usize) -> Self {
        Self {
            name: name.to_owned(),
            kind: Kind::of::<T>(),
            bytes: bytes_of::<T>(len),
            align: ALIGN.max(align_of::<T>()),
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

/// The named buffers of a workspace.
pub struct Named {
    entries: Vec<Entry>,
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter();
        f.debug_map()
            .entries(entries.map(|entry| (&entry.name, (entry.kind.name, entry.bytes.len()))))
            .finish()
    }
}

impl Named {
    pub(super) fn new(from: &dyn Memory, wanted: Vec<Wanted>) -> Result<Self, WorkspaceError> {
        let mut entries: Vec<Entry> = Vec::with_capacity(wanted.len());
        for Wanted {
            name,
            kind,
            bytes,
            align,
        } in wanted
        {
            if entries.iter().any(|entry| entry.name == name) {
                return Err(WorkspaceError::Twice { name });
            }
            let bytes = Buffer::zeroed(from.owner(), bytes?, align)?;
            entries.push(Entry { name, kind, bytes });
        }
        Ok(Self { entries })
    }

    fn unknown(&self, name: &str) -> WorkspaceError {
        WorkspaceError::Unknown {
            name: name.to_owned(),
            known: self.names().collect::<Vec<_>>().join(", "),
        }
    }

    /// Their names, in the order in which they were described.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// A buffer.
    ///
    /// # Errors
    /// Where there is none of the name, or its elements are of another type.
    pub fn get<T: Pod>(&self, name: &str) -> Result<&[T], WorkspaceError> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        let entry = found.ok_or_else(|| self.unknown(name))?;
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
            found.ok_or_else(|| self.unknown(name))?.expect::<T>()?;
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
        self.entries.iter().map(|entry| entry.bytes.len()).sum()
    }
}
