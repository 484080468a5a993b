//! Tensors of a file in the address space: views without a copy, for who can promise that the file stays as it is.

use super::{SafeTensors, SafeTensorsError, TensorInfo};
use crate::data::load::Sizes;
use crate::data::mapped::Access;
use crate::data::{DataError, files};
use crate::tensor::TensorRef;
use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};
use std::fmt;
use std::ops::Range;

/// The tensors of a safetensors file as views that borrow, to read; no copy, and nothing is read before it is looked at.
/// Made by [`SafeTensors::map`].
///
/// Pages that were looked at count as resident memory of the process until they are [forgotten](Self::forget) or the
/// system takes them.
///
/// Invariant: the map shows bytes of a file that nobody changes as long as this lives, which is what
/// [`SafeTensors::map`] has its caller promise. A promise that was broken before a view is asked for is an error then.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-mapped-{}.safetensors", std::process::id()));
/// use millpond::{SafeTensors, Tensor};
///
/// let table = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// SafeTensors::write(&path, &[("table", table.view()?)], &[])?;
///
/// // SAFETY: nobody else knows of the file.
/// let mapped = unsafe { SafeTensors::open(&path)?.map()? };
/// let view = mapped.get("table")?;
/// assert_eq!(view.as_slice::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// let product = view.matmul(&table)?;                              // an operand like any other
/// assert_eq!(product.as_slice::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MappedTensors {
    of: SafeTensors,
    map: Mmap,
}

impl fmt::Debug for MappedTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedTensors({:?})", self.of)
    }
}

impl MappedTensors {
    /// # Safety
    /// As [`SafeTensors::map`].
    pub(super) unsafe fn new(of: &SafeTensors) -> Result<Self, SafeTensorsError> {
        let file = &of.file;
        file.check()?;
        let failed = |source| files::failed(file.path(), "map it")(source);
        let length = usize::try_from(file.bytes())
            .map_err(|_| failed(std::io::Error::other("it is larger than the address space")))?;
        // SAFETY: nobody changes the file as long as the map lives, as the caller promises.
        let map = unsafe { MmapOptions::new().len(length).map(file.file()) }.map_err(failed)?;
        Ok(Self { of: of.clone(), map })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &SafeTensors {
        &self.of
    }

    /// A tensor as a view. Bytes of truth values are not looked at: what is not 0 is true.
    ///
    /// # Errors
    /// Where there is none of this name or its type is none of ours; [`DataError::Changed`] where the file has changed since
    /// it was opened; [`DataError::Misaligned`] where the elements do not begin at a multiple of their alignment, as other
    /// writers may leave them: such a tensor can be [loaded](SafeTensors::load).
    pub fn get(&self, name: &str) -> Result<TensorRef<'_>, SafeTensorsError> {
        self.of.file.check()?;
        let info = self.of.info(name)?;
        let (dtype, shape) = (self.of.dtype(&info)?, Sizes::of(info.shape)?);
        let begin = self.of.place(&info);
        // The map begins at a page, so that what is aligned in the file is aligned here.
        if info.bytes() > 0 && !begin.is_multiple_of(dtype.align() as u64) {
            return Err(DataError::Misaligned {
                path: self.of.file.path().to_owned(),
                skip: begin,
                align: dtype.align(),
            }
            .into());
        }
        let bytes = self.map.get(self.range(&info)).unwrap_or(&[]);
        Ok(TensorRef::from_bytes(bytes, dtype, &shape)?)
    }

    /// The bytes of a tensor in the map, whose length is a usize.
    fn range(&self, info: &TensorInfo<'_>) -> Range<usize> {
        let begin = self.of.place(info) as usize;
        begin..begin + info.bytes() as usize
    }

    /// Tells the system how the map is going to be read. Advice: what the system does not take is no error.
    pub fn advise(&self, access: Access) {
        let _ = self.map.advise(access.advice());
    }

    /// Has the system begin to read a tensor; of no tensor nothing.
    pub fn expect(&self, name: &str) {
        if let Ok(info) = self.of.info(name) {
            let range = self.range(&info);
            let _ = self.map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// Lets go of the memory of a tensor, which is read again where it is looked at again.
    pub fn forget(&self, name: &str) {
        if let Ok(info) = self.of.info(name) {
            let range = self.range(&info);
            let advice = UncheckedAdvice::DontNeed;
            // SAFETY: the map is of a file and shared without writes, so what is dropped is read from the file again, and by
            // the type's invariant that has not changed: views show the same bytes after it.
            let _ = unsafe { self.map.unchecked_advise_range(advice, range.start, range.len()) };
        }
    }
}
