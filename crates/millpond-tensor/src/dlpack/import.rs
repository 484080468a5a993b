//! Imports tensors of other libraries.

use super::abi::{DLTensor, READ_ONLY};
use super::error::DlpackError;
use super::managed::{Form, ManagedTensor};
use crate::layout::Layout;
use crate::number::with_plain;
use crate::{MAX_RANK, Tensor};
use bytemuck::{Pod, Zeroable};
use millpond_pool::block::Origin;
use millpond_pool::block::{ALIGN, Foreign};
use millpond_pool::buffer::Buffer;
use millpond_pool::dtype::DType;
use millpond_pool::pool::Pool;
use millpond_pool::storage::Storage;
use millpond_set::pools::draw;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

/// The layout of elements as described by a structure, after the checks.
///
/// Invariant: shape and strides have `rank` numbers. If there are elements, all lie in the `bytes` bytes from `lowest`
/// on. These bytes are not more than an allocation can have, and they lie inside the address space.
struct Elements {
    dtype: DType,
    rank: usize,
    shape: [usize; MAX_RANK],
    /// The strides in elements. The strides of dimensions with fewer than two indices are 1.
    strides: [i64; MAX_RANK],
    len: usize,
    /// Not null if there are elements.
    lowest: *mut u8,
    bytes: usize,
    /// The number of elements from the lowest to the first.
    first: usize,
}

impl Elements {
    /// # Safety
    /// The requirements of [`ManagedTensor::from_raw`] for the shape and the strides must hold.
    unsafe fn of(tensor: &DLTensor) -> Result<Self, DlpackError> {
        if tensor.device.device().is_none() {
            return Err(DlpackError::Device { found: tensor.device });
        }
        let dtype = tensor.dtype.dtype();
        let dtype = dtype.ok_or(DlpackError::DType { found: tensor.dtype })?;
        let rank = usize::try_from(tensor.ndim).ok().filter(|rank| *rank <= MAX_RANK);
        let rank = rank.ok_or(DlpackError::Rank { found: tensor.ndim })?;
        // SAFETY: the caller guarantees it.
        let sizes = unsafe { numbers(tensor.shape, rank) };
        let sizes = sizes.ok_or(DlpackError::Shape { found: None })?;
        let mut shape = [0; MAX_RANK];
        for (size, found) in shape.iter_mut().zip(sizes) {
            *size = usize::try_from(*found).map_err(|_| DlpackError::Shape {
                found: Some(sizes.into()),
            })?;
        }
        // SAFETY: the caller guarantees it.
        let given = unsafe { numbers(tensor.strides, rank) };
        let shaped = shape.get(..rank).unwrap_or_default();
        let too_large = || DlpackError::TooLarge {
            shape: shaped.into(),
            strides: given.map(Into::into),
        };
        let rows = Layout::contiguous(shaped).map_err(|_| too_large())?;
        let mut strides = [1; MAX_RANK];
        for (dim, stride) in strides.iter_mut().enumerate().take(rank) {
            if shaped.get(dim).is_some_and(|size| *size > 1) {
                let row = rows.strides().get(dim).map(|stride| *stride as i64);
                let given = given.and_then(|given| given.get(dim));
                *stride = given.copied().or(row).unwrap_or(1);
            }
        }
        let mut found = Self {
            dtype,
            rank,
            shape,
            strides,
            len: rows.len(),
            lowest: ptr::without_provenance_mut(ALIGN),
            bytes: 0,
            first: 0,
        };
        if found.len > 0 {
            if tensor.data.is_null() {
                return Err(DlpackError::NoElements { elements: found.len });
            }
            let reached = found.reach(tensor.data.cast(), tensor.byte_offset);
            (found.lowest, found.bytes, found.first) = reached.ok_or_else(too_large)?;
        }
        Ok(found)
    }

    /// Returns the lowest byte, the number of bytes from there on, and the number of elements from there to the first.
    /// Returns `None` if they extend beyond the address space.
    fn reach(&self, data: *mut u8, offset: u64) -> Option<(*mut u8, usize, usize)> {
        let (mut below, mut above) = (0_usize, 0_usize);
        for (size, stride) in self.shape().iter().zip(self.strides()) {
            let reach = usize::try_from(stride.unsigned_abs()).ok()?;
            let reach = reach.checked_mul(size - 1)?;
            let side = if *stride < 0 { &mut below } else { &mut above };
            *side = side.checked_add(reach)?;
        }
        let size = self.dtype.size();
        let bytes = below.checked_add(above)?.checked_add(1)?.checked_mul(size)?;
        let offset = usize::try_from(offset).ok()?;
        let start = data
            .addr()
            .checked_add(offset)?
            .checked_sub(below.checked_mul(size)?)?;
        let inside = start > 0 && bytes <= isize::MAX as usize && start.checked_add(bytes).is_some();
        inside.then(|| (data.with_addr(start), bytes, below))
    }

    fn shape(&self) -> &[usize] {
        self.shape.get(..self.rank).unwrap_or_default()
    }

    fn strides(&self) -> &[i64] {
        self.strides.get(..self.rank).unwrap_or_default()
    }

    /// Returns a dimension with a negative stride, if there is one.
    fn backwards(&self) -> Option<usize> {
        let mut strides = self.strides().iter();
        strides.position(|stride| *stride < 0).filter(|_| self.len > 0)
    }

    fn is_aligned(&self) -> bool {
        self.lowest.addr().is_multiple_of(self.dtype.align())
    }

    /// Returns the layout of the elements in the bytes. Refuses negative strides.
    fn layout(&self) -> Result<Layout, DlpackError> {
        if let Some(dim) = self.backwards() {
            return Err(DlpackError::Backwards {
                dim,
                strides: self.strides().into(),
            });
        }
        // No stride is negative.
        let strides = self.strides.map(|stride| stride.unsigned_abs() as usize);
        Ok(Layout::spaced(self.shape(), &strides)?)
    }

    /// Returns the offset of the `nth` element, in order, from the beginning of the bytes, in elements.
    fn place(&self, mut nth: usize) -> usize {
        let mut place = self.first;
        for (size, stride) in self.shape().iter().zip(self.strides()).rev() {
            let size = (*size).max(1);
            // The result is inside the bytes, so only intermediate results can overflow.
            place = place.wrapping_add((nth % size).wrapping_mul(*stride as usize));
            nth /= size;
        }
        place
    }

    /// Returns the elements in order, for any strides and alignment.
    ///
    /// # Safety
    /// The requirements of [`ManagedTensor::from_raw`] for the memory must hold while the iterator exists.
    unsafe fn plain<P: Pod>(&self) -> impl ExactSizeIterator<Item = P> {
        // SAFETY: by the invariant this many bytes follow, and the address is not null if there are none. The caller
        // guarantees that they can be read.
        let bytes = unsafe { slice::from_raw_parts(self.lowest, self.bytes) };
        let size = size_of::<P>();
        (0..self.len).map(move |nth| {
            let start = self.place(nth) * size;
            let element = bytes.get(start..start + size);
            let element = element.and_then(|element| bytemuck::try_pod_read_unaligned(element).ok());
            element.unwrap_or_else(Zeroable::zeroed)
        })
    }
}

/// Returns `many` numbers, or `None` if `many` is not 0 and the pointer is null.
///
/// # Safety
/// A pointer that is not null must point to `many` numbers, which exist and do not change during `'a`.
unsafe fn numbers<'a>(pointer: *const i64, many: usize) -> Option<&'a [i64]> {
    if many == 0 {
        return Some(&[]);
    }
    // SAFETY: the caller guarantees it.
    (!pointer.is_null()).then(|| unsafe { slice::from_raw_parts(pointer, many) })
}

impl<F: Form> ManagedTensor<F> {
    fn elements(&self) -> Result<(Elements, u64), DlpackError> {
        let (tensor, flags) = self.parts();
        // SAFETY: by the invariant the requirements of `from_raw` hold.
        let elements = unsafe { Elements::of(&tensor) }?;
        Ok((elements, flags))
    }

    /// Converts the structure to a tensor that uses the structure's memory, without a copy. The deleter is called when
    /// the last tensor that shares the memory is dropped.
    ///
    /// The tensor may be [written](Tensor::view_mut) if the flags lack [`READ_ONLY`] and the strides alone prove that
    /// no elements share memory. The older form has no flags and counts as read-only.
    ///
    /// # Errors
    /// Returns an error if the tensor is not on the host, if its element type is not supported, if the elements are
    /// misaligned, have a negative stride or extend beyond the address space, or if it has too many dimensions. The
    /// deleter has then been called.
    pub fn into_tensor(self) -> Result<Tensor, DlpackError> {
        let (elements, flags) = self.elements()?;
        let layout = elements.layout()?;
        let (dtype, bytes) = (elements.dtype, elements.bytes);
        if !elements.is_aligned() {
            return Err(DlpackError::Misaligned {
                address: elements.lowest.addr(),
                dtype,
            });
        }
        let writable = flags & READ_ONLY == 0 && layout.is_apart();
        let pointer = NonNull::new(elements.lowest).ok_or(DlpackError::NoElements {
            elements: elements.len,
        })?;
        let owner = Arc::new(Foreign::new(bytes, writable, Box::new(self)));
        // SAFETY: the pointer is aligned. By the invariant the requirements of `from_raw` hold until the deleter is
        // called, which happens when the owner is dropped. By the invariant of `elements` these are the bytes from the
        // first element to the last. They can be read, and written if the flags permit it.
        let bytes = unsafe { Buffer::foreign(pointer, bytes, dtype.align(), owner) };
        Ok(Tensor {
            storage: Arc::new(Storage::of(bytes, dtype)),
            layout,
        })
    }

    /// Copies the elements, in order, to memory of a pool, tenant or source, and calls the deleter.
    ///
    /// # Errors
    /// Returns the errors of [`into_tensor`](Self::into_tensor), except for negative strides and misaligned elements,
    /// which are copied like others. Returns an error if memory cannot be allocated.
    pub fn to_tensor_in(self, from: &impl Origin) -> Result<Tensor, DlpackError> {
        let (elements, _) = self.elements()?;
        if elements.is_aligned() && elements.backwards().is_none() {
            return Ok(self.into_tensor()?.deep_copy_in(from)?);
        }
        let dtype = elements.dtype;
        let bytes = with_plain!(dtype, P => {
            // SAFETY: by the invariant the requirements of `from_raw` hold, and the deleter is called below.
            let plain = unsafe { elements.plain::<P>() };
            Buffer::collect(from.handle().0, plain)?.into_bytes()
        });
        Ok(Tensor::of(Storage::of(bytes, dtype), elements.shape())?)
    }
}

/// Tensors of other libraries, with the feature `dlpack`; see [`dlpack`](super).
impl Tensor {
    /// Imports a tensor of another library without a copy. The tensor uses the other library's memory. In Python the
    /// pointer is in the capsule that `__dlpack__` returns. It is a [`DLManagedTensor`](super::DLManagedTensor) if the
    /// capsule's name is `dltensor`, and a [`DLManagedTensorVersioned`](super::DLManagedTensorVersioned) if it is
    /// `dltensor_versioned`.
    ///
    /// # Errors
    /// Returns the errors of [`ManagedTensor::into_tensor`]. The deleter has then been called, unless the pointer is
    /// null.
    ///
    /// # Safety
    /// The same as for [`ManagedTensor::from_raw`].
    pub unsafe fn from_dlpack<F: Form>(managed: *mut F) -> Result<Self, DlpackError> {
        // SAFETY: the caller guarantees it.
        unsafe { ManagedTensor::from_raw(managed) }?.into_tensor()
    }

    /// Copies another library's tensor, in order, to the current [set of pools](fn@millpond_set::pools). Its deleter is
    /// called.
    ///
    /// # Errors
    /// Returns the errors of [`ManagedTensor::to_tensor_in`].
    ///
    /// # Safety
    /// The same as for [`ManagedTensor::from_raw`].
    pub unsafe fn copy_from_dlpack<F: Form>(managed: *mut F) -> Result<Self, DlpackError> {
        // SAFETY: the caller guarantees it.
        let managed = unsafe { ManagedTensor::from_raw(managed) }?;
        draw(|pool: &Pool| managed.to_tensor_in(pool))
    }

    /// Copies another library's tensor, in order, to memory of a pool, tenant or source. Its deleter is called.
    ///
    /// # Errors
    /// Returns the errors of [`ManagedTensor::to_tensor_in`].
    ///
    /// # Safety
    /// The same as for [`ManagedTensor::from_raw`].
    pub unsafe fn copy_from_dlpack_in<F: Form>(
        from: &impl Origin,
        managed: *mut F,
    ) -> Result<Self, DlpackError> {
        // SAFETY: the caller guarantees it.
        unsafe { ManagedTensor::from_raw(managed) }?.to_tensor_in(from)
    }
}
