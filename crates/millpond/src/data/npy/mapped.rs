//! The array of a file in the address space: a view without a copy, for who can promise that the file stays as it is.

use super::{Npy, NpyError};
use crate::data::files::Files;
use crate::data::load::Sizes;
use crate::data::mapped::Access;
use crate::data::{DataError, files};
use crate::tensor::TensorRef;
use memmap2::{Mmap, MmapOptions, UncheckedAdvice};
use std::fmt;

/// The array of a `.npy` file as a view that borrows, to read; no copy, and nothing is read before it is looked at. Made by
/// [`Npy::map`].
///
/// Pages that were looked at count as resident memory of the process until they are [forgotten](Self::forget) or the system
/// takes them.
///
/// Invariant: the map shows bytes of a file that nobody changes as long as this lives, which is what [`Npy::map`] has its
/// caller promise. A promise that was broken before a view is asked for is an error then.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-mapped-{}.npy", std::process::id()));
/// use millpond::{Npy, Tensor};
///
/// Npy::write(&path, &[2, 2], &[1.0f32, 2.0, 3.0, 4.0])?;
///
/// // SAFETY: nobody else knows of the file.
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
    /// The one file.
    files: Files,
    map: Mmap,
}

impl fmt::Debug for MappedNpy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedNpy({} {:?})", self.npy.dtype(), self.npy.shape())
    }
}

impl MappedNpy {
    /// # Safety
    /// As [`Npy::map`].
    pub(super) unsafe fn new(npy: &Npy) -> Result<Self, NpyError> {
        let files = npy.elements()?;
        // There is one, as one was named.
        let file = files
            .parts()
            .first()
            .map(|part| &part.file)
            .ok_or(DataError::NoFiles)?;
        let align = npy.dtype().align();
        // The map begins at a page, so that what is aligned in the file is aligned here.
        if !npy.skip.is_multiple_of(align as u64) {
            return Err(DataError::Misaligned {
                path: npy.path.clone(),
                skip: npy.skip,
                align,
            }
            .into());
        }
        let failed = |source| files::failed(file.path(), "map it")(source);
        let length = usize::try_from(file.bytes())
            .map_err(|_| failed(std::io::Error::other("it is larger than the address space")))?;
        // SAFETY: nobody changes the file as long as the map lives, as the caller promises.
        let map = unsafe { MmapOptions::new().len(length).map(file.file()) }.map_err(failed)?;
        Ok(Self {
            npy: npy.clone(),
            files,
            map,
        })
    }

    /// The header.
    #[must_use]
    pub fn npy(&self) -> &Npy {
        &self.npy
    }

    /// The array. One in Fortran order has the strides of its order. Bytes of truth values are not looked at: what is not 0
    /// is true.
    ///
    /// # Errors
    /// [`DataError::Changed`] where the file has changed since its header was read, and where it has more dimensions than
    /// tensors do.
    pub fn view(&self) -> Result<TensorRef<'_>, NpyError> {
        for part in self.files.parts() {
            part.file.check()?;
        }
        let bytes = self.elements();
        let sizes = self.npy.sizes()?;
        let view = TensorRef::from_bytes(bytes, self.npy.dtype(), &sizes)?;
        if self.npy.is_fortran_order() {
            return Ok(view.permute(&*Sizes::last_first(sizes.len())?)?);
        }
        Ok(view)
    }

    /// The bytes behind the header, of which there are as many as the shape says.
    fn elements(&self) -> &[u8] {
        self.map.get(self.npy.skip as usize..).unwrap_or(&[])
    }

    /// Tells the system how the map is going to be read. Advice: what the system does not take is no error.
    pub fn advise(&self, access: Access) {
        let _ = self.map.advise(access.advice());
    }

    /// Lets go of the memory of the map, which is read again where it is looked at again.
    pub fn forget(&self) {
        // SAFETY: the map is of a file and shared without writes, so what is dropped is read from the file again, and by the
        // type's invariant that has not changed: views show the same bytes after it.
        let _ = unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) };
    }
}
