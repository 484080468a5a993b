//! Memory-mapped safetensors files: views without a copy, for callers that can guarantee that the file does not
//! change.

use super::{SafeTensors, SafeTensorsError, TensorInfo};
use crate::load::sizes_of;
use crate::mapped::{Access, FileMap, expect_aligned};
use millpond_tensor::TensorRef;
use std::fmt;
use std::ops::Range;

/// Read-only views of the tensors of a safetensors file, without a copy. The system reads a page when it is first
/// accessed. Created by [`SafeTensors::map`].
///
/// Accessed pages count as resident memory of the process until they are [released](Self::forget) or the system
/// reclaims them.
///
/// Invariant: the mapped file does not change while this value exists. The caller of [`SafeTensors::map`] guarantees
/// it. If the file has changed before a view is requested, the request returns an error.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("millpond-mapped-{}.safetensors", std::process::id()));
/// use millpond::{SafeTensors, Tensor};
///
/// let table = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
/// SafeTensors::write(&path, &[("table", table.view()?)], &[])?;
///
/// // SAFETY: no other code writes to the file.
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
    map: FileMap,
}

impl fmt::Debug for MappedTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedTensors({:?})", self.of)
    }
}

impl MappedTensors {
    /// # Safety
    /// The same as for [`SafeTensors::map`].
    pub(super) unsafe fn new(of: &SafeTensors) -> Result<Self, SafeTensorsError> {
        // SAFETY: the caller guarantees that the file does not change while the map exists.
        let map = unsafe { FileMap::new(&of.file, of.file.bytes()) }?;
        Ok(Self { of: of.clone(), map })
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> &SafeTensors {
        &self.of
    }

    /// Returns a tensor as a view. The bytes of booleans are not checked: every value except 0 is true.
    ///
    /// # Errors
    /// Returns an error if there is no tensor with this name or if its type is not supported. Returns
    /// [`DataError::Changed`](crate::DataError::Changed) if the file has changed since it was opened. Returns
    /// [`DataError::Misaligned`](crate::DataError::Misaligned) if the elements do not begin at a multiple of their alignment,
    /// which is possible in files of other writers. A misaligned tensor can be [loaded](SafeTensors::load).
    pub fn get(&self, name: &str) -> Result<TensorRef<'_>, SafeTensorsError> {
        self.of.file.check()?;
        let info = self.of.info(name)?;
        let (dtype, shape) = (self.of.dtype(&info)?, sizes_of(info.shape)?);
        if info.bytes() > 0 {
            expect_aligned(&self.of.file, self.of.place(&info), dtype.align())?;
        }
        let bytes = self.map.bytes(self.range(&info));
        Ok(TensorRef::from_bytes(bytes, dtype, &shape)?)
    }

    /// Returns the range of a tensor's bytes in the mapping. The mapping's length fits a `usize`.
    fn range(&self, info: &TensorInfo<'_>) -> Range<usize> {
        let begin = self.of.place(info) as usize;
        begin..begin + info.bytes() as usize
    }

    /// Tells the system how the mapping will be accessed. This is a hint: a refusal is not an error.
    pub fn advise(&self, access: Access) {
        self.map.advise(access);
    }

    /// Tells the system to start reading a tensor. Does nothing if there is no tensor with this name.
    pub fn expect(&self, name: &str) {
        if let Ok(info) = self.of.info(name) {
            self.map.expect(self.range(&info));
        }
    }

    /// Releases the memory of a tensor. The system reads the file again at the next access.
    pub fn forget(&self, name: &str) {
        if let Ok(info) = self.of.info(name) {
            self.map.forget(self.range(&info));
        }
    }
}
