//! Exports tensors to other libraries.

use super::abi::{DLManagedTensor, DLTensor, IS_COPIED, READ_ONLY};
use super::error::{DlpackError, NotExported};
use super::managed::{Form, ManagedTensor};
use crate::{MAX_RANK, Tensor};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The exported structure and the data that it points to.
///
/// Invariant: `export` creates it on the heap, where it stays until its deleter is called. The pointers in `managed` point to
/// this value.
#[repr(C)]
struct Export<F> {
    /// The first field, so that a pointer to it is a pointer to the whole. It is written before a pointer is returned.
    managed: MaybeUninit<F>,
    shape: [i64; MAX_RANK],
    strides: [i64; MAX_RANK],
    /// Keeps the elements alive.
    _tensor: Tensor,
}

/// The deleter of structures that `export` has made.
///
/// # Safety
/// The pointer is null, or points to the structure of an [`Export`] that is no longer used.
unsafe extern "C" fn delete<F: Form>(managed: *mut F) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the caller guarantees it.
    let export: *mut Export<F> = unsafe { &*managed }.manager_ctx().cast();
    // SAFETY: by the invariant the structure points to its `Export`, which was allocated as a boxed slice of one element.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(export, 1)) });
}

/// Exports a tensor with the given flags.
fn export<F: Form>(tensor: Tensor, flags: u64) -> Result<ManagedTensor<F>, NotExported> {
    // A vector can report a failed allocation, and a box cannot.
    let mut room: Vec<Export<F>> = Vec::new();
    if room.try_reserve_exact(1).is_err() {
        return Err(refused(tensor, DlpackError::OutOfMemory));
    }
    // `data` points to the first element, and the offset is 0, because PyTorch and others have ignored the offset
    // (pytorch#170432, 2026).
    let first = tensor.offset() * tensor.dtype().size();
    let data = if tensor.is_empty() {
        ptr::null_mut()
    } else {
        tensor.storage().pointer().as_ptr().wrapping_add(first)
    };
    let mut dl_tensor = DLTensor {
        data: data.cast(),
        device: tensor.device().into(),
        // The rank is at most `MAX_RANK`.
        ndim: tensor.rank() as i32,
        dtype: tensor.dtype().into(),
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    room.push(Export {
        managed: MaybeUninit::uninit(),
        shape: numbers(tensor.shape()),
        strides: numbers(tensor.strides()),
        _tensor: tensor,
    });
    let whole: NonNull<Export<F>> = NonNull::from(Box::leak(room.into_boxed_slice())).cast();
    let export = whole.as_ptr();
    // SAFETY: the box was just created, so the field lies inside it.
    dl_tensor.shape = unsafe { &raw mut (*export).shape }.cast();
    // SAFETY: as above.
    dl_tensor.strides = unsafe { &raw mut (*export).strides }.cast();
    if dl_tensor.ndim == 0 {
        (dl_tensor.shape, dl_tensor.strides) = (ptr::null_mut(), ptr::null_mut());
    }
    let managed = F::new(dl_tensor, flags, export.cast(), delete::<F>);
    // SAFETY: the structure is the first field of the box, and no other code has access to the box.
    unsafe { export.cast::<F>().write(managed) };
    // SAFETY: the structure has been written. Its deleter frees the box, and may do so on any thread, because a tensor may be
    // dropped on any thread. It points to elements of the storage, which lives until then. Other holders of the storage cannot
    // write, and if the flags are not read-only there are no other holders.
    Ok(unsafe { ManagedTensor::owned(whole.cast()) })
}

/// Converts the numbers of a layout to the standard's type. They fit, because they are at most as large as addresses.
fn numbers(of: &[usize]) -> [i64; MAX_RANK] {
    let mut numbers = [0; MAX_RANK];
    for (number, of) in numbers.iter_mut().zip(of) {
        *number = *of as i64;
    }
    numbers
}

fn refused(tensor: Tensor, why: DlpackError) -> NotExported {
    NotExported {
        tensor: Box::new(tensor),
        why,
    }
}

/// Tensors for other libraries, with the feature `dlpack`. Only [`copy_to_dlpack`](Tensor::copy_to_dlpack) copies
/// elements; see [`dlpack`](super).
impl Tensor {
    /// Returns true if no other tensor shares the storage, the storage is writable, and no elements overlap.
    ///
    /// This calls `get_mut` instead of reading the count. If another thread had a tensor of the storage, `get_mut` ensures that
    /// its last read happens before every write of the consumer.
    fn may_be_written(&mut self) -> bool {
        let apart = !self.layout().overlaps();
        Arc::get_mut(&mut self.storage).is_some_and(|storage| storage.is_writable() && apart)
    }

    /// Exports the tensor to another library as read-only. This tensor and the export share the elements.
    ///
    /// # Errors
    /// Returns an error if the structure cannot be allocated.
    pub fn to_dlpack(&self) -> Result<ManagedTensor, DlpackError> {
        export(self.clone(), READ_ONLY).map_err(|refused| refused.why)
    }

    /// Exports the tensor and transfers it to another library. The export is writable if no other tensor shares the
    /// storage and no elements share memory.
    ///
    /// # Errors
    /// Returns the tensor if the structure cannot be allocated.
    pub fn into_dlpack(mut self) -> Result<ManagedTensor, NotExported> {
        let flags = if self.may_be_written() { 0 } else { READ_ONLY };
        export(self, flags)
    }

    /// Exports the tensor in the older form, which cannot be marked as read-only.
    ///
    /// # Errors
    /// Returns the tensor if it may not be written ([`DlpackError::ReadOnly`]), or if the structure cannot be
    /// allocated.
    pub fn into_dlpack_legacy(mut self) -> Result<ManagedTensor<DLManagedTensor>, NotExported> {
        if self.may_be_written() {
            return export(self, 0);
        }
        Err(refused(self, DlpackError::ReadOnly))
    }

    /// Copies the elements for another library to memory of the same [pool](Tensor). The export is marked as a copy and may be
    /// written.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub fn copy_to_dlpack(&self) -> Result<ManagedTensor, DlpackError> {
        export(self.deep_copy()?, IS_COPIED).map_err(|refused| refused.why)
    }
}
