//! A memory-mapped `.npy` file: a view without a copy, for callers that can guarantee that the file does not change.

use super::{Npy, NpyError};
use crate::DataError;
use crate::files::Files;
use crate::load::last_first;
use crate::mapped::{Access, FileMap, expect_aligned};
use millpond_tensor::TensorRef;
use std::fmt;

/// A read-only view of the array of a `.npy` file, without a copy. The system reads a page when it is first accessed.
/// Created by [`Npy::map`].
///
/// Accessed pages count as resident memory of the process until they are [released](Self::forget) or the system
/// reclaims them.
///
/// Invariant: the mapped file does not change while this value exists. The caller of [`Npy::map`] guarantees it. If
/// the file has changed before a view is requested, the request returns an error.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-mapped-{}.npy", std::process::id()));
/// use millpond::{Npy, Tensor};
///
/// Npy::write(&path, &[2, 2], &[1.0f32, 2.0, 3.0, 4.0])?;
///
/// // SAFETY: no other code writes to the file.
/// let mapped = unsafe { Npy::open(&path)?.map()? };
/// let view = mapped.view()?;
/// assert_eq!(view.as_slice::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// let doubled = view.add(view)?;                                   // an operand like any other
/// assert_eq!(doubled.as_slice::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MappedNpy {
    npy: Npy,
    /// The only file.
    files: Files,
    map: FileMap,
}

impl fmt::Debug for MappedNpy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedNpy({} {:?})", self.npy.dtype(), self.npy.shape())
    }
}

impl MappedNpy {
    /// # Safety
    /// The same as for [`Npy::map`].
    pub(super) unsafe fn new(npy: &Npy) -> Result<Self, NpyError> {
        let files = npy.elements()?;
        // There is a file because one path was given.
        let file = files
            .parts()
            .first()
            .map(|part| &part.file)
            .ok_or(DataError::NoFiles)?;
        expect_aligned(file, npy.skip, npy.dtype().align())?;
        // SAFETY: the caller guarantees that the file does not change while the map exists.
        let map = unsafe { FileMap::new(file, file.bytes()) }?;
        Ok(Self {
            npy: npy.clone(),
            files,
            map,
        })
    }

    /// Returns the header.
    #[must_use]
    pub fn npy(&self) -> &Npy {
        &self.npy
    }

    /// Returns the array. An array in Fortran order has the strides of that order. The bytes of booleans are not
    /// checked: every value except 0 is true.
    ///
    /// # Errors
    /// Returns [`DataError::Changed`] if the file has changed since its header was read, and an error if the array has
    /// more dimensions than tensors support.
    pub fn view(&self) -> Result<TensorRef<'_>, NpyError> {
        for part in self.files.parts() {
            part.file.check()?;
        }
        // `Npy::elements` has checked that the number of bytes after the header matches the shape.
        let bytes = self.map.bytes(self.npy.skip as usize..self.map.len());
        let sizes = self.npy.sizes()?;
        let view = TensorRef::from_bytes(bytes, self.npy.dtype(), &sizes)?;
        if self.npy.is_fortran_order() {
            return Ok(view.permute(&*last_first(sizes.len())?)?);
        }
        Ok(view)
    }

    /// Tells the system how the mapping will be accessed. This is a hint: a refusal is not an error.
    pub fn advise(&self, access: Access) {
        self.map.advise(access);
    }

    /// Releases the memory of the mapping. The system reads the file again at the next access.
    pub fn forget(&self) {
        self.map.forget(0..self.map.len());
    }
}
